"""Decoded plans from `tests/vectors/rules`: packed for the wire, and turned into arrays, from the rules' text alone.

Shares no code with `_core`: field order, byte order and padding values are written out once more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

FOLDER = Path(__file__).parents[1] / "vectors" / "rules"

Json = dict[str, Any]

# Field order of the structs; "words" travel as little-endian u32 in one bin, "blob" as bytes.
_PASS = {
    "kind": "number",
    "mode": "number",
    "query_len": "number",
    "rows_padded": "number",
    "tokens_padded": "number",
    "rows": "words",
    "tokens": "words",
    "dummy": "words",
}
_GROUP = {
    "group": "number",
    "epoch": "number",
    "step": "number",
    "depth": "number",
    "k_verify": "number",
    "k_draft": "number",
    "dp_ranks": "words",
    "passes": _PASS,
}
_RELEASE = {"seat": "number", "generation": "number"}
_ADMISSION = {
    "seat": "number",
    "generation": "number",
    "prompt_len": "number",
    "computed": "number",
    "adapter": "number",
    "sampling": "blob",
    "history": "flag",
}
_FEED = {"seat": "number", "start": "number", "tokens": "words"}
_APPEND = {"seat": "number", "kv_group": "number", "blocks": "words"}
_RANK = {
    "dp_rank": "number",
    "releases": _RELEASE,
    "admissions": _ADMISSION,
    "feeds": _FEED,
    "block_appends": _APPEND,
    "copy_sources": "words",
    "copy_destinations": "words",
    "block_zeroings": "words",
    "decode_rows": "number",
    "row_seats": "words",
    "row_generations": "words",
    "row_starts": "words",
    "row_query_lens": "words",
    "row_drafts": "words",
    "row_blocks": "words",
    "row_logits": "words",
    "row_masks": "words",
    "masks": "blob",
    "history": _FEED,
    "kv_imports": _APPEND,
    "kv_exports": _APPEND,
    "stage": "number",
}

LOGITS_NONE, LOGITS_LAST, LOGITS_VERIFY, LOGITS_ALL = range(4)
MODES = ("full", "piecewise", "eager")


def cases() -> list[tuple[str, Json, Json]]:
    """All cases, as (id, limits, case)."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        document = json.loads(path.read_text())
        found += [(f"{path.stem}: {case['name']}", document["limits"], case) for case in document["cases"]]
    assert found, "no vectors"
    return found


def _item(value: Any, kind: Any) -> Any:
    if kind == "number":
        return value or 0
    if kind == "flag":
        return bool(value)
    if kind == "words":
        return np.asarray(value or [], "<u4").tobytes()
    if kind == "blob":
        return bytes(value or [])
    return [_structure(entry, kind) for entry in value or []]


def _structure(value: Json, fields: Json) -> list[Any]:
    return [_item(value.get(name), kind) for name, kind in fields.items()]


def group_bytes(group: Json) -> bytes:
    """The msgpack body of a group part."""
    return msgpack.packb(_structure(group, _GROUP))


def rank_bytes(rank: Json, sampling: bytes = b"") -> bytes:
    """The msgpack body of a rank part; every admission is given `sampling`."""
    admissions = [entry | {"sampling": sampling} for entry in rank.get("admissions", [])]
    return msgpack.packb(_structure(rank | {"admissions": admissions}, _RANK))


def fnv1a_64(data: bytes) -> int:
    """The digest of a group part."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


class Seats:
    """What a worker knows of its requests: tokens, blocks and drafts, by seat."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.blocks: dict[int, list[int]] = {}
        self.drafts: dict[int, list[int]] = {}

    def apply(self, rank: Json) -> None:
        """Take a plan's deltas."""
        for entry in rank.get("admissions", []):
            self.tokens[entry["seat"]], self.blocks[entry["seat"]] = [], []
        for entry in rank.get("feeds", []):
            self.tokens[entry["seat"]] += entry["tokens"]
        for entry in rank.get("block_appends", []):
            self.blocks[entry["seat"]] += entry["blocks"]

    def commit(self, rank: Json, token: int, drafts: list[int]) -> None:
        """Every row that samples emits `token` and proposes `drafts`."""
        for seat, logits in zip(rank.get("row_seats", []), rank.get("row_logits", []), strict=True):
            if logits != LOGITS_NONE:
                self.tokens[seat].append(token)
                self.drafts[seat] = drafts


def expected_arrays(limits: Json, group: Json, rank: Json, rank_index: int, seats: Seats) -> Json:
    """The arrays that a worker gives to its kernels, by the text of rules 3, 4, 7, 8, 9 and 20."""
    target = group["passes"][0]
    is_full = MODES[target["mode"]] == "full"
    lens = [int(length) for length in rank.get("row_query_lens", [])]
    starts = [int(start) for start in rank.get("row_starts", [])]
    tables = [seats.blocks[seat] for seat in rank.get("row_seats", [])]
    if not lens:
        lens, starts, tables = [target["tokens"][rank_index]], [0], [[]]
    request_rows = len(rank.get("row_seats", []))
    while is_full and len(lens) < target["rows_padded"]:
        lens, starts, tables = [*lens, target["query_len"]], [*starts, 0], [*tables, []]
    size = limits["token_capacity"]
    ids, positions, slots, rows = [0] * size, [0] * size, [-1] * size, [-1] * size
    wanted: list[int] = []
    begin = 0
    for row in range(request_rows):
        seat, drafts = rank["row_seats"][row], rank["row_drafts"][row]
        is_decode = row < rank["decode_rows"]
        known = seats.tokens[seat] + seats.drafts.get(seat, [])[:drafts]
        for offset in range(lens[row]):
            position, index = starts[row] + offset, begin + offset
            rows[index] = row
            positions[index] = min(position, limits["max_model_len"] - 1)
            if is_decode and offset > drafts:
                continue
            ids[index] = known[position]
            block = tables[row][position // limits["block_size"]]
            slots[index] = block * limits["block_size"] + position % limits["block_size"]
        end = begin + lens[row]
        logits = rank["row_logits"][row]
        first = {LOGITS_NONE: end, LOGITS_LAST: end - 1}.get(logits, begin)
        wanted += range(first, begin + 1 + drafts if logits == LOGITS_VERIFY else end)
        begin = end
    offsets = np.cumsum([0, *lens]).tolist()
    offsets += [offsets[-1]] * (limits["row_capacity"] + 1 - len(offsets))
    kv_lens = [start + length for start, length in zip(starts, lens, strict=True)]
    width = limits["table_width"]
    table = [row + [0] * (width - len(row)) for row in tables]
    empty_rows = limits["row_capacity"] - len(lens)
    return {
        "input_ids": ids,
        "positions": positions,
        "slots": slots,
        "query_start_loc": offsets,
        "kv_lens": kv_lens + [0] * empty_rows,
        "block_table": table + [[0] * width] * empty_rows,
        "request_index": rows,
        "logits_index": wanted + [-1] * (size - len(wanted)),
        "logits_count": len(wanted),
    }

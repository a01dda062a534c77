"""Decoded plans from `tests/vectors/rules`: packed for the wire, and turned into arrays, from the rules' text alone.

Shares no code with `_core`: field order, byte order and padding values are written out once more.
"""

from __future__ import annotations

import dataclasses
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

_MASKS: Json = {"seats": "words", "generations": "words", "counts": "words", "lengths": "words", "words": "words"}

LOGITS_NONE, LOGITS_LAST, LOGITS_VERIFY, LOGITS_ALL = range(4)
MODES = ("full", "piecewise", "eager")
TOKEN = 16
"""What every row that samples emits."""
DRAFTS = [17, 18, 14]
"""What it proposes, as a prompt lookup finds it after `TOKEN`."""


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


def masks_bytes(masks: Json) -> bytes:
    """The msgpack body of a step's masks."""
    return msgpack.packb(_structure(masks, _MASKS))


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

    def start(self, rank: Json, row: int) -> int:
        """Where a row starts: rule 16 leaves it to the worker's own newest token where the plan only says at most."""
        is_decode = row < rank["decode_rows"]
        return len(self.tokens[rank["row_seats"][row]]) - 1 if is_decode else int(rank["row_starts"][row])

    def outcomes(self, rank: Json, accepted: int, token: int) -> dict[int, list[int]]:
        """What every row that samples emits: the drafts it accepts (a decode row), then `token`; by seat."""
        emitted: dict[int, list[int]] = {}
        for row, seat in enumerate(rank.get("row_seats", [])):
            if rank["row_logits"][row] != LOGITS_NONE:
                drafts = self.drafts[seat][:accepted] if row < rank["decode_rows"] else []
                emitted[seat] = [*drafts, token]
        return emitted

    def commit(self, emitted: dict[int, list[int]], drafts: list[int]) -> None:
        """Every seat that emitted knows its tokens, and proposes `drafts`."""
        for seat, tokens in emitted.items():
            self.tokens[seat] += tokens
            self.drafts[seat] = drafts


@dataclasses.dataclass
class LaidRow:
    """One row of a pass: tokens (None where none is known), the position of the first, blocks, and wanted offsets."""

    tokens: list[int | None]
    start: int
    blocks: list[int]
    wanted: list[int]


def lay_out(limits: Json, a_pass: Json, rank_index: int, rows: list[LaidRow]) -> Json:
    """The arrays of a pass, by the text of rules 3, 4, 7 and 8."""
    longest, block_size = limits["max_model_len"], limits["block_size"]
    lens = [len(row.tokens) for row in rows]
    kv_lens = [min(row.start, longest - 1) + len(row.tokens) for row in rows]
    tables = [row.blocks for row in rows]
    if not rows:
        lens, kv_lens, tables = [a_pass["tokens"][rank_index]], [a_pass["tokens"][rank_index]], [[]]
    while MODES[a_pass["mode"]] == "full" and len(lens) < a_pass["rows_padded"]:
        lens, kv_lens, tables = [*lens, a_pass["query_len"]], [*kv_lens, a_pass["query_len"]], [*tables, []]
    size, width = limits["token_capacity"], limits["table_width"]
    ids, positions, slots, indices = [0] * size, [0] * size, [-1] * size, [-1] * size
    wanted: list[int] = []
    begin = 0
    for number, row in enumerate(rows):
        for offset, token in enumerate(row.tokens):
            position, index = row.start + offset, begin + offset
            indices[index] = number
            positions[index] = min(position, longest - 1)
            if token is None:
                continue
            ids[index] = token
            if position < longest and position // block_size < len(row.blocks):
                slots[index] = row.blocks[position // block_size] * block_size + position % block_size
        wanted += [begin + offset for offset in row.wanted]
        begin += len(row.tokens)
    offsets = np.cumsum([0, *lens]).tolist()
    empty_rows = limits["row_capacity"] - len(lens)
    return {
        "input_ids": ids,
        "positions": positions,
        "slots": slots,
        "query_start_loc": offsets + [offsets[-1]] * empty_rows,
        "kv_lens": kv_lens + [0] * empty_rows,
        "block_table": [row + [0] * (width - len(row)) for row in tables] + [[0] * width] * empty_rows,
        "request_index": indices,
        "logits_index": wanted + [-1] * (size - len(wanted)),
        "logits_count": len(wanted),
    }


def expected_arrays(limits: Json, group: Json, rank: Json, rank_index: int, seats: Seats) -> Json:
    """The target's arrays, by the text of rules 9 and 20 besides."""
    rows = []
    for row, seat in enumerate(rank.get("row_seats", [])):
        start, length, drafts = seats.start(rank, row), rank["row_query_lens"][row], rank["row_drafts"][row]
        known: list[int | None] = [*seats.tokens[seat]]
        if row < rank["decode_rows"]:
            known += seats.drafts.get(seat, [])[:drafts]
            known += [None] * (start + length - len(known))
        logits = rank["row_logits"][row]
        first = {LOGITS_NONE: length, LOGITS_LAST: length - 1}.get(logits, 0)
        wanted = list(range(first, 1 + drafts if logits == LOGITS_VERIFY else length))
        rows.append(LaidRow(known[start : start + length], start, seats.blocks[seat], wanted))
    return lay_out(limits, group["passes"][0], rank_index, rows)


def expected_drafter_arrays(
    limits: Json, group: Json, rank: Json, rank_index: int, seats: Seats, emitted: dict[int, list[int]], layers: int
) -> list[Json]:
    """The arrays of the extend pass in every layer, then of the single passes, by the text of rule 18."""
    passes = []
    for layer in range(1, layers + 1):
        rows = []
        for row, seat in enumerate(rank.get("row_seats", [])):
            start, length = seats.start(rank, row), rank["row_query_lens"][row]
            known = [*seats.tokens[seat], *emitted.get(seat, [])]
            fed = [known[at + layer] if at + layer < len(known) else None for at in range(start, start + length)]
            wanted = [_last(seats, rank, row, emitted) - start] if group["k_draft"] and seat in emitted else []
            rows.append(LaidRow(fed, start, seats.blocks[seat], wanted))
        passes.append(lay_out(limits, group["passes"][1], rank_index, rows))
    for index in range(2, group["k_draft"] + 1):
        rows = []
        for row, seat in enumerate(rank.get("row_seats", [])):
            if seat in emitted:
                position = _last(seats, rank, row, emitted) + max(0, index - layers)
                rows.append(LaidRow([DRAFTS[index - 2]], position, seats.blocks[seat], [0]))
        passes.append(lay_out(limits, group["passes"][index], rank_index, rows))
    return passes


def _last(seats: Seats, rank: Json, row: int, emitted: dict[int, list[int]]) -> int:
    """The row's last position that counts: what it emitted last comes right after it."""
    if row < rank["decode_rows"]:
        return seats.start(rank, row) + len(emitted[rank["row_seats"][row]]) - 1
    return int(rank["row_starts"][row] + rank["row_query_lens"][row]) - 1

"""The last look at a drafter's passes: `checks` for any pass, and here what rule 18 says of one beside its target.

Like `checks` it is written from the rules' text alone and repairs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.worker.arrays import StepArrays
from paceline.worker.checks import AnyLaunch, LaunchRefusedError

_RULE = "rule 18"
_NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class TargetCopy:
    """What the target pass was given, kept while its arrays are rewritten."""

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    query_start_loc: NDArray[np.int32]
    kv_lens: NDArray[np.int32]
    block_table: NDArray[np.int32]
    request_index: NDArray[np.int32]

    @classmethod
    def of(cls, launch: AnyLaunch, arrays: StepArrays) -> TargetCopy:
        """Copy the request part of a target pass."""
        rows, tokens = launch.request_rows, launch.request_tokens
        return cls(
            input_ids=arrays.input_ids[:tokens].copy(),
            positions=arrays.positions[:tokens].copy(),
            slots=arrays.slots[:tokens].copy(),
            query_start_loc=arrays.query_start_loc[: rows + 1].copy(),
            kv_lens=arrays.kv_lens[:rows].copy(),
            block_table=arrays.block_table[:rows].copy(),
            request_index=arrays.request_index[:tokens].copy(),
        )


@dataclass(frozen=True, slots=True)
class Drafted:
    """Where drafts go on: per row that sampled, its row of the target and the position whose next token is the newest."""

    rows: NDArray[np.int32]
    positions: NDArray[np.int64]


def check_extend(launch: AnyLaunch, arrays: StepArrays, target: TargetCopy, layer: int) -> Drafted:
    """Check an extend pass of drafter layer `layer`, counted from 1. Raises `LaunchRefusedError`."""
    tokens = len(target.input_ids)
    _equal(launch, "tokens of the extend pass", tokens, launch.request_tokens)
    for name in ("positions", "request_index"):
        _same(launch, f"{name} of the extend pass at", getattr(target, name), getattr(arrays, name)[:tokens])
    for name in ("query_start_loc", "kv_lens", "block_table"):
        kept = getattr(target, name)
        _same(launch, f"{name} of the extend pass at", kept.ravel(), getattr(arrays, name)[: len(kept)].ravel())
    slots, ids = arrays.slots[:tokens], arrays.input_ids[:tokens]
    is_written = slots != _NO_SLOT
    _same(launch, "slot of the extend pass at", np.where(is_written, target.slots, _NO_SLOT), slots)
    # A row's last token that counts is followed by the newest token or by lookahead, which the target was not given.
    lasts = _last_written(is_written, target)
    is_known = is_written & (np.arange(tokens) < lasts[target.request_index])
    # Nor was it given the token that a deeper layer needs at the end of a row.
    ends = target.query_start_loc[1:][target.request_index]
    is_known &= np.arange(tokens) + layer < ends
    shifted = np.where(is_known, target.input_ids[np.minimum(np.arange(tokens) + layer, tokens - 1)], ids) if tokens else ids
    _same(launch, "token of the extend pass at", shifted, ids)
    index = arrays.logits_index[: launch.logits]
    rows = target.request_index[index]
    _equal(launch, "rows that draft", len(np.unique(rows)), launch.logits)
    if layer == 1:
        # A deeper layer is fed these tokens in the single passes, which know the drafts that it needs.
        _same(launch, "slot of a token that drafts", target.slots[index], slots[index])
    return Drafted(rows=rows, positions=target.positions[index])


def check_single(launch: AnyLaunch, arrays: StepArrays, target: TargetCopy, drafted: Drafted, max_model_len: int) -> None:
    """Check a single pass `launch.ahead` positions past the last one that counts. Raises `LaunchRefusedError`."""
    rows = len(drafted.rows)
    _equal(launch, "rows of a single pass", rows, launch.request_rows)
    _equal(launch, "logits of a single pass", rows, launch.logits)
    _same(launch, "logits of a single pass at", np.arange(rows), arrays.logits_index[:rows])
    positions = np.minimum(drafted.positions + launch.ahead, max_model_len - 1)
    _same(launch, "position of a single pass at", positions, arrays.positions[:rows])
    _same(launch, "kv_len of a single pass at", positions + 1, arrays.kv_lens[:rows])
    expected = target.block_table[drafted.rows]
    _same(launch, "block id of a single pass at", expected.ravel(), arrays.block_table[:rows].ravel())


def _last_written(is_written: NDArray[np.bool_], target: TargetCopy) -> NDArray[np.int64]:
    """Per row of the target, its last token with a slot; one before its first where there is none."""
    starts = target.query_start_loc
    lasts = starts[:-1].astype(np.int64) - 1
    written = np.flatnonzero(is_written)
    np.maximum.at(lasts, target.request_index[written], written)
    return lasts


def _equal(launch: AnyLaunch, field: str, expected: int, got: int) -> None:
    if expected != got:
        raise LaunchRefusedError(_RULE, field, expected, got, launch.dp_rank, launch.step)


def _same(launch: AnyLaunch, field: str, expected: np.ndarray, got: np.ndarray) -> None:
    is_wrong = expected != got
    if is_wrong.any():
        index = int(is_wrong.argmax())
        raise LaunchRefusedError(_RULE, f"{field} {index}", int(expected[index]), int(got[index]), launch.dp_rank, launch.step)

"""The worker's checks of a drafter's passes against the target's: each way to break rule 18 is named with both numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from paceline.attention.contracts import REFERENCE
from paceline.worker.arrays import StepArrays
from paceline.worker.checks import Launch, LaunchLimits, LaunchRefusedError, check_launch
from paceline.worker.drafter_checks import Drafted, TargetCopy, check_extend, check_single

LIMITS = LaunchLimits(max_model_len=32, k_max=3, block_size=4, block_count=20, vocab_size=50)
Mutation = Callable[[StepArrays], None]

# A decode row of 3 tokens at 9 (one draft is accepted), the end of a prompt at 4, and a chunk at 0.
BLOCKS = [[3, 4, 5], [9, 8, 10], [11, 12, 13]]
COMPUTED, LENGTHS = [9, 4, 0], [3, 4, 4]
TARGET_TOKENS = [7, 8, 9, 20, 21, 22, 23, 30, 31, 32, 33]
# Shifted by one: the accepted draft, the token emitted, nothing; the prompt and its first token; the chunk and lookahead.
EXTEND_TOKENS = [8, 40, 0, 21, 22, 23, 41, 31, 32, 33, 34]
LAST_TOKENS = [1, 6]


def arrays_of(tokens: list[int], unwritten: list[int], logits: list[int]) -> StepArrays:
    arrays = StepArrays.allocate(row_capacity=4, token_capacity=16, table_width=9)
    token = 0
    for row, (blocks, computed, length) in enumerate(zip(BLOCKS, COMPUTED, LENGTHS, strict=True)):
        for position in range(computed, computed + length):
            arrays.input_ids[token], arrays.positions[token], arrays.request_index[token] = tokens[token], position, row
            arrays.slots[token] = -1 if token in unwritten else blocks[position // 4] * 4 + position % 4
            token += 1
        arrays.query_start_loc[row + 1 :] = token
        arrays.kv_lens[row] = computed + length
        arrays.block_table[row, : len(blocks)] = blocks
    arrays.logits_index[: len(logits)] = logits
    return arrays


def launch_of(rows: int, tokens: int, logits: int) -> Launch:
    sizes = {"rows": rows, "tokens": tokens, "rows_padded": rows, "tokens_padded": tokens, "logits": logits}
    return Launch(dp_rank=1, step=5, mode="eager", query_len=0, is_dummy=False, **sizes)


def target() -> TargetCopy:
    arrays = arrays_of(TARGET_TOKENS, [], [0, 1, 2, 6])
    launch = launch_of(3, 11, 4)
    check_launch(launch, arrays, LIMITS, REFERENCE)
    return TargetCopy.of(launch, arrays)


def extend() -> tuple[Launch, StepArrays]:
    return launch_of(3, 11, 2), arrays_of(EXTEND_TOKENS, [2], LAST_TOKENS)


def single(ahead: int) -> tuple[Launch, StepArrays]:
    """One token for each of the two rows that sampled; draft positions past the second block have no slot."""
    arrays = StepArrays.allocate(row_capacity=4, token_capacity=16, table_width=9)
    for row, last in enumerate((10, 7)):
        position = last + ahead
        block = BLOCKS[row][position // 4] if position // 4 < 3 else None
        arrays.input_ids[row], arrays.positions[row], arrays.request_index[row] = 44, position, row
        arrays.slots[row] = -1 if block is None else block * 4 + position % 4
        arrays.query_start_loc[row + 1 :] = row + 1
        arrays.kv_lens[row] = position + 1
        arrays.block_table[row, :3] = BLOCKS[row]
    arrays.logits_index[:2] = [0, 1]
    return replace(launch_of(2, 2, 2), ahead=ahead), arrays


def drafted() -> Drafted:
    return check_extend(*extend(), target(), 1)


def test_good_passes_pass() -> None:
    launch, arrays = extend()
    check_launch(launch, arrays, LIMITS, REFERENCE)
    found = drafted()
    assert (found.rows.tolist(), found.positions.tolist()) == ([0, 1], [10, 7])
    for ahead in (0, 1, 2, 3):
        launch, arrays = single(ahead)
        check_launch(launch, arrays, LIMITS, REFERENCE)
        check_single(launch, arrays, target(), found, LIMITS.max_model_len)


def test_a22_an_idle_rank_has_one_row_in_every_drafter_pass() -> None:
    arrays = StepArrays.allocate(row_capacity=4, token_capacity=16, table_width=9)
    arrays.write_dummy(1, 3)
    dummy = replace(launch_of(1, 3, 0), is_dummy=True)
    check_launch(dummy, arrays, LIMITS, REFERENCE)
    idle = check_extend(dummy, arrays, TargetCopy.of(dummy, arrays), 1)
    assert idle.rows.tolist() == []
    arrays.write_dummy(1, 1)
    one = replace(launch_of(1, 1, 0), is_dummy=True)
    check_launch(one, arrays, LIMITS, REFERENCE)
    check_single(one, arrays, TargetCopy.of(dummy, arrays), idle, LIMITS.max_model_len)
    for rows in (0, 2):
        with pytest.raises(LaunchRefusedError, match=r"rule [14]: (dummy )?rows: "):
            check_launch(replace(one, rows=rows), arrays, LIMITS, REFERENCE)


def test_a_second_layer_is_shifted_by_two() -> None:
    tokens = [40, 0, 0, 22, 23, 41, 0, 32, 33, 34, 35]
    arrays = arrays_of(tokens, [1, 2, 6], LAST_TOKENS)
    check_extend(launch_of(3, 11, 2), arrays, target(), 2)
    arrays.input_ids[3] = 21
    with pytest.raises(LaunchRefusedError, match="rule 18: token of the extend pass at 3: expected 22, got 21"):
        check_extend(launch_of(3, 11, 2), arrays, target(), 2)


def put(name: str, index: object, value: int) -> Mutation:
    """A mutation that writes one value into one array."""

    def mutate(arrays: StepArrays) -> None:
        getattr(arrays, name)[index] = value

    return mutate


EXTEND_FAULTS = {
    "another position": (put("positions", 4, 6), r"positions of the extend pass at 4: expected 5, got 6 \(dp_rank 1, step 5\)"),
    "another row": (put("request_index", 3, 0), "request_index of the extend pass at 3"),
    "another start": (put("query_start_loc", 1, 2), "query_start_loc of the extend pass at 1: expected 3, got 2"),
    "another kv length": (put("kv_lens", 2, 5), "kv_lens of the extend pass at 2: expected 4, got 5"),
    "another block": (put("block_table", (1, 0), 2), "block_table of the extend pass at 9: expected 9, got 2"),
    "a slot that is not the target's": (put("slots", 3, 44), "slot of the extend pass at 3"),
    "the target's own token": (put("input_ids", 3, 20), "token of the extend pass at 3: expected 21, got 20"),
    "a rejected draft": (put("input_ids", 0, 9), "token of the extend pass at 0: expected 8, got 9"),
    "two drafts of a row": (put("logits_index", 1, 0), "rows that draft: expected 1, got 2"),
    "a draft from a token that is not known": (put("logits_index", 0, 2), "slot of a token that drafts 0"),
}


@pytest.mark.parametrize("fault", list(EXTEND_FAULTS))
def test_each_broken_extend_pass_is_named(fault: str) -> None:
    launch, arrays = extend()
    mutate, expected = EXTEND_FAULTS[fault]
    mutate(arrays)
    with pytest.raises(LaunchRefusedError, match=f"rule 18: {expected}"):
        check_extend(launch, arrays, target(), 1)


SINGLE_FAULTS = {
    "the position before": (put("positions", 0, 10), "position of a single pass at 0: expected 11, got 10"),
    "keys past its own": (put("kv_lens", 1, 10), "kv_len of a single pass at 1: expected 9, got 10"),
    "blocks of another row": (put("block_table", (0, 1), 8), "block id of a single pass at 1: expected 4, got 8"),
    "logits of another row": (put("logits_index", 0, 1), "logits of a single pass at 0: expected 0, got 1"),
}


@pytest.mark.parametrize("fault", list(SINGLE_FAULTS))
def test_each_broken_single_pass_is_named(fault: str) -> None:
    launch, arrays = single(1)
    mutate, expected = SINGLE_FAULTS[fault]
    mutate(arrays)
    with pytest.raises(LaunchRefusedError, match=f"rule 18: {expected}"):
        check_single(launch, arrays, target(), drafted(), LIMITS.max_model_len)


def test_rows_of_a_single_pass_are_those_that_sampled() -> None:
    launch, arrays = single(0)
    one = Drafted(rows=np.array([0], np.int32), positions=np.array([10]))
    with pytest.raises(LaunchRefusedError, match="rows of a single pass: expected 1, got 2"):
        check_single(launch, arrays, target(), one, LIMITS.max_model_len)


def test_drafts_may_lack_blocks_but_what_they_follow_may_not() -> None:
    launch, arrays = single(3)
    # Positions 0 to 10 of the first row need three blocks, and its draft at 13 a fourth, which is not there.
    check_launch(launch, arrays, LIMITS, REFERENCE)
    with pytest.raises(LaunchRefusedError, match="rule 9: blocks of row 0: expected 4"):
        check_launch(replace(launch, ahead=0), arrays, LIMITS, REFERENCE)
    arrays.block_table[0, 2] = 0
    arrays.slots[0] = -1
    with pytest.raises(LaunchRefusedError, match="rule 9: blocks of row 0: expected 3, got 2"):
        check_launch(launch, arrays, LIMITS, REFERENCE)

"""The worker's tensor checks: a good launch passes, and each broken rule is refused by name with both numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from paceline.attention.contracts import CONTRACTS, REFERENCE, TRTLLM
from paceline.worker.arrays import StepArrays
from paceline.worker.checks import Launch, LaunchLimits, LaunchRefusedError, check_launch

LIMITS = LaunchLimits(max_model_len=32, k_max=3, block_size=4, block_count=20, vocab_size=50)
TABLE_WIDTH = 12

Mutation = Callable[[StepArrays], None]


def empty_arrays() -> StepArrays:
    return StepArrays.allocate(row_capacity=8, token_capacity=32, table_width=TABLE_WIDTH)


def write_row(arrays: StepArrays, row: int, computed: int, query_len: int, blocks: list[int], drafts: int | None = None) -> None:
    """Write a request's row after the rows before it; tokens past `drafts` are placeholders."""
    begin = int(arrays.query_start_loc[row])
    arrays.query_start_loc[row + 1 :] = begin + query_len
    arrays.kv_lens[row] = computed + query_len
    arrays.block_table[row, : len(blocks)] = blocks
    for offset in range(query_len):
        position = computed + offset
        is_placeholder = drafts is not None and offset > drafts
        arrays.request_index[begin + offset] = row
        arrays.positions[begin + offset] = min(position, LIMITS.max_model_len - 1)
        if not is_placeholder:
            arrays.input_ids[begin + offset] = 7 + offset
            arrays.slots[begin + offset] = blocks[position // 4] * 4 + position % 4


def write_padding_row(arrays: StepArrays, row: int, query_len: int) -> None:
    arrays.query_start_loc[row + 1 :] = arrays.query_start_loc[row] + query_len
    arrays.kv_lens[row] = query_len


def full() -> tuple[Launch, StepArrays]:
    """Two decode rows of q 3, one of them with placeholders, and two padding rows."""
    arrays = empty_arrays()
    write_row(arrays, 0, computed=9, query_len=3, blocks=[3, 4, 5], drafts=2)
    write_row(arrays, 1, computed=5, query_len=3, blocks=[9, 8], drafts=0)
    write_padding_row(arrays, 2, 3)
    write_padding_row(arrays, 3, 3)
    arrays.logits_index[:4] = [0, 1, 2, 3]
    launch = Launch(
        dp_rank=1, step=12, mode="full", query_len=3, rows=2, tokens=6, is_dummy=False, rows_padded=4, tokens_padded=12, logits=4
    )
    return launch, arrays


def eager() -> tuple[Launch, StepArrays]:
    """One decode row and a prompt chunk; another rank has more of both."""
    arrays = empty_arrays()
    write_row(arrays, 0, computed=9, query_len=1, blocks=[3, 4, 5])
    write_row(arrays, 1, computed=4, query_len=7, blocks=[9, 8, 10])
    arrays.logits_index[:2] = [0, 7]
    launch = Launch(
        dp_rank=0, step=3, mode="eager", query_len=0, rows=2, tokens=8, is_dummy=False, rows_padded=5, tokens_padded=20, logits=2
    )
    return launch, arrays


def dummy() -> tuple[Launch, StepArrays]:
    """An idle rank's dummy of one row in a FULL pass of four."""
    arrays = empty_arrays()
    for row in range(4):
        write_padding_row(arrays, row, 3)
    launch = Launch(
        dp_rank=1, step=12, mode="full", query_len=3, rows=1, tokens=3, is_dummy=True, rows_padded=4, tokens_padded=12, logits=0
    )
    return launch, arrays


@pytest.mark.parametrize("make", [full, eager, dummy])
@pytest.mark.parametrize("contract", [REFERENCE, CONTRACTS["flashinfer"]])
def test_good_launches_pass(make: Callable[[], tuple[Launch, StepArrays]], contract) -> None:
    launch, arrays = make()
    check_launch(launch, arrays, LIMITS, contract)


@pytest.mark.parametrize("query_len", range(1, 9))
def test_a01_dummy_is_as_long_as_the_verify_width(query_len: int) -> None:
    arrays = empty_arrays()
    write_padding_row(arrays, 0, query_len)
    launch = replace(dummy()[0], query_len=query_len, tokens=query_len, rows_padded=1, tokens_padded=query_len)
    check_launch(launch, arrays, LIMITS, REFERENCE)
    if query_len > 1:
        short = empty_arrays()
        write_padding_row(short, 0, 1)
        with pytest.raises(LaunchRefusedError, match="query_start_loc"):
            check_launch(launch, short, LIMITS, REFERENCE)
        with pytest.raises(LaunchRefusedError, match=f"rule 3: tokens: expected {query_len}, got 1 "):
            check_launch(replace(launch, tokens=1), short, LIMITS, REFERENCE)


def test_a02_rows_padded_without_tokens() -> None:
    launch, arrays = full()
    with pytest.raises(LaunchRefusedError, match=r"rule 4: tokens_padded: expected 12, got 6 \(dp_rank 1, step 12\)"):
        check_launch(replace(launch, tokens_padded=6), arrays, LIMITS, REFERENCE)


def put(name: str, index: object, value: int) -> Mutation:
    """A mutation that writes one value into one array."""

    def mutate(arrays: StepArrays) -> None:
        getattr(arrays, name)[index] = value

    return mutate


FULL_FAULTS: dict[str, tuple[Mutation, str]] = {
    "first start": (put("query_start_loc", 0, 1), "rule 7: query_start_loc"),
    "short padding row": (put("query_start_loc", 3, 7), "rule 7: query length of a row: expected 3"),
    "start past the rows": (put("query_start_loc", 8, 0), "rule 7: query_start_loc past the rows"),
    "kv below q": (put("kv_lens", 2, 2), "rule 7: kv_len of row 2: expected 3, got 2"),
    "kv of padding": (put("kv_lens", 3, 5), "rule 7: kv_len of a padding row: expected 3, got 5"),
    "kv past the rows": (put("kv_lens", 6, 1), "rule 7: kv_len past the rows"),
    "kv past the table": (put("kv_lens", 0, 36), "rule 9: kv_len: expected 35, got 36"),
    "block out of the pool": (put("block_table", (0, 1), 20), "rule 7: block id: expected 19, got 20"),
    "negative block": (put("block_table", (1, 4), -1), "rule 7: block id: expected 0, got -1"),
    "missing block": (put("block_table", (0, 1), 0), "rule 9: blocks of row 0"),
    "block of padding": (put("block_table", (2, 0), 5), "rule 7: block id of a padding row"),
    "padding token id": (put("input_ids", 6, 1), "rule 7: token id of padding: expected 0, got 1"),
    "padding position": (put("positions", 11, 2), "rule 7: position of padding"),
    "padding slot": (put("slots", 7, 5), "rule 7: slot of padding: expected -1, got 5"),
    "padding past the pass": (put("slots", 20, 5), "rule 7: slot of padding"),
    "padding request": (put("request_index", 6, 2), "rule 7: request index of padding"),
    "token outside the vocabulary": (put("input_ids", 1, 50), "rule 9: token id: expected 49, got 50"),
    "negative token": (put("input_ids", 1, -1), "rule 9: token id: expected 0"),
    "token of another row": (put("request_index", 2, 1), "rule 7: request index of token 2"),
    "position off by one": (put("positions", 1, 11), "rule 9: position of token 1: expected 10, got 11"),
    "write to the null block": (put("slots", 0, 1), "rule 7: slot: expected 4, got 1"),
    "slot below -1": (put("slots", 0, -2), "rule 7: slot: expected 4, got -2"),
    "slot out of the pool": (put("slots", 0, 80), "rule 7: slot: expected 79, got 80"),
    "two writes to one slot": (put("slots", 1, 21), "rule 7: writes to slot 21"),
    "slot beside the table": (put("slots", 0, 40), "rule 16: slot of write 0: expected 21, got 40"),
    "logits of padding": (put("logits_index", 3, 6), "rule 20: logits index: expected 5, got 6"),
    "logits out of order": (put("logits_index", 1, 0), "rule 20: step between logits indices"),
    "logits past the count": (put("logits_index", 4, 5), "rule 20: logits index past the count"),
}


@pytest.mark.parametrize("fault", list(FULL_FAULTS))
def test_each_broken_rule_is_named(fault: str) -> None:
    launch, arrays = full()
    mutate, expected = FULL_FAULTS[fault]
    mutate(arrays)
    with pytest.raises(LaunchRefusedError) as caught:
        check_launch(launch, arrays, LIMITS, REFERENCE)
    assert expected in str(caught.value)
    assert (caught.value.dp_rank, caught.value.step) == (1, 12)
    assert caught.value.expected != caught.value.got


def test_ragged_rows_need_a_token_each() -> None:
    launch, arrays = eager()
    arrays.query_start_loc[1] = 0
    with pytest.raises(LaunchRefusedError, match="rule 3: query length of a row: expected 1, got 0"):
        check_launch(launch, arrays, LIMITS, REFERENCE)


def test_contract_of_another_backend() -> None:
    launch, arrays = full()
    with pytest.raises(LaunchRefusedError, match="attention contract trtllm: block size: expected 16, got 4"):
        check_launch(launch, arrays, LIMITS, TRTLLM)
    with pytest.raises(LaunchRefusedError, match="attention contract narrow: rows: expected 3, got 4"):
        check_launch(launch, arrays, LIMITS, replace(REFERENCE, name="narrow", row_capacity=3))
    with pytest.raises(LaunchRefusedError, match="uniform query length: expected 2, got 3"):
        check_launch(launch, arrays, LIMITS, replace(REFERENCE, uniform_query_len_max=2))
    with pytest.raises(LaunchRefusedError, match="block table width modulo alignment: expected 0, got 2"):
        check_launch(launch, arrays, LIMITS, replace(REFERENCE, table_alignment=5))
    wide = replace(arrays, kv_lens=arrays.kv_lens.astype(np.int64))
    with pytest.raises(LaunchRefusedError, match="bytes of an element of kv_lens: expected 4, got 8"):
        check_launch(launch, wide, LIMITS, REFERENCE)

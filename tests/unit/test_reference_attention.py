"""The reference backend: scattered blocks read like consecutive ones, and padding neither writes nor spreads."""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache, KvLayout
from paceline.attention.reference import ReferenceAttention

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, BLOCKS = 4, 2, 8, 4, 16


def make_backend() -> ReferenceAttention:
    layout = KvLayout(layer_count=1, kv_head_count=KV_HEADS, key_size=HEAD_SIZE, value_size=HEAD_SIZE)
    return ReferenceAttention(KvCache(layout, block_count=BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32))


def batch_of(rows: list[tuple[int, int, list[int]]]) -> AttentionBatch:
    """A batch of (computed, query length, blocks); no blocks makes a padding row."""
    starts, kv_lens, slots = [0], [], []
    table = torch.zeros(len(rows), 6, dtype=torch.int32)
    for index, (computed, query_len, blocks) in enumerate(rows):
        starts.append(starts[-1] + query_len)
        kv_lens.append(computed + query_len)
        table[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(computed, computed + query_len):
            slots.append(blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE if blocks else -1)
    return AttentionBatch(
        rows=len(rows),
        tokens=starts[-1],
        uniform_query_len=0,
        query_start_loc=torch.tensor(starts, dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        block_table=table,
        slots=torch.tensor(slots),
    )


def random_heads(tokens: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randn(tokens, HEADS + 2 * KV_HEADS, HEAD_SIZE, generator=generator)
    return heads[:, :HEADS], heads[:, HEADS : HEADS + KV_HEADS], heads[:, HEADS + KV_HEADS :]


def expected_causal(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A whole sequence at once, straight from the definition."""
    queries, keys, values = (heads.transpose(0, 1) for heads in (queries, keys, values))
    output = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return output.transpose(0, 1).flatten(1)


def test_chunks_over_scattered_and_consecutive_blocks() -> None:
    queries, keys, values = random_heads(17, seed=1)
    expected = expected_causal(queries, keys, values)
    for blocks in ([3, 4, 5, 6, 7], [9, 2, 14, 1, 5]):
        backend = make_backend()
        for begin, end in ((0, 6), (6, 7), (7, 13), (13, 17)):
            backend.prepare(batch_of([(begin, end - begin, blocks)]))
            got = backend.attend(0, queries[begin:end], keys[begin:end], values[begin:end])
            torch.testing.assert_close(got, expected[begin:end])


def test_poisoned_padding_changes_no_real_row() -> None:
    queries, keys, values = random_heads(15, seed=2)
    rows = [(0, 5, [3, 4]), (0, 5, [8, 5])]
    alone = make_backend()
    alone.prepare(batch_of(rows))
    expected = alone.attend(0, queries[:10], keys[:10], values[:10])
    padded = make_backend()
    padded.prepare(batch_of([*rows, (0, 5, [])]))
    for poison in (float("nan"), float("inf"), 1e30):
        for heads in (queries, keys, values):
            heads[10:] = poison
        got = padded.attend(0, queries, keys, values)
        assert torch.equal(got[:10], expected)
    assert not padded.cache.keys[0][:, :BLOCK_SIZE].any()
    assert not padded.cache.values[0][:, :BLOCK_SIZE].any()
    # The last slot of the pool is where an index of -1 would write.
    assert not padded.cache.keys[0][:, -1].any()


def test_padding_rows_are_finite() -> None:
    backend = make_backend()
    backend.prepare(batch_of([(0, 6, []), (0, 6, [])]))
    assert torch.isfinite(backend.attend(0, *random_heads(12, seed=3))).all()
    assert not backend.cache.keys[0].any()


def test_block_copies_and_zeroings() -> None:
    cache = make_backend().cache
    for pool in (*cache.keys, *cache.values):
        pool.copy_(torch.arange(pool.numel()).view_as(pool))
    before = cache.keys[0].clone().view(KV_HEADS, BLOCKS, -1)
    cache.copy_blocks([(2, 5), (5, 6)])
    cache.zero_blocks([2])
    after = cache.keys[0].view(KV_HEADS, BLOCKS, -1)
    assert torch.equal(after[:, 5], before[:, 2])
    assert torch.equal(after[:, 6], before[:, 5])
    assert not after[:, 2].any()
    assert torch.equal(after[:, 7], before[:, 7])

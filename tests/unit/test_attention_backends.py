"""Every backend that runs on a CPU: scattered blocks read like consecutive ones, and padding neither writes nor spreads."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from paceline.attention.cpu import CpuAttention
from paceline.attention.interface import AttentionBackend, AttentionBatch
from paceline.attention.kv_cache import KvCache, KvLayout
from paceline.attention.reference import ReferenceAttention

HEADS, KV_HEADS, HEAD_SIZE, BLOCK_SIZE, BLOCKS = 4, 2, 8, 4, 16
LATENT_SIZE, VALUE_SIZE, SCALE = 12, 9, 0.3

Kind = Callable[[KvCache], AttentionBackend]


def short_rows_by_kernel(cache: KvCache) -> AttentionBackend:
    """The `cpu` backend with both of its ways in use: rows of one or two queries, and longer ones."""
    return CpuAttention(cache, query_len_max=2)


KINDS: list[Kind] = [ReferenceAttention, CpuAttention, short_rows_by_kernel]


@pytest.fixture(params=KINDS, ids=["reference", "cpu", "cpu and torch"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """One kind of backend."""
    chosen: Kind = request.param
    return chosen


def make_backend(kind: Kind) -> AttentionBackend:
    layout = KvLayout(layer_count=1, kv_head_count=KV_HEADS, key_size=HEAD_SIZE, value_size=HEAD_SIZE)
    return kind(KvCache(layout, block_count=BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32))


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


def random_heads(tokens: int, seed: int) -> torch.Tensor:
    """Queries, keys and values of a sequence."""
    return torch.randn(tokens, HEADS + 2 * KV_HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(seed))


def split(heads: torch.Tensor) -> list[torch.Tensor]:
    """Queries, keys and values, head-major."""
    return [part.transpose(0, 1) for part in heads.split_with_sizes((HEADS, KV_HEADS, KV_HEADS), dim=1)]


def expected_causal(heads: torch.Tensor) -> torch.Tensor:
    """A whole sequence at once, straight from the definition."""
    queries, keys, values = split(heads)
    output = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return output.transpose(0, 1).flatten(1)


def test_chunks_over_scattered_and_consecutive_blocks(kind: Kind) -> None:
    heads = random_heads(17, seed=1)
    expected = expected_causal(heads)
    for blocks in ([3, 4, 5, 6, 7], [9, 2, 14, 1, 5]):
        backend = make_backend(kind)
        for begin, end in ((0, 6), (6, 7), (7, 13), (13, 17)):
            backend.prepare(batch_of([(begin, end - begin, blocks)]))
            got = backend.attend(0, heads[begin:end])
            torch.testing.assert_close(got, expected[begin:end])


def expected_windowed(heads: torch.Tensor, window: int) -> torch.Tensor:
    """A whole sequence at once, each query seeing `window` keys back from its own."""
    queries, keys, values = split(heads)
    seen = torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool).tril().triu(1 - window)
    output = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, enable_gqa=True)
    return output.transpose(0, 1).flatten(1)


@pytest.mark.parametrize("window", [1, 3, 4, 5, 16, 17, 40])
def test_windows_over_chunks_and_blocks(kind: Kind, window: int) -> None:
    heads = random_heads(21, seed=4)
    expected = expected_windowed(heads, window)
    for blocks in ([3, 4, 5, 6, 7, 8], [9, 2, 14, 1, 5, 6]):
        backend = make_backend(kind)
        for begin, end in ((0, 6), (6, 7), (7, 13), (13, 17), (17, 18), (18, 21)):
            backend.prepare(batch_of([(begin, end - begin, blocks)]))
            got = backend.attend(0, heads[begin:end], window=window)
            torch.testing.assert_close(got, expected[begin:end])


@pytest.mark.parametrize("window", [0, 300])
def test_prompts_in_bfloat16_read_like_the_reference_however_they_are_cut(window: int) -> None:
    layout = KvLayout(layer_count=1, kv_head_count=1, key_size=64, value_size=64)
    heads = torch.randn(330, 5, 64, generator=torch.Generator().manual_seed(8)).bfloat16()
    table = torch.tensor([[5, 3, 1, 2, 4, 6]], dtype=torch.int32)

    def read(kind: Kind, cuts: list[int]) -> torch.Tensor:
        backend = kind(KvCache(layout, block_count=7, block_size=64, dtype=torch.bfloat16))
        parts = []
        for begin, end in itertools.pairwise(cuts):
            places = torch.arange(begin, end)
            batch = AttentionBatch(
                rows=1,
                tokens=end - begin,
                uniform_query_len=0,
                query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
                kv_lens=torch.tensor([end], dtype=torch.int32),
                block_table=table,
                slots=table[0].long()[places // 64] * 64 + places % 64,
            )
            backend.prepare(batch)
            parts.append(backend.attend(0, heads[begin:end], window=window))
        return torch.cat(parts)

    whole = read(CpuAttention, [0, 330])
    torch.testing.assert_close(whole, read(ReferenceAttention, [0, 330]), atol=0.02, rtol=0.02)
    torch.testing.assert_close(read(CpuAttention, [0, 100, 101, 117, 330]), whole, atol=0.02, rtol=0.02)


def test_keys_before_the_window_are_not_read(kind: Kind) -> None:
    heads = random_heads(21, seed=5)
    backend = make_backend(kind)
    backend.prepare(batch_of([(0, 18, [3, 4, 5, 6, 7, 8])]))
    backend.attend(0, heads[:18])
    for pool in (*backend.cache.keys, *backend.cache.values):
        # Position 18, the first query, sees back to position 14.
        pool[:, 3 * BLOCK_SIZE : 3 * BLOCK_SIZE + 14] = float("nan")
    backend.prepare(batch_of([(18, 3, [3, 4, 5, 6, 7, 8])]))
    got = backend.attend(0, heads[18:], window=5)
    torch.testing.assert_close(got, expected_windowed(heads, 5)[18:])


def test_layers_of_one_pass_may_differ_in_window(kind: Kind) -> None:
    heads = random_heads(9, seed=6)
    backend = make_backend(kind)
    backend.prepare(batch_of([(0, 9, [3, 4, 5])]))
    for window in (0, 2, 0):
        expected = expected_windowed(heads, window or 9)
        torch.testing.assert_close(backend.attend(0, heads, window=window), expected)


def latent_backend(kind: Kind) -> AttentionBackend:
    layout = KvLayout(layer_count=1, kv_head_count=1, key_size=LATENT_SIZE, value_size=0)
    return kind(KvCache(layout, block_count=BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32))


def test_latents_are_keys_and_values_at_once(kind: Kind) -> None:
    generator = torch.Generator().manual_seed(7)
    queries = torch.randn(17, HEADS, LATENT_SIZE, generator=generator)
    latents = torch.randn(17, LATENT_SIZE, generator=generator)
    scores = torch.einsum("qhd,kd->hqk", queries, latents) * SCALE
    scores.masked_fill_(~torch.ones(17, 17, dtype=torch.bool).tril(), float("-inf"))
    expected = torch.einsum("hqk,kd->qhd", scores.softmax(-1), latents[:, :VALUE_SIZE])
    for blocks in ([3, 4, 5, 6, 7], [9, 2, 14, 1, 5]):
        backend = latent_backend(kind)
        for begin, end in ((0, 6), (6, 7), (7, 13), (13, 16), (16, 17)):
            backend.prepare(batch_of([(begin, end - begin, blocks)]))
            got = backend.attend_latent(0, queries[begin:end], latents[begin:end], value_size=VALUE_SIZE, scale=SCALE)
            torch.testing.assert_close(got, expected[begin:end])


def test_latents_without_a_slot_are_written_nowhere(kind: Kind) -> None:
    backend = latent_backend(kind)
    backend.prepare(batch_of([(0, 3, [5]), (0, 3, [])]))
    queries, latents = torch.ones(6, HEADS, LATENT_SIZE), torch.ones(6, LATENT_SIZE)
    got = backend.attend_latent(0, queries, latents, value_size=VALUE_SIZE, scale=SCALE)
    assert torch.isfinite(got).all()
    pool = backend.cache.keys[0]
    assert (pool[:, 20:23] == 1).all()
    pool[:, 20:23] = 0
    assert not pool.any()
    assert backend.cache.values == []


def test_poisoned_padding_changes_no_real_row(kind: Kind) -> None:
    heads = random_heads(15, seed=2)
    rows = [(0, 5, [3, 4]), (0, 5, [8, 5])]
    alone = make_backend(kind)
    alone.prepare(batch_of(rows))
    expected = alone.attend(0, heads[:10])
    padded = make_backend(kind)
    padded.prepare(batch_of([*rows, (0, 5, [])]))
    for poison in (float("nan"), float("inf"), 1e30):
        heads[10:] = poison
        got = padded.attend(0, heads)
        assert torch.equal(got[:10], expected)
    assert not padded.cache.keys[0][:, :BLOCK_SIZE].any()
    assert not padded.cache.values[0][:, :BLOCK_SIZE].any()
    # The last slot of the pool is where an index of -1 would write.
    assert not padded.cache.keys[0][:, -1].any()


def test_padding_rows_are_finite(kind: Kind) -> None:
    backend = make_backend(kind)
    backend.prepare(batch_of([(0, 6, []), (0, 6, [])]))
    assert torch.isfinite(backend.attend(0, random_heads(12, seed=3))).all()
    assert not backend.cache.keys[0].any()


def test_block_copies_and_zeroings() -> None:
    cache = make_backend(ReferenceAttention).cache
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

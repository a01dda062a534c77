"""What a step may not write: a token without a slot leaves every byte of the cache as it is, the last one too."""

from __future__ import annotations

import pytest
import torch

from paceline.attention.cpu import CpuAttention
from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache, KvLayout
from paceline.attention.reference import ReferenceAttention

LAYERS, KV_HEADS, HEADS, HEAD_SIZE, BLOCK_SIZE, BLOCKS, Q = 2, 2, 4, 8, 4, 8, 4
SENTINEL = 12345.0


@pytest.mark.parametrize("kind", [ReferenceAttention, CpuAttention])
def test_b11_padding_leaves_the_last_block_alone(kind: type[ReferenceAttention | CpuAttention]) -> None:
    layout = KvLayout(layer_count=LAYERS, kv_head_count=KV_HEADS, key_size=HEAD_SIZE, value_size=HEAD_SIZE)
    cache = KvCache(layout, block_count=BLOCKS, block_size=BLOCK_SIZE, dtype=torch.float32)
    pools = (*cache.keys, *cache.values)
    for pool in pools:
        pool[:, -BLOCK_SIZE:] = SENTINEL
    backend = kind(cache)
    # Three rows of four tokens, each in a block of its own, the last with a placeholder; then a padding row.
    slots = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, -1, -1, -1, -1, -1]
    backend.prepare(
        AttentionBatch(
            rows=4,
            tokens=4 * Q,
            uniform_query_len=Q,
            query_start_loc=torch.arange(5, dtype=torch.int32) * Q,
            kv_lens=torch.full((4,), Q, dtype=torch.int32),
            block_table=torch.tensor([[1, 0], [2, 0], [3, 0], [0, 0]], dtype=torch.int32),
            slots=torch.tensor(slots),
        )
    )
    heads = torch.ones(4 * Q, HEADS + 2 * KV_HEADS, HEAD_SIZE)
    for layer in range(LAYERS):
        backend.attend(layer, heads)
    cache.copy_blocks([(1, 5)])
    cache.zero_blocks([6])
    written = torch.tensor([slot for slot in slots if slot >= 0])
    for pool in pools:
        assert (pool[:, -BLOCK_SIZE:] == SENTINEL).all()
        assert (pool[:, written] == 1).all()
        assert not pool[:, :BLOCK_SIZE].any(), "the null block is never written"
        assert not pool[:, 3 * BLOCK_SIZE + 3].any(), "nor is the place of the placeholder"

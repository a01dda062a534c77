"""The paged KV cache of one worker.

A slot is `block * block_size + offset`. Block 0 is the null block: padding rows and overhanging table columns point at
it, nothing ever writes it. Every block is zero at start, since kernels read past a row's length within a tile.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KvCache:
    """Keys and values of all layers, head-major: a run of consecutive blocks is one strided view for every head."""

    __slots__ = ("block_count", "block_size", "keys", "values")

    def __init__(
        self,
        *,
        layer_count: int,
        block_count: int,
        block_size: int,
        kv_head_count: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate `block_count` blocks, the null block included."""
        self.block_count = block_count
        self.block_size = block_size
        shape = (layer_count, kv_head_count, block_count * block_size, head_size)
        # One [kv_heads, slots, head_size] tensor per layer.
        self.keys: list[Tensor] = list(torch.zeros(shape, dtype=dtype, device=device).unbind(0))
        self.values: list[Tensor] = list(torch.zeros(shape, dtype=dtype, device=device).unbind(0))

    def zero_blocks(self, blocks: list[int]) -> None:
        """Fill whole blocks with zeros."""
        if not blocks:
            return
        for pool in (*self.keys, *self.values):
            pool.view(pool.shape[0], self.block_count, -1)[:, blocks] = 0

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks, `(source, destination)`; all sources are read before any destination is written."""
        if not pairs:
            return
        sources = [source for source, _ in pairs]
        destinations = [destination for _, destination in pairs]
        for pool in (*self.keys, *self.values):
            blocks = pool.view(pool.shape[0], self.block_count, -1)
            blocks[:, destinations] = blocks[:, sources]


def block_bytes(*, layer_count: int, block_size: int, kv_head_count: int, head_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes, keys and values of all layers."""
    return 2 * layer_count * block_size * kv_head_count * head_size * dtype.itemsize

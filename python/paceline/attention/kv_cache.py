"""The paged KV cache of one worker.

A slot is `block * block_size + offset`. Block 0 is the null block: padding rows and overhanging table columns point at
it, nothing ever writes it. Every block is zero at start, since kernels read past a row's length within a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What one worker caches for each token: `layer_count` layers of heads, those of the drafter last.

    Sizes are elements. A `value_size` of 0 means that values are the first columns of the keys (a latent cache).
    """

    layer_count: int
    kv_head_count: int
    key_size: int
    value_size: int

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        """Bytes that one block of `block_size` tokens takes in all layers."""
        return self.layer_count * block_size * self.kv_head_count * (self.key_size + self.value_size) * dtype.itemsize


class KvCache:
    """Keys and values of all layers, head-major: a run of consecutive blocks is one strided view for every head."""

    __slots__ = ("block_count", "block_size", "keys", "layout", "values")

    def __init__(
        self, layout: KvLayout, *, block_count: int, block_size: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        """Allocate `block_count` blocks, the null block included."""
        self.layout = layout
        self.block_count = block_count
        self.block_size = block_size

        def pools(width: int) -> list[Tensor]:
            shape = (layout.layer_count, layout.kv_head_count, block_count * block_size, width)
            return list(torch.zeros(shape, dtype=dtype, device=device).unbind(0))

        # One [kv_heads, slots, size] tensor per layer; no value pools where values are part of the keys.
        self.keys: list[Tensor] = pools(layout.key_size)
        self.values: list[Tensor] = pools(layout.value_size) if layout.value_size else []

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

"""The `cpu` backend: the kernel of `_core`, all rows in one call; without matrix instructions, rows of many queries by torch's.

The kernel reads the cache through the block table, so nothing is gathered however the blocks lie. Torch's kernel is
faster than its vectors from a handful of queries on, where the scores are a matrix product worth the name; where the
kernel makes such products itself, it takes every row, and a prompt reads the same however it is cut into chunks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paceline import _core
from paceline.attention.contracts import CPU, Contract
from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache
from paceline.attention.rows import RowReader
from paceline.layers.host import array_of

# Rows of more queries than this are torch's, where the kernel has vectors only. Four rows of one query and 160 keys take
# 101 us here and 201 there, of six 396 and 437, of eight 540 and 475; with 1,000 keys the two meet at four queries.
QUERY_LEN_MAX = 6
# More than a row has.
ANY_LEN = 1 << 31


class CpuAttention:
    """Serves one cache in a CPU's memory, in float32 or bfloat16."""

    def __init__(self, cache: KvCache, contract: Contract = CPU, query_len_max: int | None = None) -> None:
        """Serve `cache`, declaring `contract`; rows of more than `query_len_max` queries are torch's, if it is given."""
        self._cache = cache
        self._contract = contract
        self._kernel = _core.PagedAttention(
            [array_of(pool) for pool in cache.keys], [array_of(pool) for pool in cache.values], cache.block_size
        )
        longest = ANY_LEN if self._kernel.takes_long_rows else QUERY_LEN_MAX
        self._query_len_max = longest if query_len_max is None else query_len_max
        self._reader = RowReader(cache)
        # First token and length of the rows that torch reads.
        self._long_rows: list[tuple[int, int]] = []

    @property
    def contract(self) -> Contract:
        """What the backend declares that it takes."""
        return self._contract

    @property
    def cache(self) -> KvCache:
        """The cache that it reads and writes."""
        return self._cache

    @property
    def kernel(self) -> _core.PagedAttention | None:
        """The kernel of `_core`, where torch's has no part in this pass."""
        return None if self._long_rows else self._kernel

    def prepare(self, batch: AttentionBatch) -> None:
        """Take the batch of the next pass."""
        starts, kv_lens, table = batch.query_start_loc.numpy(), batch.kv_lens.numpy(), batch.block_table.numpy()
        self._kernel.prepare(starts, kv_lens, table, batch.slots.numpy())
        query_lens = np.diff(starts)
        long = np.flatnonzero(query_lens > self._query_len_max)
        lens: list[int] = query_lens[long].tolist()
        self._long_rows = list(zip(starts[long].tolist(), lens, strict=True))
        if lens:
            self._reader.prepare(lens, kv_lens[long].tolist(), table[long])

    def attend(self, layer: int, heads: Tensor, *, scale: float | None = None, window: int = 0) -> Tensor:
        """Write, then read; see `AttentionBackend.attend`."""
        tokens, _, size = heads.shape
        head_count = heads.shape[1] - 2 * self._cache.layout.kv_head_count
        output = torch.empty(tokens, head_count * size, dtype=heads.dtype)
        factor = size**-0.5 if scale is None else scale
        flat = array_of(heads.view(tokens, -1))
        self._kernel.attend(layer, flat, head_count, factor, window, self._query_len_max, array_of(output))
        if self._long_rows:
            by_head = output.view(tokens, head_count, size)
            self._read_long(by_head, heads[:, :head_count], self._cache.keys[layer], self._cache.values[layer], scale, window)
        return output

    def attend_latent(self, layer: int, queries: Tensor, latents: Tensor, *, value_size: int, scale: float) -> Tensor:
        """Write, then read; see `AttentionBackend.attend_latent`."""
        tokens, head_count, _ = queries.shape
        output = torch.empty(tokens, head_count, value_size, dtype=queries.dtype)
        flat = array_of(queries.view(tokens, -1))
        self._kernel.attend_latent(
            layer, flat, array_of(latents), head_count, scale, self._query_len_max, array_of(output.view(tokens, -1))
        )
        if self._long_rows:
            pool = self._cache.keys[layer]
            # Whole keys as values: torch's kernel is for values as wide as keys, and the columns too many are cut off.
            self._read_long(output, queries, pool, pool, scale, 0)
        return output

    def _read_long(
        self, output: Tensor, queries: Tensor, key_pool: Tensor, value_pool: Tensor, scale: float | None, window: int
    ) -> None:
        """Attend for the rows of many queries: `queries [tokens, heads, size]` into `output [tokens, heads, value size]`."""
        keys = key_pool.unsqueeze(0)
        values = keys if value_pool is key_pool else value_pool.unsqueeze(0)
        by_head = queries.transpose(0, 1).unsqueeze(0)
        cuts = [by_head.narrow(2, first, length) for first, length in self._long_rows]
        for (first, length), read in zip(self._long_rows, self._reader.read(cuts, keys, values, scale, window), strict=True):
            output[first : first + length] = read[0, ..., : output.shape[2]].transpose(0, 1)

"""Reading the paged cache row by row with torch's own attention kernel, causal and bottom-right aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from paceline.attention.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the pass as layers of one window see it, worked out once."""

    query_len: int
    # Keys that are read: the last ones of the row, all of them without a window.
    kv_len: int
    # First slot that is read, where the row's blocks are consecutive; else the slots to gather.
    begin: int
    gather: Tensor | None
    mask: Tensor | None
    is_causal: bool


class RowReader:
    """Per row: a view of the cache where the row's blocks are physically consecutive, else a gather."""

    def __init__(self, cache: KvCache) -> None:
        """Read `cache`."""
        self._cache = cache
        self._query_lens: Sequence[int] = []
        self._kv_lens: Sequence[int] = []
        self._table: NDArray[np.int32] = np.empty((0, 0), np.int32)
        # By window.
        self._rows: dict[int, list[_Row]] = {}
        self._masks: dict[tuple[int, int, int], Tensor] = {}

    def prepare(self, query_lens: Sequence[int], kv_lens: Sequence[int], table: NDArray[np.int32]) -> None:
        """Take the rows of the next pass; where each of them reads follows when a layer asks."""
        self._query_lens, self._kv_lens, self._table = query_lens, kv_lens, table
        self._rows, self._masks = {}, {}

    def read(self, cuts: Sequence[Tensor], keys: Tensor, values: Tensor, scale: float | None, window: int) -> list[Tensor]:
        """Attend for each row, given its queries `[1, heads, query_len, size]`, which are the shapes of the results.

        `keys` and `values` are pools `[1, kv_heads, slots, size]`; the same tensor twice where values are part of keys.
        """
        rows = self._rows_of(window)
        return [_attend_row(row, cut, keys, values, scale) for row, cut in zip(rows, cuts, strict=True)]

    def _rows_of(self, window: int) -> list[_Row]:
        rows = self._rows.get(window)
        if rows is None:
            lengths = zip(self._query_lens, self._kv_lens, self._table, strict=True)
            rows = [self._plan_row(query_len, kv_len, blocks, window) for query_len, kv_len, blocks in lengths]
            self._rows[window] = rows
        return rows

    def _plan_row(self, query_len: int, kv_len: int, blocks: NDArray[np.int32], window: int) -> _Row:
        # The first query sees the oldest keys: those before its window are not read at all.
        first = max(0, kv_len - query_len - window + 1) if window else 0
        begin, gather = self._locate(first, kv_len, blocks)
        read = kv_len - first
        is_narrowed = 0 < window < read
        is_causal = query_len == read and query_len > 1 and not is_narrowed
        mask = None if is_causal or query_len == 1 else self._mask(query_len, read, window if is_narrowed else 0)
        return _Row(query_len, read, begin, gather, mask, is_causal)

    def _locate(self, first: int, end: int, blocks: NDArray[np.int32]) -> tuple[int, Tensor | None]:
        """Find the slots of positions `first .. end - 1`: the first one if the blocks are consecutive, else all."""
        block_size = self._cache.block_size
        skipped, offset = divmod(first, block_size)
        used = blocks[skipped : -(-end // block_size)]
        begin = int(used[0]) * block_size + offset
        if int(used[-1]) - int(used[0]) == len(used) - 1 and bool((np.diff(used) == 1).all()):
            return begin, None
        slots = (used.astype(np.int64)[:, None] * block_size + np.arange(block_size)).reshape(-1)
        return begin, torch.from_numpy(slots[offset : offset + end - first])

    def _mask(self, query_len: int, kv_len: int, window: int) -> Tensor:
        """Which keys each query sees, `[query_len, kv_len]`; rows of one shape share it."""
        mask = self._masks.get((query_len, kv_len, window))
        if mask is None:
            mask = torch.ones(query_len, kv_len, dtype=torch.bool).tril_(kv_len - query_len)
            if window:
                mask.triu_(kv_len - query_len - window + 1)
            self._masks[query_len, kv_len, window] = mask
        return mask


def _attend_row(row: _Row, queries: Tensor, key_pool: Tensor, value_pool: Tensor, scale: float | None) -> Tensor:
    """Attend for one row: `queries [1, heads, query_len, size]` over pools `[1, kv_heads, slots, size]`."""
    if row.gather is None:
        keys = key_pool.narrow(2, row.begin, row.kv_len)
        values = keys if value_pool is key_pool else value_pool.narrow(2, row.begin, row.kv_len)
    else:
        keys = key_pool.index_select(2, row.gather)
        values = keys if value_pool is key_pool else value_pool.index_select(2, row.gather)
    if row.query_len == 1 and key_pool.shape[1] == 1:
        # All heads share the keys and see the same ones: they are rows of one product instead of heads of many.
        folded = functional.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, scale=scale)
        return folded.transpose(1, 2)
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=row.mask, is_causal=row.is_causal, scale=scale, enable_gqa=True
    )

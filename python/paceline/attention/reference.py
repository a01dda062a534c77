"""The `reference` backend: paged attention on torch's own attention kernel, row by row.

It is the oracle for the others, runs anywhere torch runs, and is what Paceline serves with on CPUs. It may declare the
contract of another backend; its own kernel takes any shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from paceline.attention.contracts import REFERENCE, Contract
from paceline.attention.interface import AttentionBatch
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


class ReferenceAttention:
    """Per row: a view of the cache where the row's blocks are physically consecutive, else a gather."""

    def __init__(self, cache: KvCache, contract: Contract = REFERENCE) -> None:
        """Serve `cache`, declaring `contract`."""
        self._cache = cache
        self._contract = contract
        self._query_lens: list[int] = []
        self._kv_lens: list[int] = []
        self._table: NDArray[np.int32] = np.empty((0, 0), np.int32)
        # Lengths of the rows, and of the padding of the inputs, if any.
        self._cut_lens: list[int] = []
        # By window.
        self._rows: dict[int, list[_Row]] = {}
        self._masks: dict[tuple[int, int, int], Tensor] = {}
        self._write_slots: Tensor | None = None
        self._write_tokens: Tensor | None = None

    @property
    def contract(self) -> Contract:
        """What the backend declares that it takes."""
        return self._contract

    @property
    def cache(self) -> KvCache:
        """The cache that it reads and writes."""
        return self._cache

    def prepare(self, batch: AttentionBatch) -> None:
        """Work out which tokens write; where each row reads follows when a layer asks."""
        is_written = batch.slots >= 0
        if bool(is_written.all()):
            self._write_tokens, self._write_slots = None, batch.slots
        else:
            self._write_tokens = is_written.nonzero().squeeze(1)
            self._write_slots = batch.slots[self._write_tokens]
        self._query_lens = batch.query_start_loc.diff().tolist()
        self._kv_lens = batch.kv_lens.tolist()
        self._table = batch.block_table.numpy()
        self._rows, self._masks = {}, {}
        padding = batch.slots.shape[0] - batch.tokens
        self._cut_lens = self._query_lens + [padding] * (padding > 0)

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, *, scale: float | None = None, window: int = 0
    ) -> Tensor:
        """Write, then read; see `AttentionBackend.attend`."""
        key_pool, value_pool = self._cache.keys[layer], self._cache.values[layer]
        self._write(key_pool, keys)
        self._write(value_pool, values)
        return self._read(queries, key_pool, value_pool, scale, window).flatten(1)

    def attend_latent(self, layer: int, queries: Tensor, latents: Tensor, *, value_size: int, scale: float) -> Tensor:
        """Write, then read; see `AttentionBackend.attend_latent`."""
        pool = self._cache.keys[layer]
        self._write(pool, latents.unsqueeze(1))
        # Whole keys as values: torch's kernel is for values as wide as keys, and the columns too many are cut off.
        return self._read(queries, pool, pool, scale, 0)[..., :value_size]

    def _read(self, queries: Tensor, key_pool: Tensor, value_pool: Tensor, scale: float | None, window: int) -> Tensor:
        """Attend for `queries [tokens, heads, size]`; gives their shape."""
        key_pool, value_pool = key_pool.unsqueeze(0), value_pool.unsqueeze(0)
        # [1, heads, tokens, size], the layout that the kernel takes; cut and joined once, not once per row.
        cuts: Sequence[Tensor] = torch.split_with_sizes(queries.transpose(0, 1).unsqueeze(0), self._cut_lens, dim=2)
        rows = self._rows_of(window)
        outputs = [_attend_row(row, cut, key_pool, value_pool, scale) for row, cut in zip(rows, cuts, strict=False)]
        if len(cuts) > len(outputs):
            # Padding of the inputs that attention is not asked about: its rows are dropped, but must be finite.
            outputs.append(torch.zeros_like(cuts[-1]))
        return torch.cat(outputs, dim=2).squeeze(0).transpose(0, 1)

    def _write(self, pool: Tensor, new: Tensor) -> None:
        """Store `new [tokens, kv_heads, size]`; tokens without a slot are left out, never written anywhere."""
        assert self._write_slots is not None
        if self._write_slots.shape[0] == 0:
            return
        written = new if self._write_tokens is None else new.index_select(0, self._write_tokens)
        pool.index_copy_(1, self._write_slots, written.transpose(0, 1))

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

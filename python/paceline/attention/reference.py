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
    """One row of the pass, worked out once and used by every layer."""

    kv_len: int
    # First slot of the row's KV where its blocks are consecutive; else the slots to gather.
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
        self._rows: list[_Row] = []
        self._masks: dict[tuple[int, int], Tensor] = {}
        self._write_slots: Tensor | None = None
        self._write_tokens: Tensor | None = None
        self._query_lens: list[int] = []

    @property
    def contract(self) -> Contract:
        """What the backend declares that it takes."""
        return self._contract

    @property
    def cache(self) -> KvCache:
        """The cache that it reads and writes."""
        return self._cache

    def prepare(self, batch: AttentionBatch) -> None:
        """Work out where each row reads and which tokens write."""
        is_written = batch.slots >= 0
        if bool(is_written.all()):
            self._write_tokens, self._write_slots = None, batch.slots
        else:
            self._write_tokens = is_written.nonzero().squeeze(1)
            self._write_slots = batch.slots[self._write_tokens]
        query_lens: list[int] = batch.query_start_loc.diff().tolist()
        kv_lens: list[int] = batch.kv_lens.tolist()
        table = batch.block_table.numpy()
        self._masks = {}
        self._rows = [self._plan_row(query_lens[i], kv_lens[i], table[i]) for i in range(batch.rows)]
        padding = batch.slots.shape[0] - batch.tokens
        self._query_lens = query_lens + [padding] * (padding > 0)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write, then read; see `AttentionBackend.attend`."""
        key_pool, value_pool = self._cache.keys[layer], self._cache.values[layer]
        self._write(key_pool, keys)
        self._write(value_pool, values)
        key_pool, value_pool = key_pool.unsqueeze(0), value_pool.unsqueeze(0)
        # [1, heads, tokens, head_size], the layout that the kernel takes; cut and joined once, not once per row.
        cuts: Sequence[Tensor] = torch.split_with_sizes(queries.transpose(0, 1).unsqueeze(0), self._query_lens, dim=2)
        outputs = [self._attend_row(row, cut, key_pool, value_pool) for row, cut in zip(self._rows, cuts, strict=False)]
        if len(cuts) > len(outputs):
            # Padding of the inputs that attention is not asked about: its rows are dropped, but must be finite.
            outputs.append(torch.zeros_like(cuts[-1]))
        return torch.cat(outputs, dim=2).squeeze(0).transpose(0, 1).flatten(1)

    def _attend_row(self, row: _Row, queries: Tensor, key_pool: Tensor, value_pool: Tensor) -> Tensor:
        if row.gather is None:
            keys, values = key_pool.narrow(2, row.begin, row.kv_len), value_pool.narrow(2, row.begin, row.kv_len)
        else:
            keys, values = key_pool.index_select(2, row.gather), value_pool.index_select(2, row.gather)
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=row.mask, is_causal=row.is_causal, enable_gqa=True
        )

    def _write(self, pool: Tensor, new: Tensor) -> None:
        """Store `new [tokens, kv_heads, head_size]`; tokens without a slot are left out, never written anywhere."""
        assert self._write_slots is not None
        if self._write_slots.shape[0] == 0:
            return
        written = new if self._write_tokens is None else new.index_select(0, self._write_tokens)
        pool.index_copy_(1, self._write_slots, written.transpose(0, 1))

    def _plan_row(self, query_len: int, kv_len: int, blocks: NDArray[np.int32]) -> _Row:
        begin, gather = self._locate(kv_len, blocks)
        is_causal = query_len == kv_len and query_len > 1
        mask = None if is_causal or query_len == 1 else self._mask(query_len, kv_len)
        return _Row(kv_len, begin, gather, mask, is_causal)

    def _locate(self, kv_len: int, blocks: NDArray[np.int32]) -> tuple[int, Tensor | None]:
        """Find the slots of positions `0 .. kv_len - 1`: the first one if the blocks are consecutive, else all."""
        block_size = self._cache.block_size
        used = blocks[: -(-kv_len // block_size)]
        begin = int(used[0]) * block_size
        if int(used[-1]) - int(used[0]) == len(used) - 1 and bool((np.diff(used) == 1).all()):
            return begin, None
        slots = (used.astype(np.int64)[:, None] * block_size + np.arange(block_size)).reshape(-1)[:kv_len]
        return begin, torch.from_numpy(slots)

    def _mask(self, query_len: int, kv_len: int) -> Tensor:
        """Which keys each query sees, `[query_len, kv_len]`; rows of one shape share it."""
        mask = self._masks.get((query_len, kv_len))
        if mask is None:
            mask = torch.ones(query_len, kv_len, dtype=torch.bool).tril_(kv_len - query_len)
            self._masks[query_len, kv_len] = mask
        return mask

"""The `reference` backend: paged attention on torch's own attention kernel, row by row.

It is the oracle for the others, runs anywhere torch runs, and is what Paceline serves with on CPUs. It may declare the
contract of another backend; its own kernel takes any shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.attention.contracts import REFERENCE, Contract
from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the pass, worked out once and used by every layer."""

    query_begin: int
    query_end: int
    # The row's KV as one run of slots, or the slots to gather where its blocks are scattered.
    run: slice | None
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
        self._tokens = 0

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
        starts: list[int] = batch.query_start_loc.tolist()
        kv_lens: list[int] = batch.kv_lens.tolist()
        table = batch.block_table.numpy()
        self._masks = {}
        self._tokens = batch.tokens
        self._rows = [self._plan_row(starts[i], starts[i + 1], kv_lens[i], table[i]) for i in range(batch.rows)]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write, then read; see `AttentionBackend.attend`."""
        key_pool, value_pool = self._cache.keys[layer], self._cache.values[layer]
        self._write(key_pool, keys)
        self._write(value_pool, values)
        is_covered = bool(self._rows) and self._rows[-1].query_end == queries.shape[0]
        output = torch.empty_like(queries) if is_covered else torch.zeros_like(queries)
        # [1, heads, tokens, head_size], the layout that the kernel takes.
        heads_first, output_heads_first = queries.transpose(0, 1).unsqueeze(0), output.transpose(0, 1).unsqueeze(0)
        for row in self._rows:
            if row.run is not None:
                row_keys, row_values = key_pool[:, row.run], value_pool[:, row.run]
            else:
                assert row.gather is not None
                row_keys, row_values = key_pool.index_select(1, row.gather), value_pool.index_select(1, row.gather)
            output_heads_first[:, :, row.query_begin : row.query_end] = functional.scaled_dot_product_attention(
                heads_first[:, :, row.query_begin : row.query_end],
                row_keys.unsqueeze(0),
                row_values.unsqueeze(0),
                attn_mask=row.mask,
                is_causal=row.is_causal,
                enable_gqa=True,
            )
        return output.flatten(1)

    def _write(self, pool: Tensor, new: Tensor) -> None:
        """Store `new [tokens, kv_heads, head_size]`; tokens without a slot are left out, never written anywhere."""
        assert self._write_slots is not None
        if self._write_slots.shape[0] == 0:
            return
        written = new if self._write_tokens is None else new.index_select(0, self._write_tokens)
        pool.index_copy_(1, self._write_slots, written.transpose(0, 1))

    def _plan_row(self, query_begin: int, query_end: int, kv_len: int, blocks: np.ndarray) -> _Row:
        query_len = query_end - query_begin
        run, gather = self._locate(kv_len, blocks)
        is_causal = query_len == kv_len and query_len > 1
        mask = None if is_causal or query_len == 1 else self._mask(query_len, kv_len)
        return _Row(query_begin, query_end, run, gather, mask, is_causal)

    def _locate(self, kv_len: int, blocks: np.ndarray) -> tuple[slice | None, Tensor | None]:
        """Find the slots of positions `0 .. kv_len - 1`: one run if the blocks are consecutive."""
        block_size = self._cache.block_size
        used = blocks[: -(-kv_len // block_size)]
        first = int(used[0])
        if len(used) == 1 or bool((np.diff(used) == 1).all()):
            return slice(first * block_size, first * block_size + kv_len), None
        slots = (used.astype(np.int64)[:, None] * block_size + np.arange(block_size)).reshape(-1)[:kv_len]
        return None, torch.from_numpy(slots)

    def _mask(self, query_len: int, kv_len: int) -> Tensor:
        """Which keys each query sees, `[query_len, kv_len]`; rows of one shape share it."""
        mask = self._masks.get((query_len, kv_len))
        if mask is None:
            mask = torch.ones(query_len, kv_len, dtype=torch.bool).tril_(kv_len - query_len)
            self._masks[query_len, kv_len] = mask
        return mask

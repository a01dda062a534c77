"""The `reference` backend: paged attention on torch's own attention kernel, row by row.

It is the oracle for the others and runs anywhere torch runs. It may declare the contract of another backend; its own
kernel takes any shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.attention.contracts import REFERENCE, Contract
from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache
from paceline.attention.rows import RowReader


class ReferenceAttention:
    """Writes by torch's own copy, reads row by row."""

    def __init__(self, cache: KvCache, contract: Contract = REFERENCE) -> None:
        """Serve `cache`, declaring `contract`."""
        self._cache = cache
        self._contract = contract
        self._reader = RowReader(cache)
        self._row_count = 0
        # Lengths of the rows, and of the padding of the inputs, if any.
        self._cut_lens: list[int] = []
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

    @property
    def kernel(self) -> None:
        """There is none: every layer asks the backend."""
        return None

    def prepare(self, batch: AttentionBatch) -> None:
        """Work out which tokens write."""
        is_written = batch.slots >= 0
        if bool(is_written.all()):
            self._write_tokens, self._write_slots = None, batch.slots
        else:
            self._write_tokens = is_written.nonzero().squeeze(1)
            self._write_slots = batch.slots[self._write_tokens]
        query_lens = batch.query_start_loc.diff().tolist()
        self._reader.prepare(query_lens, batch.kv_lens.tolist(), batch.block_table.numpy())
        self._row_count = len(query_lens)
        padding = batch.slots.shape[0] - batch.tokens
        self._cut_lens = query_lens + [padding] * (padding > 0)

    def attend(self, layer: int, heads: Tensor, *, scale: float | None = None, window: int = 0) -> Tensor:
        """Write, then read; see `AttentionBackend.attend`."""
        key_pool, value_pool = self._cache.keys[layer], self._cache.values[layer]
        kv_heads = key_pool.shape[0]
        queries, keys, values = heads.split_with_sizes((heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads), dim=1)
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
        outputs = self._reader.read(cuts[: self._row_count], key_pool, value_pool, scale, window)
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

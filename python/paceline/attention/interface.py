"""What a model calls and what a backend is given: one explicit batch per pass, no hidden state elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline import _core
from paceline.attention.contracts import Contract
from paceline.attention.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One pass as attention sees it: both counts padded (FULL) or both real, never one of each.

    `query_start_loc` int32 `[rows + 1]`; `kv_lens` int32 `[rows]`, this pass's tokens included; `block_table` int32
    `[rows, width]`; `slots` int64, one for each token that the network runs (padding of the inputs included), -1 where
    nothing may be written. `uniform_query_len` is q in FULL, else 0.
    """

    rows: int
    tokens: int
    uniform_query_len: int
    query_start_loc: Tensor
    kv_lens: Tensor
    block_table: Tensor
    slots: Tensor


class AttentionBackend(Protocol):
    """Writes this pass's keys and values into the cache and attends over it."""

    @property
    def contract(self) -> Contract:
        """What the backend declares that it takes."""

    @property
    def cache(self) -> KvCache:
        """The cache that it reads and writes."""

    @property
    def kernel(self) -> _core.PagedAttention | None:
        """What attends in every layer of this pass without the backend's help, if there is such."""

    def prepare(self, batch: AttentionBatch) -> None:
        """Take the batch of the next pass; called once per pass, before any layer."""

    def attend(self, layer: int, heads: Tensor, *, scale: float | None = None, window: int = 0) -> Tensor:
        """Attend in one layer.

        Takes `heads [tokens, query heads + 2 * kv heads, head_size]`, contiguous: queries, keys, values. Gives
        `[tokens, query heads * head_size]`. Causal and bottom-right aligned: query j of a row with q queries and n keys sees
        keys `0 .. n - q + j`, only the last `window` of them unless that is 0. `scale` multiplies the scores; `None` is
        the root of 1 / head_size.
        """

    def attend_latent(self, layer: int, queries: Tensor, latents: Tensor, *, value_size: int, scale: float) -> Tensor:
        """Attend in one layer whose cache holds one latent per token, keys and values at once.

        Takes `queries [tokens, heads, key_size]` in the latent's space and `latents [tokens, key_size]`; gives
        `[tokens, heads, value_size]`, the weighted sum of the latents' first `value_size` columns. Which keys a query
        sees is as in `attend`.
        """

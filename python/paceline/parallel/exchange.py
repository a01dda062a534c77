"""The exchange between MoE layers and experts: what it is given, and the kinds that bring no token to another worker.

`spread` has the kinds that do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline.parallel.collectives import Collectives
from paceline.parallel.shard import Shard

Experts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`experts(x [tokens, hidden], expert_ids int64 [tokens, top_k], weights fp32 [tokens, top_k]) -> [tokens, hidden]`: the
weighted sum over the experts held here. An id is global; -1, or one that is not held, adds nothing."""


@dataclass(frozen=True, slots=True)
class PassTokens:
    """What an exchange must know about a pass before its first layer.

    `tokens_padded` is what the plan says every rank brings to an exchange, the same number on all of them in every mode
    (rule 6). `is_request` bool `[tokens that the network runs]`: False for padding and dummies, which go to no expert.
    """

    tokens_padded: int
    is_request: Tensor


class ExpertExchange(Protocol):
    """Brings tokens to the workers that hold their experts, and the results back."""

    @property
    def held(self) -> range:
        """The experts held here."""

    def prepare(self, tokens: PassTokens) -> None:
        """Take the tokens of the next pass; called once per pass, before any layer."""

    def run(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        """Give each token of `x [tokens, hidden]` the weighted sum of its experts, wherever they are held."""


class LocalExchange:
    """Every expert is held here."""

    def __init__(self, expert_count: int) -> None:
        """Hold experts `0 .. expert_count - 1`."""
        self._held = range(expert_count)
        self._mask: Tensor | None = None

    @property
    def held(self) -> range:
        """The experts held here: all."""
        return self._held

    def prepare(self, tokens: PassTokens) -> None:
        """Take the tokens of the next pass."""
        self._mask = padding_mask(tokens.is_request)

    def run(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        """Run the experts here; see `ExpertExchange.run`."""
        return experts(x, without(self._mask, expert_ids), weights)


class SharedTokensExchange:
    """Experts are shared out among the tp workers of a rank, which all have its tokens: results are summed."""

    def __init__(self, expert_count: int, workers: Collectives) -> None:
        """Hold this worker's part of `expert_count` experts."""
        self._held = Shard(workers.rank, workers.size).even_range_of(expert_count)
        self._workers = workers
        self._mask: Tensor | None = None

    @property
    def held(self) -> range:
        """The experts held here."""
        return self._held

    def prepare(self, tokens: PassTokens) -> None:
        """Take the tokens of the next pass."""
        self._mask = padding_mask(tokens.is_request)

    def run(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        """Run the experts here and add what the other workers' gave; see `ExpertExchange.run`."""
        return self._workers.all_reduce(experts(x, without(self._mask, expert_ids), weights))


def padding_mask(is_request: Tensor) -> Tensor | None:
    """Bool `[tokens, 1]` of the tokens that go to no expert; `None` where there are none."""
    return None if bool(is_request.all()) else ~is_request.unsqueeze(1)


def without(mask: Tensor | None, expert_ids: Tensor) -> Tensor:
    """Expert ids with -1 for masked tokens."""
    return expert_ids if mask is None else expert_ids.masked_fill(mask, -1)

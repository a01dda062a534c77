"""The exchange between MoE layers and experts: what it is given, and the one for a worker that holds every expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Experts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`experts(x [tokens, hidden], expert_ids int64 [tokens, top_k], weights fp32 [tokens, top_k]) -> [tokens, hidden]`: the
weighted sum over the experts held here. An id is global; -1, or one that is not held, adds nothing."""


@dataclass(frozen=True, slots=True)
class PassTokens:
    """What an exchange must know about a pass before its first layer.

    `is_request` bool `[tokens that the network runs]`: False for padding and dummies, which go to no expert.
    """

    mode: str
    tokens_padded: int
    tokens_per_rank: tuple[int, ...]
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
        self._is_request: Tensor | None = None

    @property
    def held(self) -> range:
        """The experts held here: all."""
        return self._held

    def prepare(self, tokens: PassTokens) -> None:
        """Take the tokens of the next pass."""
        self._is_request = None if bool(tokens.is_request.all()) else tokens.is_request.unsqueeze(1)

    def run(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        """Run the experts here; see `ExpertExchange.run`."""
        if self._is_request is not None:
            expert_ids = expert_ids.masked_fill(~self._is_request, -1)
        return experts(x, expert_ids, weights)

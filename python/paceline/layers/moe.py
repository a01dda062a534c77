"""A feed-forward block of experts: routing, the exchange that brings tokens to experts, and the experts held here."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.layers.linear import Linear
from paceline.layers.mlp import GatedMlp, gated
from paceline.layers.routing import Router
from paceline.parallel.exchange import ExpertExchange


class Experts:
    """The experts of one layer that this worker holds. Tokens are sorted by expert, so each weight is read once."""

    __slots__ = ("_down", "_first", "_gate_up")

    def __init__(self, held: range, gate_up: list[Linear], down: list[Linear]) -> None:
        """Take `gate_up [2 * intermediate, hidden]` and `down [hidden, intermediate]` of each expert in `held`."""
        self._first = held.start
        self._gate_up = gate_up
        self._down = down

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Sum the weighted outputs of the experts held here; see `paceline.parallel.exchange.Experts`.

        A token's sum runs in the order of its experts, whatever else is in the batch.
        """
        top_k, count = expert_ids.shape[1], len(self._gate_up)
        local = (expert_ids - self._first).flatten()
        local = torch.where((local >= 0) & (local < count), local, count)
        visits = torch.bincount(local, minlength=count + 1)[:count].tolist()
        outputs = x.new_zeros(local.shape[0], x.shape[1])
        order = local.argsort(stable=True)[: sum(visits)]
        inputs = torch.split_with_sizes(x.index_select(0, order // top_k), visits)
        results = [
            gated(visitors, gate_up, down)
            for visitors, gate_up, down in zip(inputs, self._gate_up, self._down, strict=True)
            if visitors.shape[0]
        ]
        if results:
            outputs.index_copy_(0, order, torch.cat(results))
        scaled = outputs.view(-1, top_k, x.shape[1]) * weights.unsqueeze(-1)
        total = scaled[:, 0]
        for choice in range(1, top_k):
            total = total + scaled[:, choice]
        return total.to(x.dtype)


class MoeBlock:
    """Routed experts, and the expert that every token visits, if there is one."""

    __slots__ = ("exchange", "experts", "router", "shared")

    def __init__(self, router: Router, experts: Experts, exchange: ExpertExchange, shared: GatedMlp | None) -> None:
        """Take the parts of one layer."""
        self.router = router
        self.experts = experts
        self.exchange = exchange
        self.shared = shared

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to `x [tokens, hidden]`; `exchange` must have been given this pass's tokens."""
        expert_ids, weights = self.router(x)
        routed = self.exchange.run(x, expert_ids, weights, self.experts)
        return routed if self.shared is None else routed + self.shared(x)

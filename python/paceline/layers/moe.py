"""A feed-forward block of experts: routing, the exchange that brings tokens to experts, and the experts held here."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.layers.linear import Linear
from paceline.layers.mlp import GatedMlp, activated, gated
from paceline.layers.quantization import Quantization
from paceline.layers.routing import Router
from paceline.parallel.exchange import ExpertExchange, Experts

# Up to so many elements in all, the experts of a layer are run as one network: on a CPU, calls cost more than products.
FUSED_ELEMENTS = 1 << 20


class SortedExperts:
    """The experts of one layer that this worker holds. Tokens are sorted by expert, so each weight is read once."""

    __slots__ = ("_down", "_first", "_gate_up")

    def __init__(
        self,
        held: range,
        gate_up: list[Tensor],
        down: list[Tensor],
        quantization: Quantization = Quantization.NONE,
    ) -> None:
        """Take `gate_up [2 * intermediate, hidden]` and `down [hidden, intermediate]` of each expert in `held`."""
        self._first = held.start
        self._gate_up = [Linear(weight, pack=True, quantization=quantization) for weight in gate_up]
        self._down = [Linear(weight, pack=True, quantization=quantization) for weight in down]

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Sum the weighted outputs of the experts held here; see `paceline.parallel.exchange.Experts`.

        A token's sum runs in the order of its experts, whatever else is in the batch.
        """
        top_k, count = expert_ids.shape[1], len(self._gate_up)
        local = _local_ids(expert_ids, self._first, count).flatten()
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


class FusedExperts:
    """Small experts side by side in one wide network, in which those that a token does not visit have weight 0."""

    __slots__ = ("_count", "_down", "_first", "_gate_up")

    def __init__(self, held: range, gate_up: list[Tensor], down: list[Tensor]) -> None:
        """Take what `SortedExperts` takes, of at least one expert."""
        self._first = held.start
        self._count = len(held)
        gates, ups = zip(*(torch.tensor_split(weight, 2) for weight in gate_up), strict=True)
        self._gate_up = Linear(torch.cat((*gates, *ups)), pack=True)
        self._down = Linear(torch.cat(down, dim=1), pack=True)

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Sum the weighted outputs of the experts held here; see `paceline.parallel.exchange.Experts`."""
        # One column more, for what is not held.
        shares = x.new_zeros(x.shape[0], self._count + 1)
        shares.scatter_(1, _local_ids(expert_ids, self._first, self._count), weights.to(x.dtype))
        inner = activated(self._gate_up(x)).view(x.shape[0], self._count, self._down.in_features // self._count)
        return self._down(inner.mul_(shares[:, : self._count].unsqueeze(-1)).flatten(1))


def build_experts(
    held: range, gate_up: list[Tensor], down: list[Tensor], quantization: Quantization = Quantization.NONE
) -> Experts:
    """Put experts into the form that runs them fastest; see `SortedExperts` for what is taken.

    Quantised ones are never fused: a token would be quantised by what other experts make of it, and which of them are held
    here would show in its text.
    """
    elements = sum(weight.numel() for weight in (*gate_up, *down))
    if held and elements <= FUSED_ELEMENTS and quantization is Quantization.NONE:
        return FusedExperts(held, gate_up, down)
    return SortedExperts(held, gate_up, down, quantization)


def _local_ids(expert_ids: Tensor, first: int, count: int) -> Tensor:
    """Count experts from the first one held; `count` stands for all that are not held."""
    local = expert_ids - first
    return torch.where((local >= 0) & (local < count), local, count)


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

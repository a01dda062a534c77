"""Which experts a token visits and with what weight. Always in fp32: a near tie must not depend on the model's type."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.moe_config import MoeConfig


class Router:
    """Scores each token against each expert and chooses by the rule of the family."""

    __slots__ = ("bias", "config", "weight")

    def __init__(self, config: MoeConfig, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take `weight [experts, hidden]` and, for grouped_sigmoid, the correction `bias [experts]`, both fp32."""
        self.config = config
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give expert ids int64 and weights fp32, both `[tokens, top_k]`, for `x [tokens, hidden]`."""
        scores = functional.linear(x.float(), self.weight)
        if self.config.routing == "grouped_sigmoid":
            return _grouped_sigmoid(scores, self.bias, self.config)
        if self.config.routing == "sparsemixer":
            return _sparsemixer(scores, self.config.jitter)
        return _softmax(scores, self.config)


def _softmax(scores: Tensor, config: MoeConfig) -> tuple[Tensor, Tensor]:
    """The best of all experts, by softmax (Mixtral, Qwen3-MoE)."""
    weights, expert_ids = scores.softmax(dim=-1).topk(config.experts_per_token, dim=-1)
    if config.normalises:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return expert_ids, weights


def _grouped_sigmoid(scores: Tensor, bias: Tensor | None, config: MoeConfig) -> tuple[Tensor, Tensor]:
    """The best experts of the best groups (DeepSeek-V3, GLM-4.5). The correction decides who is chosen, not the weight."""
    weights = scores.sigmoid()
    merits = weights if bias is None else weights + bias
    if config.group_count > 1:
        grouped = merits.view(-1, config.group_count, config.expert_count // config.group_count)
        group_merits = grouped.topk(2, dim=-1).values.sum(dim=-1)
        kept = group_merits.topk(config.groups_per_token, dim=-1).indices
        is_dropped = torch.ones_like(group_merits, dtype=torch.bool).scatter_(1, kept, False)
        merits = grouped.masked_fill(is_dropped.unsqueeze(-1), float("-inf")).flatten(1)
    expert_ids = merits.topk(config.experts_per_token, dim=-1).indices
    weights = weights.gather(1, expert_ids)
    if config.normalises:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return expert_ids, weights * config.scaling_factor


def _sparsemixer(scores: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """The two best, each weighed by softmax among those not far behind it (Phi-MoE); weights do not add up to 1."""
    remaining = scores
    expert_ids, weights = [], []
    for _ in range(2):
        best, chosen = remaining.max(dim=-1, keepdim=True)
        is_far = (best - scores) / scores.abs().clamp(min=best) > 2 * jitter
        weights.append(remaining.masked_fill(is_far, float("-inf")).softmax(dim=-1).gather(1, chosen))
        expert_ids.append(chosen)
        remaining = remaining.scatter(1, chosen, float("-inf"))
    return torch.cat(expert_ids, dim=-1), torch.cat(weights, dim=-1)

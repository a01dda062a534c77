"""Routing and experts of DeepSeek-V3, written for training on one core: one matrix product per expert and projection."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.shape import Shape

# Runs of few different lengths: a matrix product of a new shape costs more to set up than to do.
_RUN_ROWS = 128


class _Dispatch(torch.autograd.Function):
    """Rows of `x` gathered at `source`; row t is found again at `places` [tokens * top_k], `top_k` times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.tokens = x.shape[0]
        return x.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradients[0].index_select(0, places).unflatten(0, (ctx.tokens, -1)).sum(1), None, None


class _Collect(torch.autograd.Function):
    """Rows of `x` at `places`, each of which occurs once; the other rows get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = x.shape[0]
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        gradient = gradients[0]
        return gradient.new_zeros(ctx.rows, gradient.shape[1]).index_copy_(0, places, gradient), None


class _GroupedLinear(torch.autograd.Function):
    """`x` [rows, in] in runs of `counts` rows, each run times its own matrix of `weights` [experts, out, in]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.counts = counts
        return torch.cat([F.linear(rows, weight) for rows, weight in zip(x.split(counts), weights, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weights = ctx.saved_tensors
        runs = list(zip(gradients[0].split(ctx.counts), x.split(ctx.counts), weights, strict=True))
        to_x = torch.cat([gradient @ weight for gradient, _, weight in runs])
        return to_x, torch.stack([gradient.t() @ rows for gradient, rows, _ in runs]), None


def gated(rows: Tensor, weights: Tensor) -> Tensor:
    """The experts' activation: `rows` [rows, 2 * inner] hold gate and value; `weights` are fp32 [rows, 1]."""
    gate, up = rows.chunk(2, -1)
    return (F.silu(gate.float()) * up.float() * weights).to(rows.dtype)


class Gate(nn.Module):
    """Group-limited sigmoid routing with a bias that only decides which experts are chosen."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.randn(shape.n_routed_experts, shape.hidden_size) * shape.hidden_size**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.n_routed_experts))
        self.register_buffer("load", torch.zeros(shape.n_routed_experts), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights fp32 and ids int64, both [tokens, top_k], for `x` [tokens, hidden] in fp32."""
        shape = self.shape
        scores = F.linear(x, self.weight).sigmoid()
        with torch.no_grad():
            choice = (scores + self.e_score_correction_bias).unflatten(1, (shape.n_group, -1))
            groups = choice.topk(2, dim=-1).values.sum(-1).topk(shape.topk_group, dim=-1).indices
            kept = torch.zeros(choice.shape[:2], dtype=torch.bool).scatter_(1, groups, True)
            ids = choice.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(1).topk(shape.num_experts_per_tok).indices
        weights = scores.gather(1, ids)
        return weights / (weights.sum(-1, keepdim=True) + 1e-20) * shape.routed_scaling_factor, ids

    def balance(self, rate: float) -> None:
        """Move the bias by `rate` towards the experts that got less than their share since the last call."""
        self.e_score_correction_bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class Experts(nn.Module):
    """The routed experts' weights, gate and up projection as one matrix each."""

    def __init__(self, shape: Shape, output_scale: float) -> None:
        super().__init__()
        count, hidden, inner = shape.n_routed_experts, shape.hidden_size, shape.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * inner, hidden) * hidden**-0.5)
        self.down_proj = nn.Parameter(torch.randn(count, hidden, inner) * inner**-0.5 * output_scale)

    def forward(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The weighted sum of each token's experts: [tokens, hidden] fp32 for `x` [tokens, hidden]."""
        source, places, counts = _runs(ids, self.gate_up_proj.shape[0])
        rows = _GroupedLinear.apply(_Dispatch.apply(x, source, places), self.gate_up_proj.to(x.dtype), counts)
        # Weighted before the second product, whose rows are wider; fillers weigh nothing.
        row_weights = weights.new_zeros(len(source), 1).index_put((places,), weights.reshape(-1, 1))
        rows = _GroupedLinear.apply(gated(rows, row_weights), self.down_proj.to(x.dtype), counts)
        return _Collect.apply(rows, places).unflatten(0, (-1, ids.shape[1])).sum(1, dtype=torch.float32)


def _runs(ids: Tensor, expert_count: int) -> tuple[Tensor, Tensor, list[int]]:
    """Lay the choices `ids` [tokens, top_k] out by expert, each expert's run filled up to a multiple of `_RUN_ROWS`.

    Returns each row's token (0 in fillers), each choice's row, and the length of each run.
    """
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    counts = flat.bincount(minlength=expert_count)
    padded = -(-counts // _RUN_ROWS) * _RUN_ROWS
    shift = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    places = torch.empty_like(order)
    places[order] = torch.arange(order.numel()) + shift[flat[order]]
    source = torch.zeros(int(padded.sum()), dtype=torch.long)
    source[places] = torch.arange(order.numel()) // ids.shape[1]
    return source, places, padded.tolist()

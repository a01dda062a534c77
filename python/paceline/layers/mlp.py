"""The gated feed-forward block of the Llama families."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline import _core
from paceline.layers.host import array_of, has_kernels
from paceline.layers.linear import Linear
from paceline.parallel.context import Parallel


class GatedMlp:
    """`down(silu(gate(x)) * up(x))`, with gate and up fused into one product at load; summed over the tp workers."""

    __slots__ = ("down", "gate_up", "parallel")

    def __init__(self, gate_up: Linear, down: Linear, parallel: Parallel) -> None:
        """Take `gate_up [2 * intermediate, hidden]`, gate first, and `down [hidden, intermediate]`: this worker's part."""
        self.gate_up = gate_up
        self.down = down
        self.parallel = parallel

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to `x [tokens, hidden]`."""
        return self.parallel.all_reduce(gated(x, self.gate_up, self.down))


def gated(x: Tensor, gate_up: Linear, down: Linear) -> Tensor:
    """One gated feed-forward network on `x [tokens, hidden]`."""
    return down(activated(gate_up(x)))


def activated(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of `[tokens, 2 * width]`, gates first; gives `[tokens, width]`."""
    if not has_kernels(gate_up):
        gate, up = gate_up.tensor_split(2, dim=-1)
        return functional.silu(gate).mul_(up)
    product = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype)
    _core.gate(array_of(gate_up), array_of(product))
    return product

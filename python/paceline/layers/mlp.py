"""The gated feed-forward block of the Llama families."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from paceline.layers.linear import Linear


class GatedMlp:
    """`down(silu(gate(x)) * up(x))`, with gate and up fused into one product at load."""

    __slots__ = ("down", "gate_up", "intermediate_size")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        """Take `gate_up [2 * intermediate, hidden]`, gate first, and `down [hidden, intermediate]`."""
        self.gate_up = gate_up
        self.down = down
        self.intermediate_size = down.in_features

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to `x [tokens, hidden]`."""
        gate_up = self.gate_up(x)
        gate, up = gate_up[:, : self.intermediate_size], gate_up[:, self.intermediate_size :]
        return self.down(functional.silu(gate).mul_(up))

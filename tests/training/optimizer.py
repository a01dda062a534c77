"""Muon for the matrices, AdamW for everything else, behind one `step`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_WEIGHT_DECAY = 0.1
# Coefficients of the quintic iteration that drives singular values towards 1 (Keller Jordan, Muon).
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalised(gradient: Tensor, steps: int = 5) -> Tensor:
    """Matrices [..., rows, columns] of the same singular vectors with singular values near 1."""
    x = gradient.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * (square @ square)) @ x
    return (x if wide else x.mT).to(gradient.dtype)


class Optimizer:
    """Steps all parameters of a model; the learning rate is given at each step."""

    def __init__(self, model: nn.Module) -> None:
        self._matrices: list[tuple[Tensor, int]] = []
        decayed, plain = [], []
        for name, parameter in model.named_parameters():
            # Gate and up projection of an expert lie in one tensor and are two matrices.
            parts = 2 if name.endswith("gate_up_proj") else 1
            if parameter.ndim >= 2 and not name.startswith(("embed_tokens", "lm_head")) and ".gate." not in name:
                self._matrices.append((parameter, parts))
            else:
                (decayed if parameter.ndim >= 2 else plain).append(parameter)
        groups = [{"params": decayed, "weight_decay": _WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-10, fused=True)
        self._momenta = [torch.zeros_like(parameter) for parameter, _ in self._matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Apply the gradients with the learning rate `rate` and forget them."""
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self._adam.zero_grad()
        for (parameter, parts), momentum in zip(self._matrices, self._momenta, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            momentum.lerp_(gradient, 1 - _MOMENTUM)
            ahead = gradient.lerp(momentum, _MOMENTUM).unflatten(-2, (parts, -1))
            # Scaled so that an update is as large as AdamW's usually are.
            scale = 0.2 * max(ahead.shape[-2:]) ** 0.5
            parameter.mul_(1 - rate * _WEIGHT_DECAY)
            parameter.add_(orthogonalised(ahead).flatten(-3, -2), alpha=-rate * scale)
            parameter.grad = None

    def state(self) -> dict[str, object]:
        """What a checkpoint needs to go on."""
        return {"adam": self._adam.state_dict(), "momenta": self._momenta}

    def load(self, state: dict[str, object]) -> None:
        """Go on from `state`."""
        self._adam.load_state_dict(state["adam"])  # type: ignore[arg-type]
        self._momenta = state["momenta"]  # type: ignore[assignment]

"""Root-mean-square normalisation."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class RmsNorm:
    """`x / rms(x) * weight` over the last axis; computed in fp32 for half-width types, as transformers does."""

    __slots__ = ("eps", "shape", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        """Take `weight` of shape `[width]`."""
        self.weight = weight
        self.eps = eps
        self.shape = (weight.shape[-1],)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise `x` of shape `[..., width]`; the result has its shape and type."""
        return functional.rms_norm(x, self.shape, self.weight, self.eps)

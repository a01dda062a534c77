"""Normalisation over the last axis."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional


class Norm(Protocol):
    """What the layers of a family normalise with."""

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise `x [..., width]`; the result has its shape and type."""


class RmsNorm:
    """`x / rms(x) * weight`; computed in fp32 for half-width types, as transformers does."""

    __slots__ = ("eps", "shape", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        """Take `weight` of shape `[width]`."""
        self.weight = weight
        self.eps = eps
        self.shape = (weight.shape[-1],)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise `x` of shape `[..., width]`; the result has its shape and type."""
        return functional.rms_norm(x, self.shape, self.weight, self.eps)


class LayerNorm:
    """`(x - mean) / deviation * weight + bias`."""

    __slots__ = ("bias", "eps", "shape", "weight")

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        """Take `weight` and `bias` of shape `[width]`."""
        self.weight = weight
        self.bias = bias
        self.eps = eps
        self.shape = (weight.shape[-1],)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise `x` of shape `[..., width]`; the result has its shape and type."""
        return functional.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

"""Normalisation over the last axis, with the addition to the residual stream that comes before it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline import _core
from paceline.layers.host import array_of, has_kernels


class Norm(Protocol):
    """What the layers of a family normalise with."""

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise `x [tokens, width]`; the result has its shape and type."""

    def after(self, x: Tensor, added: Tensor | None) -> Tensor:
        """Add `added [tokens, width]` to `x` in place, if there is any, and normalise the sum."""


class RmsNorm:
    """`x / rms(x) * weight`; computed in fp32 for half-width types, as transformers does."""

    __slots__ = ("array", "eps", "shape", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        """Take `weight` of shape `[width]`."""
        self.weight = weight
        self.eps = eps
        self.shape = (weight.shape[-1],)
        self.array = array_of(weight) if has_kernels(weight) else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise `x` of shape `[tokens, width]`; the result has its shape and type."""
        return self.after(x, None)

    def after(self, x: Tensor, added: Tensor | None) -> Tensor:
        """Add `added` to `x` in place, if there is any, and normalise the sum."""
        if self.array is None:
            if added is not None:
                x += added
            return functional.rms_norm(x, self.shape, self.weight, self.eps)
        if added is None:
            x = x.contiguous()
        normed = torch.empty_like(x)
        _core.rms_norm(array_of(x), None if added is None else array_of(added), self.array, self.eps, array_of(normed))
        return normed


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
        """Normalise `x` of shape `[tokens, width]`; the result has its shape and type."""
        return functional.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

    def after(self, x: Tensor, added: Tensor | None) -> Tensor:
        """Add `added` to `x` in place, if there is any, and normalise the sum."""
        if added is not None:
            x += added
        return self(x)

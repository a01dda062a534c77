"""Products with int8 weights on a CPU: symmetric, a factor for each output, and one for each row of inputs when it comes.

Sums are exact integers, so there may be two ways to the same bits: the kernel of `_core` for few rows, whose time is that
of reading the bytes once, and oneDNN's product for many; see `paceline.layers.wide`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline._core import Int8Matrix, quantise_rows
from paceline.layers.host import array_of
from paceline.layers.wide import WIDE_LAYOUTS, WideProduct, has_wide_product

# Up to so many rows the kernel of `_core` is as fast as oneDNN's product or faster.
OWN_ROWS_MAX = 4


class Int8Weight:
    """`x @ weight.T + bias` with what `weight` and `x` become in 255 values a row."""

    __slots__ = ("_matrix", "_out_features", "_wide")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantise `weight [out, in]`, float32 or bfloat16, and keep no other form of it; add `bias [out]` to products."""
        self._out_features = weight.shape[0]
        quantised, factors = _quantised(weight)
        bias_array = None if bias is None else bias.float().numpy()
        self._matrix = Int8Matrix(quantised.numpy(), factors.numpy(), bias_array)
        self._wide: WideProduct | None = None
        if has_wide_product():
            self._wide = WideProduct(quantised)
            WIDE_LAYOUTS.add(self._wide)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to `x [rows, in]`; gives `[rows, out]` of the same type."""
        product = torch.empty(x.shape[0], self._out_features, dtype=x.dtype)
        if x.shape[0] <= OWN_ROWS_MAX or self._wide is None or not self._wide.is_ready:
            self._matrix.multiply(array_of(x.contiguous()), array_of(product))
        else:
            quantised, scales = _quantised(x)
            self._matrix.finish(self._wide(quantised).numpy(), scales.numpy(), array_of(product))
        return product


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x [rows, width]` as bytes, and the factor of each row."""
    quantised, factors = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])
    quantise_rows(array_of(x.contiguous()), quantised.numpy(), factors.numpy())
    return quantised, factors

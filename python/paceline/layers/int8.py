"""Products with int8 weights on a CPU: symmetric, a factor for each output, and one for each row of inputs when it comes.

Sums are exact integers, so there may be two ways to the same bits: the kernel of `_core` for few rows, whose time is that
of reading the bytes once, and oneDNN's product for many, which uses the processor's matrix unit where it has one.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from paceline._core import Int8Matrix, quantise_rows
from paceline.layers.host import array_of

# Up to so many rows the kernel of `_core` is as fast as oneDNN's product or faster.
OWN_ROWS_MAX = 8


class Int8Weight:
    """`x @ weight.T + bias` with what `weight` and `x` become in 255 values a row."""

    __slots__ = ("_matrix", "_out_features", "_wide")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantise `weight [out, in]`, float32 or bfloat16, and keep no other form of it; add `bias [out]` to products."""
        self._out_features = weight.shape[0]
        quantised, factors = _quantised(weight)
        bias_array = None if bias is None else bias.float().numpy()
        self._matrix = Int8Matrix(quantised.numpy(), factors.numpy(), bias_array)
        self._wide = _Wide(quantised) if has_wide_product() else None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to `x [rows, in]`; gives `[rows, out]` of the same type."""
        product = torch.empty(x.shape[0], self._out_features, dtype=x.dtype)
        if self._wide is None or x.shape[0] <= OWN_ROWS_MAX:
            self._matrix.multiply(array_of(x.contiguous()), array_of(product))
        else:
            quantised, scales = _quantised(x)
            self._matrix.finish(self._wide(quantised).numpy(), scales.numpy(), array_of(product))
        return product


class _Wide:
    """oneDNN's product of bytes, its weight laid out once; gives the sums as fp32."""

    __slots__ = ("_factors", "_packed", "_zeros")

    def __init__(self, quantised: Tensor) -> None:
        self._packed = torch.ops.onednn.qlinear_prepack(quantised, None)
        self._factors = torch.ones(quantised.shape[0])
        self._zeros = torch.zeros(quantised.shape[0], dtype=torch.int64)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply `x [rows, in]`, bytes."""
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, self._packed, self._factors, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return sums


@cache
def has_wide_product() -> bool:
    """Whether torch offers oneDNN's product here, the processor has a matrix unit for it, and its sums are exact.

    Without that unit some processors add pairs of products in 16 bits, which large ones do not fit.
    """
    if not (hasattr(torch.ops.onednn, "qlinear_prepack") and torch.cpu._is_amx_tile_supported()):
        return False
    weight = torch.full((48, 1536), 127, dtype=torch.int8)
    weight[::3] = -127
    weight[:, ::7] = 3
    rows = weight[:40].clone()
    exact = (rows.double() @ weight.double().T).float()
    return torch.equal(_Wide(weight)(rows), exact)


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x [rows, width]` as bytes, and the factor of each row."""
    quantised, factors = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])
    quantise_rows(array_of(x.contiguous()), quantised.numpy(), factors.numpy())
    return quantised, factors

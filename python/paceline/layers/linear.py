"""Linear layers over weights in Hugging Face's orientation `[out, in]`.

On CPUs the weight is laid out once for oneDNN's matrix kernels where torch offers that: at a few rows it halves the
time of the large products. The result is the same matrix product; only its blocking differs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# The row count that the packed layout is tuned for: a decode batch. Measured against 1, 8 and 512, it is the best or
# nearly so at every row count from 4 to 512.
_PACK_ROWS = 32

# In fp32 a packed product of fewer elements costs more to call than it saves: 23 us against 5 us at 192 x 192, one row.
_PACK_ELEMENTS_FP32 = 1 << 19


class Linear:
    """`x @ weight.T + bias`."""

    __slots__ = ("_packed", "bias", "in_features", "out_features", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = False) -> None:
        """Take `weight [out, in]` and `bias [out]`. With `pack`, keep the CPU layout only and free `weight`."""
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._packed: Tensor | None = None
        self.weight: Tensor | None = weight
        if pack and can_pack(weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
            self.weight = None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to `x [rows, in]`; gives `[rows, out]` of the same type."""
        if self._packed is not None:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return product
        assert self.weight is not None
        return functional.linear(x, self.weight, self.bias)


def can_pack(weight: Tensor) -> bool:
    """Whether prepacked weights of this type, size and device are known here, and worth it."""
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32 and weight.numel() >= _PACK_ELEMENTS_FP32

"""Linear layers over weights in Hugging Face's orientation `[out, in]`.

On CPUs with matrix instructions, products in bfloat16 are a kernel of our own. Few rows, whose time is that of reading the
weights, read three quarters of their bytes, from which the kernel has the same numbers; many read the checkpoint's mapped pages,
or a copy where there are none. A row gives the same bits however many come with it. Without such instructions few rows are read
so too; for more, and in fp32, the weight is laid out once for oneDNN's matrix kernels where torch offers that: it halves the time
of the large products, and only the order of sums differs. With int8 weights it is another product, of half the bytes; see
`paceline.layers.int8`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from paceline import _core
from paceline.layers.host import array_of
from paceline.layers.int8 import Int8Weight
from paceline.layers.plain import PLAIN_WEIGHTS
from paceline.layers.quantization import Quantization

# The row count that the packed layout is tuned for: a decode batch. Measured against 1, 8 and 512, it is the best or
# nearly so at every row count from 4 to 512.
_PACK_ROWS = 32

# In fp32 a packed product of fewer elements costs more to call than it saves: 23 us against 5 us at 192 x 192, one row.
_PACK_ELEMENTS_FP32 = 1 << 19

# Up to so many rows our kernel is faster without matrix instructions: one thread, 49152 x 576, 3.2 ms at 1 and 4.0 at 4
# against 5.6 and 5.7. At 8 rows its arithmetic takes longer than reading the weights, 8.5 ms.
PLAIN_ROWS_MAX = 4

# With matrix instructions it has 0.9 to 1.25 times the speed of oneDNN's layout from 65 to 512 rows, more at 128 than at 512, and
# nothing has to be laid out.
TILE_ROWS_MAX = sys.maxsize


@dataclass(frozen=True, slots=True)
class PlainProduct:
    """A bfloat16 weight and its bias, for products of at most `rows_max` rows."""

    weight: _core.LinearWeight
    rows_max: int


class Linear:
    """`x @ weight.T + bias`."""

    __slots__ = (
        "_int8",
        "_packed",
        "bias",
        "in_features",
        "out_features",
        "plain",
        "weight",
    )

    def __init__(
        self,
        weight: Tensor | Sequence[Tensor],
        bias: Tensor | None = None,
        *,
        pack: bool = False,
        is_shared: bool = False,
        quantization: Quantization = Quantization.NONE,
    ) -> None:
        """Take `weight [out, in]`, or parts of it that follow each other in the outputs, and `bias [out]`.

        With `pack`, keep what the CPU's kernels take and free the weight. `is_shared` says that its memory is a mapped file's, or
        that others hold it anyway, so that no copy of it is needed. With int8, keep bytes with a factor for each output: a row
        of `x` is then quantised too, with a factor of its own.
        """
        parts = [weight] if isinstance(weight, Tensor) else list(weight)
        weight = parts[0] if len(parts) == 1 else torch.cat(parts)
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._packed: Tensor | None = None
        self._int8: Int8Weight | None = None
        self.weight: Tensor | None = weight
        # The weight as our kernel takes it, if it does.
        self.plain: PlainProduct | None = None
        if quantization is Quantization.INT8:
            self._int8 = Int8Weight(weight, bias)
            self.weight = None
        elif pack and can_pack(weight):
            if can_stay_plain(weight):
                self.plain = _plain_product(weight, parts if is_shared else [], bias)
            if self.plain is None or self.plain.rows_max < TILE_ROWS_MAX:
                self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
            self.weight = None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to `x [rows, in]`; gives `[rows, out]` of the same type."""
        if self._int8 is not None:
            return self._int8(x)
        if self.plain is not None and x.shape[0] <= self.plain.rows_max:
            ours = torch.empty(x.shape[0], self.out_features, dtype=x.dtype)
            _core.linear(array_of(x.contiguous()), self.plain.weight, array_of(ours))
            return ours
        if self._packed is not None:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return product
        assert self.weight is not None
        return functional.linear(x, self.weight, self.bias)


def _plain_product(weight: Tensor, shared: list[Tensor], bias: Tensor | None) -> PlainProduct | None:
    """What our kernel reads: `shared`, the parts of `weight`, if they need no copy; `None` if there is no room for one."""
    rows_max = TILE_ROWS_MAX if are_tiles(weight) else PLAIN_ROWS_MAX
    bias_array = None if bias is None else array_of(bias)
    # Instructions that take a part must be those that would take the whole: the bits of others differ.
    if shared and all(are_tiles(part) == are_tiles(weight) for part in shared):
        parts = [PLAIN_WEIGHTS.share(array_of(part.contiguous())) for part in shared]
        return PlainProduct(PLAIN_WEIGHTS.compress(parts, bias_array), rows_max)
    copy = PLAIN_WEIGHTS.keep(weight)
    return None if copy is None else PlainProduct(PLAIN_WEIGHTS.compress([array_of(copy)], bias_array), rows_max)


def can_stay_plain(weight: Tensor) -> bool:
    """Whether our kernel takes weights of this type, size and device."""
    fits = weight.dtype is torch.bfloat16 and weight.shape[1] > 0 and weight.shape[1] % 2 == 0
    return fits and weight.device.type == "cpu"


def are_tiles(weight: Tensor) -> bool:
    """Whether our kernel takes this weight with matrix instructions."""
    fits = weight.shape[0] >= 16 and weight.shape[1] % 32 == 0
    return fits and can_stay_plain(weight) and _core.has_matrix_instructions()


def can_pack(weight: Tensor) -> bool:
    """Whether prepacked weights of this type, size and device are known here, and worth it."""
    if weight.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32 and weight.numel() >= _PACK_ELEMENTS_FP32

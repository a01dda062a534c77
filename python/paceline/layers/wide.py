"""oneDNN's product of bytes, for many rows: it uses the processor's matrix unit where there is one.

To lay its weights out takes longer than to read them, 8 ns a weight. A worker does it behind its back, once it is ready;
until then the kernel of `_core` makes all products, whose bits are the same.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from functools import cache

import torch
from torch import Tensor

# Of the thread that lays weights out: steps come first, and yet it ends when they never pause.
_NICENESS = 10


class WideProduct:
    """The product with one weight, once that is laid out."""

    __slots__ = ("__weakref__", "_factors", "_packed", "_quantised", "_zeros")

    def __init__(self, quantised: Tensor) -> None:
        """Take a weight `[out, in]` of bytes."""
        self._quantised: Tensor | None = quantised
        self._packed: Tensor | None = None
        self._factors = torch.ones(quantised.shape[0])
        self._zeros = torch.zeros(quantised.shape[0], dtype=torch.int64)

    @property
    def is_ready(self) -> bool:
        """Whether its weight is laid out."""
        return self._packed is not None

    def lay_out(self) -> None:
        """Lay the weight out, and keep no other form of it."""
        if self._quantised is not None:
            self._packed = torch.ops.onednn.qlinear_prepack(self._quantised, None)
            self._quantised = None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply `x [rows, in]`, bytes, by a weight that is laid out; gives the exact sums `[rows, out]` as fp32."""
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, self._packed, self._factors, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return sums


class WideLayouts:
    """When weights are laid out: as they come, or later in a thread of its own."""

    def __init__(self) -> None:
        """Begin with laying out as they come."""
        self._is_put_off = False
        self._waiting: deque[weakref.ref[WideProduct]] = deque()

    def add(self, product: WideProduct) -> None:
        """Lay its weight out, or have it wait."""
        if self._is_put_off:
            self._waiting.append(weakref.ref(product))
        else:
            product.lay_out()

    def put_off(self) -> None:
        """Have weights wait from now on."""
        self._is_put_off = True

    def make_up(self) -> threading.Thread | None:
        """Lay out what waits, in a thread that ends with that or with the program; no thread where nothing waits."""
        self._is_put_off = False
        if not self._waiting:
            return None
        thread = threading.Thread(target=self._run, name="int8-layouts")
        thread.start()
        return thread

    def _run(self) -> None:
        if sys.platform == "linux":
            # There a thread has a niceness of its own, whatever the name says.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while self._waiting and threading.main_thread().is_alive():
            product = self._waiting.popleft()()
            if product is not None:
                product.lay_out()


WIDE_LAYOUTS = WideLayouts()


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
    product = WideProduct(weight)
    product.lay_out()
    return torch.equal(product(rows), exact)

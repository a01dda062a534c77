"""Tensors in a CPU's memory as the arrays that the kernels of `_core` take: the same memory, bfloat16 as its bits."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def has_kernels(x: Tensor) -> bool:
    """Whether the kernels of `_core` take tensors of this device and type; elsewhere torch's own operations serve."""
    return x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float32)


def array_of(x: Tensor) -> NDArray[Any]:
    """`x`, contiguous, as an array over the same memory."""
    return (x.view(torch.uint16) if x.dtype is torch.bfloat16 else x).numpy()

"""Weights as a checkpoint stores them: what our products read.

Most are the checkpoint's own pages, mapped. Copies of those that had to be converted, cut by columns or joined lie side by
side in huge pages. As long as there is room, each is there once more in three quarters of its bytes, which take so much less
time to read: products of few rows read it instead.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline import _core

# So much is copied or compressed; what is loaded beyond that is read where it lies, or laid out for oneDNN only.
KEPT_BYTES_MAX = 2 << 30
_SLAB_BYTES = 64 << 20
_HUGE_PAGE_BYTES = 2 << 20
# Every weight begins on a line of the cache.
_LINE_BYTES = 64


class PlainWeights:
    """Memory for copies of weights; it is given back as the copies go."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        """Hold at most `bytes_max` at a time."""
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._shared_bytes = 0
        self._slab: weakref.ref[mmap.mmap] | None = None
        self._used_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that are taken from the machine now."""
        return self._held_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of weights that are read where they lie, in a mapped file or an embedding."""
        return self._shared_bytes

    def share(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Count `weight`, of which no copy is needed, for as long as it is used."""
        self._shared_bytes += weight.nbytes
        weakref.finalize(weight, self._leave, weight.nbytes)
        return weight

    def compress(self, parts: list[NDArray[np.uint16]], bias: NDArray[np.uint16] | None) -> _core.LinearWeight:
        """The weight of these parts `[out, in]` for our kernel, compressed if it can be and there is room."""
        has_room = self._held_bytes + sum(part.nbytes for part in parts) <= self._bytes_max
        weight = _core.LinearWeight(parts, bias, compress=has_room)
        self._held_bytes += weight.compressed_bytes
        weakref.finalize(weight, self._release, weight.compressed_bytes)
        return weight

    def keep(self, weight: Tensor) -> Tensor | None:
        """Copy `weight`, on a CPU; gives the copy, or `None` where there is no room for it."""
        size = weight.numel() * weight.element_size()
        slab = None if self._slab is None else self._slab()
        if slab is None or self._used_bytes + size > len(slab):
            slab = self._take(max(_SLAB_BYTES, -(-size // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES))
            if slab is None:
                return None
        copy = torch.frombuffer(slab, dtype=weight.dtype, count=weight.numel(), offset=self._used_bytes).view(weight.shape)
        self._used_bytes += -(-size // _LINE_BYTES) * _LINE_BYTES
        return copy.copy_(weight)

    def _take(self, size: int) -> mmap.mmap | None:
        if self._held_bytes + size > self._bytes_max:
            return None
        slab = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            slab.madvise(mmap.MADV_HUGEPAGE)
        self._held_bytes += size
        weakref.finalize(slab, self._release, size)
        self._slab, self._used_bytes = weakref.ref(slab), 0
        return slab

    def _release(self, size: int) -> None:
        self._held_bytes -= size

    def _leave(self, size: int) -> None:
        self._shared_bytes -= size


PLAIN_WEIGHTS = PlainWeights()

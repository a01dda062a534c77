"""Collectives over one group of workers: each is counted as it is entered, and a peer that leaves has an error of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, distributed


class PeerLostError(Exception):
    """A collective ended because a peer left."""


class Counter(Protocol):
    """Where collectives are counted; one for all groups of a worker."""

    collectives: int


class Collectives:
    """The workers of one group, in order. The process group behind it is another one in every epoch.

    A group of one has none: every operation is the identity.
    """

    def __init__(self, size: int, rank: int, counter: Counter) -> None:
        """Be worker `rank` of `size`."""
        self.size = size
        self.rank = rank
        self._counter = counter
        self._group: Any = None

    def attach(self, group: Any) -> None:
        """Take the process group of an epoch; `None` after it has been left."""
        self._group = group

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum `x` over the workers, in its own memory; all get the same bits."""
        if self.size == 1:
            return x
        x = x.contiguous()
        self._enter(lambda: distributed.all_reduce(x, group=self._joined()))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Stack `x [rows, ...]` of all workers: `[size * rows, ...]`."""
        if self.size == 1:
            return x
        x = x.contiguous()
        gathered = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        self._enter(lambda: distributed.all_gather_into_tensor(gathered, x, group=self._joined()))
        return gathered

    def all_to_all(self, x: Tensor) -> Tensor:
        """Send the i-th part of `x [size * rows, ...]` to worker i; gives the parts received, in the order of senders."""
        if self.size == 1:
            return x
        x = x.contiguous()
        received = torch.empty_like(x)
        self._enter(lambda: distributed.all_to_all_single(received, x, group=self._joined()))
        return received

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Sum `x [size * rows, ...]` over the workers; gives this worker's part `[rows, ...]`.

        On CPUs the parts are exchanged and summed here, in the order of the workers: gloo's own takes twice the time, and
        sums in an order that depends on where a row stands.
        """
        if self.size == 1:
            return x
        if x.device.type == "cpu":
            return ordered_sum(self.all_to_all(x), self.size)
        x = x.contiguous()
        total = x.new_empty(x.shape[0] // self.size, *x.shape[1:])
        self._enter(lambda: distributed.reduce_scatter_tensor(total, x, group=self._joined()))
        return total

    def _joined(self) -> Any:
        if self._group is None:
            raise PeerLostError("this worker has left its group")
        return self._group

    def _enter(self, collective: Callable[[], object]) -> None:
        self._counter.collectives += 1
        try:
            collective()
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise PeerLostError(f"a peer left the group: {reason}") from None


def ordered_sum(stacked: Tensor, count: int) -> Tensor:
    """Sum the `count` parts of `[count * rows, ...]` in order, in fp32; gives `[rows, ...]` of the same type."""
    first, *others = stacked.chunk(count)
    total = first.float()
    for part in others:
        total = total + part.float()
    return total.to(stacked.dtype)

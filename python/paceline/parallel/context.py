"""What a model is built with: which shard of it this worker holds, and how partial results are joined."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.parallel.exchange import ExpertExchange, LocalExchange


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` equal parts; `index` counts from 0."""

    index: int
    count: int

    def range_of(self, size: int) -> range:
        """The part of `0 .. size - 1` that is this shard's: contiguous, all of one size but the last, which may be short."""
        width = -(-size // self.count)
        return range(min(self.index * width, size), min((self.index + 1) * width, size))


class Parallel:
    """The workers of one rank, as its model sees them. This one is alone: every operation is the identity."""

    def __init__(self, tp: Shard, exchange: ExpertExchange) -> None:
        """Take the shard that the worker holds and the exchange that its MoE layers use."""
        self.tp = tp
        self.exchange = exchange

    @classmethod
    def single(cls, expert_count: int = 0) -> Parallel:
        """A worker that holds the whole model, all `expert_count` experts included."""
        return cls(Shard(0, 1), LocalExchange(expert_count))

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of `x` over the tp workers; may reuse the memory of `x`."""
        return x

    def all_gather_last(self, x: Tensor) -> Tensor:
        """`x` of all tp workers, concatenated along the last axis in the order of their shards."""
        return x

"""What a model is built with: which shard of it this worker holds, and how partial results are joined."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.parallel.collectives import Collectives
from paceline.parallel.exchange import ExpertExchange, LocalExchange
from paceline.parallel.shard import Shard

__all__ = ["Parallel", "Shard"]


class Parallel:
    """The workers of one rank, as its model sees them. Alone, every operation is the identity."""

    def __init__(self, tp: Shard, exchange: ExpertExchange, workers: Collectives | None = None) -> None:
        """Take the shard that the worker holds, the exchange that its MoE layers use, and the tp workers of its rank."""
        self.tp = tp
        self.exchange = exchange
        self._workers = workers

    @classmethod
    def single(cls, expert_count: int = 0) -> Parallel:
        """A worker that holds the whole model, all `expert_count` experts included."""
        return cls(Shard(0, 1), LocalExchange(expert_count))

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of `x` over the tp workers; may reuse the memory of `x`."""
        return x if self._workers is None else self._workers.all_reduce(x)

    def all_gather_last(self, x: Tensor) -> Tensor:
        """`x [rows, columns]` of all tp workers, concatenated along the last axis in the order of their shards."""
        if self._workers is None or self._workers.size == 1:
            return x
        return torch.cat(self._workers.all_gather(x).chunk(self._workers.size), dim=-1)

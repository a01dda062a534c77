"""The tp workers of one rank as threads of the test: sharded models, without processes or a network."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from paceline.parallel.context import Parallel, Shard
from paceline.parallel.exchange import Experts, PassTokens

PATIENCE_S = 60
Result = TypeVar("Result")


class _Meeting:
    """Where workers leave what the others are to see."""

    def __init__(self, count: int) -> None:
        self._barrier = Barrier(count, timeout=PATIENCE_S)
        self._left: list[Tensor] = [torch.empty(0)] * count

    def swap(self, index: int, x: Tensor) -> list[Tensor]:
        """Leave `x`; gives what all have left, in order."""
        self._left[index] = x.clone()
        self._barrier.wait()
        seen = list(self._left)
        self._barrier.wait()
        return seen

    def abort(self) -> None:
        """Wake those who wait for a worker that has failed."""
        self._barrier.abort()


class ThreadParallel(Parallel):
    """One tp worker; its exchange is itself: tokens are everywhere, each worker runs its experts."""

    def __init__(self, tp: Shard, expert_count: int, meeting: _Meeting) -> None:
        super().__init__(tp, self)
        self._meeting = meeting
        self.held = tp.range_of(expert_count)
        self.collectives = 0
        self._is_request: Tensor = torch.empty(0)

    def all_reduce(self, x: Tensor) -> Tensor:
        self.collectives += 1
        return torch.stack(self._meeting.swap(self.tp.index, x)).sum(dim=0)

    def all_gather_last(self, x: Tensor) -> Tensor:
        self.collectives += 1
        return torch.cat(self._meeting.swap(self.tp.index, x), dim=-1)

    def prepare(self, tokens: PassTokens) -> None:
        self._is_request = tokens.is_request.unsqueeze(1)

    def run(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        return self.all_reduce(experts(x, expert_ids.masked_fill(~self._is_request, -1), weights))


def on_shards(count: int, expert_count: int, worker: Callable[[ThreadParallel], Result]) -> list[Result]:
    """Run `worker` once per shard, at the same time; gives the results in order."""
    meeting = _Meeting(count)

    def run(index: int) -> Result:
        try:
            return worker(ThreadParallel(Shard(index, count), expert_count, meeting))
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(max_workers=count) as pool:
        return list(pool.map(run, range(count)))

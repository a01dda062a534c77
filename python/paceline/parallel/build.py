"""From settings to what a model is built with."""

from __future__ import annotations

from paceline.parallel.collectives import Collectives
from paceline.parallel.context import Parallel
from paceline.parallel.exchange import ExpertExchange, LocalExchange, SharedTokensExchange
from paceline.parallel.shard import Shard
from paceline.parallel.spread import AllToAllExchange, GatheringExchange

OFF = "off"
SPREADS = {"allgather_reducescatter": GatheringExchange, "all_to_all": AllToAllExchange}
KINDS = (OFF, *SPREADS)


def build_parallel(kind: str, expert_count: int, world: Collectives, workers: Collectives) -> Parallel:
    """Join a model's shards over `workers`, those of one rank, and its experts as `kind` (one of `KINDS`) says.

    `world` has all workers of the lockstep group. Both may be attached to their process groups later.
    """
    return Parallel(Shard(workers.rank, workers.size), _exchange(kind, expert_count, world, workers), workers)


def _exchange(kind: str, expert_count: int, world: Collectives, workers: Collectives) -> ExpertExchange:
    if expert_count and world.size > 1 and kind != OFF:
        return SPREADS[kind](expert_count, world, workers)
    if expert_count and workers.size > 1:
        return SharedTokensExchange(expert_count, workers)
    return LocalExchange(expert_count)

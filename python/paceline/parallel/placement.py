"""Where one worker stands among the workers that it runs in lockstep with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """One worker of a lockstep group: part `tp_index` of `tp_count` of the group's rank `dp_index` of `dp_count`."""

    dp_index: int = 0
    dp_count: int = 1
    tp_index: int = 0
    tp_count: int = 1

    @classmethod
    def of(cls, dp_rank: int, group_dp_ranks: Sequence[int], tp_rank: int, tp_size: int) -> Placement:
        """Place the worker (`dp_rank`, `tp_rank`) of a group; a size of 0 counts as 1."""
        return cls(list(group_dp_ranks).index(dp_rank), len(group_dp_ranks), tp_rank, max(1, tp_size))

    @property
    def world_size(self) -> int:
        """Workers of the group."""
        return self.dp_count * self.tp_count

    @property
    def world_rank(self) -> int:
        """This worker's number among them: tp workers of a rank are neighbours."""
        return self.dp_index * self.tp_count + self.tp_index

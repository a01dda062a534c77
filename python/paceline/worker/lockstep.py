"""Process groups of a lockstep group, and the test aid that compares what ranks are about to launch.

Nothing here decides a shape: the plan did. With `--lockstep on` every worker gathers (step, pass, rows, tokens) from its
peers before each pass, and a difference, which the plan's design rules out, is refused.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore

from paceline.parallel.collectives import Collectives, Counter
from paceline.parallel.placement import Placement
from paceline.worker.checks import LaunchRefusedError

# The longest step deadline (rule 15: 300 s at a shape's first run).
_COLLECTIVE_TIMEOUT = timedelta(seconds=300)
_STORE_HOST = "127.0.0.1"
_FIELDS = ("step", "pass", "rows_padded", "tokens_padded")


class ProcessGroups:
    """The process groups of one epoch: all workers of the lockstep group, and within it the tp workers of a rank.

    An epoch's store is bound by one live worker on a port of the system's choice. NCCL on GPUs, else gloo.
    """

    def __init__(self, placement: Placement, counter: Counter, device: str = "cpu") -> None:
        """Be the worker at `placement`; collectives are counted in `counter`."""
        self._placement = placement
        self._device = device
        self._store: TCPStore | None = None
        self._bound_epoch = -1
        self._counter = counter
        self.world = Collectives(placement.world_size, placement.world_rank, counter)
        self.workers = Collectives(placement.tp_count, placement.tp_index, counter)

    @property
    def collectives(self) -> int:
        """Collectives entered so far."""
        return self._counter.collectives

    def bind_store(self, epoch: int) -> tuple[str, int]:
        """Bind the store of `epoch`; gives its host and port."""
        self._store = TCPStore(_STORE_HOST, 0, is_master=True, wait_for_workers=False, timeout=_COLLECTIVE_TIMEOUT)
        self._bound_epoch = epoch
        return _STORE_HOST, self._store.port

    def form(self, epoch: int, host: str, port: int, world_size: int, world_rank: int) -> None:
        """Join the groups of `epoch`, leaving any earlier ones. A group of one needs no process group.

        Raises `ValueError` when the daemon places this worker elsewhere than its welcome did.
        """
        self.close()
        placement = self._placement
        if (world_size, world_rank) != (placement.world_size, placement.world_rank):
            expected = f"{placement.world_rank} of {placement.world_size}"
            raise ValueError(f"the group forms with this worker as {world_rank} of {world_size}, expected {expected}")
        if world_size == 1:
            return
        if host in ("127.0.0.1", "localhost"):
            # Otherwise gloo looks the machine's own name up, which need not resolve.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = self._store
        if store is None or self._bound_epoch != epoch:
            store = TCPStore(host, port, is_master=False, timeout=_COLLECTIVE_TIMEOUT)
        distributed.init_process_group(
            "nccl" if self._device.startswith("cuda") else "gloo",
            store=PrefixStore(f"epoch{epoch}", store),
            rank=world_rank,
            world_size=world_size,
            timeout=_COLLECTIVE_TIMEOUT,
        )
        self.world.attach(distributed.group.WORLD)
        if placement.tp_count == world_size:
            self.workers.attach(distributed.group.WORLD)
        elif placement.tp_count > 1:
            first = world_rank - placement.tp_index
            ranks = list(range(first, first + placement.tp_count))
            self.workers.attach(distributed.new_group(ranks, timeout=_COLLECTIVE_TIMEOUT, use_local_synchronization=True))

    def close(self) -> None:
        """Leave the process groups, which frees peers that wait for this worker."""
        self.world.attach(None)
        self.workers.attach(None)
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def compare(self, dp_rank: int, step: int, pass_index: int, rows_padded: int, tokens_padded: int) -> None:
        """Gather what every worker is about to launch; nothing in a group of one.

        Raises `LaunchRefusedError` naming the field that differs, `PeerLostError`.
        """
        if self.world.size == 1:
            return
        own = torch.tensor([step, pass_index, rows_padded, tokens_padded], dtype=torch.int64, device=self._device)
        for peer in self.world.all_gather(own).view(self.world.size, -1).tolist():
            for field, mine, theirs in zip(_FIELDS, own.tolist(), peer, strict=True):
                if mine != theirs:
                    raise LaunchRefusedError("rule 2", f"{field} on all ranks", mine, theirs, dp_rank, step)

"""Process groups of a lockstep group, and the test aid that compares what ranks are about to launch.

Nothing here decides a shape: the plan did. With `--lockstep on` every rank gathers (step, pass, rows, tokens) from its
peers before each pass, and a difference, which the plan's design rules out, is refused.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore

from paceline.worker.checks import LaunchRefusedError

# The longest step deadline (rule 15: 300 s at a shape's first run).
_COLLECTIVE_TIMEOUT = timedelta(seconds=300)
_STORE_HOST = "127.0.0.1"
_FIELDS = ("step", "pass", "rows_padded", "tokens_padded")


class PeerLostError(Exception):
    """A collective ended because a peer left."""


class ProcessGroups:
    """The gloo group of one epoch. An epoch's store is bound by one live worker on a port of the system's choice."""

    def __init__(self) -> None:
        self._store: TCPStore | None = None
        self._bound_epoch = -1
        self.collectives = 0
        self.world_size = 1

    def bind_store(self, epoch: int) -> tuple[str, int]:
        """Bind the store of `epoch`; gives its host and port."""
        self._store = TCPStore(_STORE_HOST, 0, is_master=True, wait_for_workers=False, timeout=_COLLECTIVE_TIMEOUT)
        self._bound_epoch = epoch
        return _STORE_HOST, self._store.port

    def form(self, epoch: int, host: str, port: int, world_size: int, world_rank: int) -> None:
        """Join the group of `epoch`, leaving any earlier one. A group of one needs no process group."""
        self.close()
        self.world_size = world_size
        if world_size == 1:
            return
        if host in ("127.0.0.1", "localhost"):
            # Otherwise gloo looks the machine's own name up, which need not resolve.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = self._store
        if store is None or self._bound_epoch != epoch:
            store = TCPStore(host, port, is_master=False, timeout=_COLLECTIVE_TIMEOUT)
        distributed.init_process_group(
            "gloo",
            store=PrefixStore(f"epoch{epoch}", store),
            rank=world_rank,
            world_size=world_size,
            timeout=_COLLECTIVE_TIMEOUT,
        )

    def close(self) -> None:
        """Leave the process group, which frees peers that wait for this rank."""
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self.world_size = 1

    def compare(self, dp_rank: int, step: int, pass_index: int, rows_padded: int, tokens_padded: int) -> None:
        """Gather what every rank is about to launch. Raises `LaunchRefusedError` naming the field that differs, `PeerLostError`."""
        own = torch.tensor([step, pass_index, rows_padded, tokens_padded], dtype=torch.int64)
        gathered = torch.empty(self.world_size * len(_FIELDS), dtype=torch.int64)
        try:
            distributed.all_gather_into_tensor(gathered, own)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise PeerLostError(f"a peer left the group: {reason}") from None
        self.collectives += 1
        for peer in gathered.view(self.world_size, -1).tolist():
            for field, mine, theirs in zip(_FIELDS, own.tolist(), peer, strict=True):
                if mine != theirs:
                    raise LaunchRefusedError("rule 2", f"{field} on all ranks", mine, theirs, dp_rank, step)

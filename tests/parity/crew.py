"""The workers of a lockstep group as processes that only run steps: real models and gloo, no daemon and no gRPC.

They are forked from a server that has imported torch, so a crew of four is there in a second.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from paceline._core import Pulse
from paceline.parallel.placement import Placement
from paceline.v1.worker_pb2 import StepEnvelope, Welcome, WorkerSettings
from paceline.worker.lockstep import ProcessGroups

PATIENCE_S = 120
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "paceline.worker.execution", "parity.crew"])


@dataclass(frozen=True)
class Stepped:
    """What one worker did in a step."""

    body: bytes
    tokens_digest: int
    passes: int
    collectives: int


class Crew:
    """One process per worker; `call` runs a function in all of them, `step` one step of the whole group."""

    def __init__(self, dp_ranks: Sequence[int], tp_size: int = 1) -> None:
        self.dp_ranks = list(dp_ranks)
        self.tp_size = tp_size
        # The address of a store that lives as long as the crew.
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._pipes: dict[tuple[int, int], Connection] = {}
        self._processes = []
        for dp_rank in self.dp_ranks:
            for tp_rank in range(tp_size):
                ours, theirs = _CONTEXT.Pipe()
                arguments = (theirs, self._store.port, dp_rank, self.dp_ranks, tp_rank, tp_size)
                process = _CONTEXT.Process(target=_live, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._pipes[dp_rank, tp_rank] = ours
                self._processes.append(process)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        for process in self._processes:
            process.terminate()
            process.join()

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run `function(worker, *arguments)` in every worker at once; gives the results, tp workers of a rank together."""
        return self._ask(dict.fromkeys(self._pipes, (function, arguments)))

    def load(self, folder: Path, settings: WorkerSettings) -> list[str]:
        """Load the checkpoint in `folder` in every worker and warm up; gives what each says of that."""
        settings.tp_size, settings.dp_size = self.tp_size, len(self.dp_ranks)
        return self.call(_load, str(folder), settings.SerializeToString())

    def reset(self) -> None:
        """Start over: every seat is void, steps count from 1."""
        self.call(_reset)

    def step(self, envelopes: Mapping[int, StepEnvelope]) -> dict[int, Stepped]:
        """Run one step; gives what came of it by rank.

        All workers must have run as many passes and collectives, and tp workers must agree on the tokens.
        """
        sent = {worker: envelopes[worker[0]].SerializeToString() for worker in self._pipes}
        results = dict(zip(self._pipes, self._ask({worker: (_step, (sent[worker],)) for worker in sent}), strict=True))
        assert len({(done.passes, done.collectives) for done in results.values()}) == 1, results
        for (dp_rank, _), done in results.items():
            assert done.tokens_digest == results[dp_rank, 0].tokens_digest
        return {dp_rank: results[dp_rank, 0] for dp_rank in self.dp_ranks}

    def _ask(self, calls: Mapping[tuple[int, int], tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Any]:
        for worker, call in calls.items():
            self._pipes[worker].send(call)
        answers = []
        for worker in calls:
            assert self._pipes[worker].poll(PATIENCE_S), f"no answer from {worker}"
            answers.append(self._pipes[worker].recv())
        for worker, (is_good, value) in zip(calls, answers, strict=True):
            assert is_good, f"worker {worker}: {value}"
        return [value for _, value in answers]


class CrewWorker:
    """What lives in a process of the crew."""

    def __init__(self, dp_rank: int, dp_ranks: list[int], tp_rank: int, tp_size: int) -> None:
        self.dp_rank = dp_rank
        self.dp_ranks = dp_ranks
        self.pulse = Pulse()
        self.placement = Placement.of(dp_rank, dp_ranks, tp_rank, tp_size)
        self.groups = ProcessGroups(self.placement, self.pulse)
        self.runner: Any = None
        self.loaded: Any = None


def _live(pipe: Connection, port: int, dp_rank: int, dp_ranks: list[int], tp_rank: int, tp_size: int) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    worker = CrewWorker(dp_rank, dp_ranks, tp_rank, tp_size)
    worker.groups.form(1, "127.0.0.1", port, worker.placement.world_size, worker.placement.world_rank)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = True, function(worker, *arguments)
        except Exception:
            answer = False, traceback.format_exc()
        pipe.send(answer)


def _load(worker: CrewWorker, folder: str, settings: bytes) -> str:
    from paceline.worker.load import load
    from paceline.worker.runner import Runner
    from paceline.worker.warmup import warm_up

    parsed = WorkerSettings.FromString(settings)
    welcome = Welcome(group=0, epoch=1, group_dp_ranks=worker.dp_ranks, settings=parsed)
    worker.loaded = load(Path(folder), worker.dp_rank, welcome, worker.groups, lambda stage, done, total: None)
    worker.runner = Runner(worker.loaded, worker.pulse, dp_rank=worker.dp_rank, is_lockstep=parsed.lockstep)
    said = warm_up(worker.loaded, parsed, worker.dp_rank).describe()
    worker.runner.reset(1)
    return said


def _reset(worker: CrewWorker) -> None:
    worker.runner.reset(1)


def _step(worker: CrewWorker, envelope: bytes) -> Stepped:
    done = worker.runner.execute(StepEnvelope.FromString(envelope))
    return Stepped(done.body, done.tokens_digest, done.passes, done.collectives)

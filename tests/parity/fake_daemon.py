"""The daemon's end of the worker protocol, for tests of real worker processes: real gRPC, scripted by the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import grpc

from paceline.v1.worker_pb2 import (
    BindStore,
    ControlFromWorker,
    ControlToWorker,
    Form,
    Join,
    StepEnvelope,
    StepFromWorker,
    StepToWorker,
    StoreBound,
    Welcome,
)
from paceline.v1.worker_pb2_grpc import WorkersServicer, add_WorkersServicer_to_server

PATIENCE_S = 60


class WorkerLink:
    """What passes between the fake daemon and one worker. Queues out take `None` for "close the stream"."""

    def __init__(self) -> None:
        self.control_out: Queue[ControlToWorker | None] = Queue()
        self.steps_out: Queue[StepToWorker | None] = Queue()
        self.control_in: Queue[ControlFromWorker] = Queue()
        self.steps_in: Queue[StepFromWorker] = Queue()
        self.heartbeats = 0

    def expect_control(self, kind: str) -> Any:
        """The next message on Control that is no progress report; it must be of `kind`."""
        while True:
            message = self.control_in.get(timeout=PATIENCE_S)
            got = message.WhichOneof("message")
            if got != "progress":
                assert got == kind, f"expected {kind}, got {message}"
                return getattr(message, got)

    def expect_step(self, kind: str) -> Any:
        """The next message on Steps, which must be of `kind`."""
        message = self.steps_in.get(timeout=PATIENCE_S)
        got = message.WhichOneof("message")
        assert got == kind, f"expected {kind}, got {message}"
        return getattr(message, got)

    def send_step(self, envelope: StepEnvelope) -> None:
        self.steps_out.put(StepToWorker(step=envelope))


class FakeDaemon(WorkersServicer):
    """Accepts workers by rank; tests drive each through its `WorkerLink`.

    With a `tp_size`, links of a rank's workers are neighbours: worker `tp_rank` of `dp_rank` has link
    `dp_rank * tp_size + tp_rank`.
    """

    def __init__(self, dp_size: int, tp_size: int = 1) -> None:
        self.tp_size = tp_size
        self.links = [WorkerLink() for _ in range(dp_size * tp_size)]
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4 * len(self.links) + 4))
        add_WorkersServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.processes: list[subprocess.Popen[str]] = []

    def Control(self, requests: Iterator[ControlFromWorker], context: grpc.ServicerContext) -> Iterator[ControlToWorker]:  # noqa: N802
        """Serve a Control stream."""
        join = next(requests).join
        link = self.links[join.dp_rank * self.tp_size + join.tp_rank]
        link.control_in.put(ControlFromWorker(join=join))
        self._pump(requests, link, link.control_in)
        yield from iter(link.control_out.get, None)

    def Steps(self, requests: Iterator[StepFromWorker], context: grpc.ServicerContext) -> Iterator[StepToWorker]:  # noqa: N802
        """Serve a Steps stream."""
        hello = next(requests).hello
        link = self.links[hello.dp_rank * self.tp_size + hello.tp_rank]
        link.steps_in.put(StepFromWorker(hello=hello))
        self._pump(requests, link, link.steps_in)
        yield from iter(link.steps_out.get, None)

    def start_worker(self, dp_rank: int, folder: Path, log: Path, token: str = "secret", tp_rank: int = 0) -> subprocess.Popen[str]:
        """Start a worker process of `dp_rank` on the checkpoint in `folder`; its stderr goes to `log`."""
        command = [sys.executable, "-m", "paceline.worker", "--daemon-address", f"127.0.0.1:{self.port}"]
        with log.open("w") as file:
            process = subprocess.Popen(
                [*command, "--dp-rank", str(dp_rank), "--tp-rank", str(tp_rank), "--model", str(folder)],
                stderr=file,
                text=True,
                env={**os.environ, "PACELINE_JOIN_TOKEN": token},
            )
        self.processes.append(process)
        return process

    def welcome(self, dp_rank: int, group_ranks: list[int], settings: Any, tp_rank: int = 0) -> Join:
        """Let a worker in; gives what it said of itself."""
        link = self.links[dp_rank * self.tp_size + tp_rank]
        join: Join = link.expect_control("join")
        welcome = Welcome(group=0, epoch=1, group_dp_ranks=group_ranks, settings=settings)
        link.control_out.put(ControlToWorker(welcome=welcome))
        link.expect_step("hello")
        return join

    def form(self, group_ranks: list[int]) -> None:
        """Bring the group together once every worker has reported `Loaded`."""
        links = [self.links[rank * self.tp_size + tp_rank] for rank in group_ranks for tp_rank in range(self.tp_size)]
        store = StoreBound()
        if len(links) > 1:
            links[0].control_out.put(ControlToWorker(bind_store=BindStore(epoch=1)))
            store = links[0].expect_control("store_bound")
        for world_rank, link in enumerate(links):
            form = Form(epoch=1, host=store.host, port=store.port, world_size=len(links), world_rank=world_rank)
            link.control_out.put(ControlToWorker(form=form))
        for link in links:
            link.expect_control("formed")

    def close(self) -> None:
        """End the server and every worker that is left."""
        for link in self.links:
            link.control_out.put(None)
            link.steps_out.put(None)
        self._server.stop(grace=None)
        for process in self.processes:
            process.kill()
            process.wait()

    def vanish(self) -> None:
        """Break every connection at once, as a killed daemon does."""
        self._server.stop(grace=None)

    def _pump(self, requests: Iterator[Any], link: WorkerLink, target: Queue[Any]) -> None:
        import threading

        def pump() -> None:
            try:
                for message in requests:
                    if isinstance(message, ControlFromWorker) and message.HasField("heartbeat"):
                        link.heartbeats += 1
                    else:
                        target.put(message)
            except grpc.RpcError:
                pass
            except Exception as error:
                # grpcio ends the iterator of a broken call with a bare exception.
                if str(error):
                    raise

        threading.Thread(target=pump, daemon=True).start()

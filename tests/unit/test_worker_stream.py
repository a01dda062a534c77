"""The worker's streams: bytes both ways, heartbeats whoever holds the interpreter, reasons when they end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import grpc
import pytest

from paceline._core import Pulse, StreamLost, WorkerStream
from paceline.v1.worker_pb2 import (
    ControlFromWorker,
    ControlToWorker,
    Join,
    Stop,
)
from paceline.v1.worker_pb2_grpc import WorkersServicer, add_WorkersServicer_to_server

PATIENCE_S = 60

# A worker whose interpreter lock is held: PyDLL calls C without giving it back.
HOLDS_THE_INTERPRETER = """
import ctypes, sys
from paceline._core import Pulse, WorkerStream
pulse = Pulse()
pulse.phase = "launched"
stream = WorkerStream(sys.argv[1], "Control")
stream.beat(pulse)
stream.receive()
print("holds", flush=True)
ctypes.PyDLL(None).sleep(4)
print("gave back", flush=True)
"""


class ControlServer(WorkersServicer):
    """Keeps what comes in on Control, and sends what it is told to; `None` closes the stream."""

    def __init__(self) -> None:
        self.received: Queue[ControlFromWorker | None] = Queue()
        self.to_send: Queue[ControlToWorker | None] = Queue()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4), options=[("grpc.max_receive_message_length", 64 << 20)])
        add_WorkersServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._readers = ThreadPoolExecutor(max_workers=4)
        self._server.start()

    def Control(self, requests: Iterator[ControlFromWorker], context: grpc.ServicerContext) -> Iterator[ControlToWorker]:  # noqa: N802
        self._readers.submit(self._read, requests)
        yield from iter(self.to_send.get, None)

    def _read(self, requests: Iterator[ControlFromWorker]) -> None:
        try:
            for message in requests:
                self.received.put(message)
        finally:
            self.received.put(None)

    def stop(self) -> None:
        self.to_send.put(None)
        self._server.stop(grace=None).wait()
        self._readers.shutdown()


@pytest.fixture
def server() -> Iterator[ControlServer]:
    server = ControlServer()
    yield server
    server.stop()


def test_messages_pass_both_ways_in_order_whatever_their_size(server: ControlServer) -> None:
    stream = WorkerStream(server.address, "Control")
    names = [letter * size for letter, size in [("a", 1), ("b", 6_000_000), ("c", 0), ("d", 70_000)]]
    for name in names:
        stream.send(ControlFromWorker(join=Join(incarnation=name)).SerializeToString())
    for name in names:
        message = server.received.get(timeout=PATIENCE_S)
        assert message is not None
        assert message.join.incarnation == name
    for name in names:
        server.to_send.put(ControlToWorker(stop=Stop(reason=name)))
    for name in names:
        assert ControlToWorker.FromString(stream.receive()).stop.reason == name
    stream.finish_sending()
    assert server.received.get(timeout=PATIENCE_S) is None


def test_a_closed_stream_says_so_and_sends_no_more(server: ControlServer) -> None:
    stream = WorkerStream(server.address, "Control")
    stream.send(ControlFromWorker(join=Join(incarnation="a")).SerializeToString())
    server.to_send.put(None)
    with pytest.raises(StreamLost, match="closed the stream"):
        stream.receive()
    stream.send(b"")


def test_a_connection_that_is_dropped_is_seen_at_the_other_end(server: ControlServer) -> None:
    stream = WorkerStream(server.address, "Control")
    stream.send(ControlFromWorker(join=Join(incarnation="a")).SerializeToString())
    assert server.received.get(timeout=PATIENCE_S) is not None
    stream.close()
    assert server.received.get(timeout=PATIENCE_S) is None


def test_what_a_thread_puts_comes_behind_what_was_received(server: ControlServer) -> None:
    stream = WorkerStream(server.address, "Control")
    stream.send(ControlFromWorker(join=Join(incarnation="a")).SerializeToString())
    server.to_send.put(ControlToWorker(stop=Stop(reason="first")))
    assert ControlToWorker.FromString(stream.receive()).stop.reason == "first"
    put = Stop(reason="second")
    stream.put(put)
    assert stream.receive() is put
    for _ in range(64):
        stream.put(put)
    with pytest.raises(StreamLost, match="64 messages that wait"):
        stream.put(put)
    server.to_send.put(None)
    # The end is known although nobody takes what waits before it.
    assert "closed the stream" in stream.wait_end()
    assert all(stream.receive() is put for _ in range(64))
    with pytest.raises(StreamLost, match="closed the stream"):
        stream.receive()


def test_heartbeats_leave_while_the_interpreter_is_held(server: ControlServer) -> None:
    command = [sys.executable, "-c", HOLDS_THE_INTERPRETER, server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        first = server.received.get(timeout=PATIENCE_S)
        assert first is not None
        assert first.heartbeat.phase == "launched"
        server.to_send.put(ControlToWorker(stop=Stop()))
        assert worker.stdout.readline() == "holds\n"
        before = server.received.qsize()
        assert worker.stdout.readline() == "gave back\n"
        assert server.received.qsize() >= before + 2
        assert worker.wait(timeout=PATIENCE_S) == 0


def test_arguments_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match='"Control" or "Steps", got "Pulse"'):
        WorkerStream("127.0.0.1:1", "Pulse")
    with pytest.raises(ValueError, match="HOST:PORT"):
        WorkerStream("no address", "Steps")
    pulse = Pulse()
    with pytest.raises(ValueError, match='got "asleep"'):
        pulse.phase = "asleep"
    assert pulse.phase == "idle"

"""One bidirectional gRPC stream to the daemon, over a connection of its own.

The worker dials; a stream that breaks is never resumed. Knows nothing of what the messages mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import grpc

from paceline.v1.worker_pb2_grpc import WorkersStub
from paceline.worker import wire

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class DaemonLostError(Exception):
    """The daemon cannot be reached, or has closed or broken the stream."""


class Stream(Generic[Sent, Received]):
    """Messages out through a queue, messages in through an iterator. `send` may be called from any thread."""

    def __init__(self, address: str, open_call: Callable[[WorkersStub, Iterator[Sent]], Iterable[Received]]) -> None:
        """Dial `address` and open the call that `open_call` makes. Raises `DaemonLostError` when nobody answers in time."""
        self._channel = grpc.insecure_channel(address, options=wire.channel_options())
        try:
            grpc.channel_ready_future(self._channel).result(timeout=wire.DAEMON_LOSS_EXIT_MS / 1000)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise DaemonLostError(f"no daemon answers at {address}") from None
        self._outbox: SimpleQueue[Sent | None] = SimpleQueue()
        self._call = open_call(WorkersStub(self._channel), iter(self._outbox.get, None))

    def send(self, message: Sent) -> None:
        """Queue a message; gRPC's own thread sends it."""
        self._outbox.put(message)

    def finish_sending(self) -> None:
        """Close this direction once everything queued is sent."""
        self._outbox.put(None)

    def receive(self) -> Iterator[Received]:
        """Messages as they come. Ends by raising `DaemonLostError`, whether the stream was closed or broke."""
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise DaemonLostError(_reason(error)) from None
        raise DaemonLostError("the daemon closed the stream")

    def close(self) -> None:
        """Drop the connection, whatever is in flight."""
        self._channel.close()


def _reason(error: grpc.RpcError) -> str:
    # What a call raises is both an RpcError and the call itself; the stubs of grpcio do not say so.
    status: Any = error
    return f"{status.code().name.lower()}: {status.details()}"

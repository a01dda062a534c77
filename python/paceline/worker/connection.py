"""One bidirectional gRPC stream to the daemon, over a connection of its own.

The worker dials; a stream that breaks is never resumed. Knows nothing of what the messages mean. The bytes are carried by
`paceline._core.WorkerStream`, whose thread never waits for the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from paceline._core import Pulse, WorkerStream


class Message(Protocol):
    """What is sent."""

    def SerializeToString(self) -> bytes:  # noqa: N802
        """The message as bytes."""


Sent = TypeVar("Sent", bound=Message)
Received = TypeVar("Received")
Put = TypeVar("Put")


class Stream(Generic[Sent, Received, Put]):
    """Typed messages over a stream of bytes. `send` and `put` may be called from any thread; one thread receives."""

    def __init__(self, address: str, method: str, parse: Callable[[bytes], Received]) -> None:
        """Dial `address` (HOST:PORT) and open `method` ("Control" or "Steps"); `parse` makes a message of bytes.

        Raises `StreamLost` when nobody answers in time.
        """
        self._parse = parse
        self._stream = WorkerStream(address, method)

    def send(self, message: Sent) -> None:
        """Queue a message. On a stream that is broken it is dropped: who receives is told the reason."""
        self.send_bytes(message.SerializeToString())

    def send_bytes(self, message: bytes) -> None:
        """Queue a message that is bytes already."""
        self._stream.send(message)

    def beat(self, pulse: Pulse) -> None:
        """Send what `pulse` says now and at every heartbeat interval, until the stream ends."""
        self._stream.beat(pulse)

    def finish_sending(self) -> None:
        """Close this direction once everything queued is sent."""
        self._stream.finish_sending()

    def receive(self) -> Iterator[Received]:
        """Messages as they come. Ends by raising `StreamLost`, whether the stream was closed or broke."""
        while True:
            yield self._parse(self._stream.receive())

    def receive_one(self) -> Received | Put:
        """The next message, or the next that another thread `put` among them. Raises `StreamLost` at the end."""
        message = self._stream.receive()
        return self._parse(message) if isinstance(message, bytes) else message

    def put(self, message: Put) -> None:
        """Put a message of this process behind what has been received. Raises `StreamLost` when nobody can be receiving."""
        self._stream.put(message)

    def wait_end(self) -> str:
        """Wait until the stream has ended, whatever the thread that receives is doing; the reason."""
        return self._stream.wait_end()

    def close(self) -> None:
        """Drop the connection, whatever is in flight."""
        self._stream.close()

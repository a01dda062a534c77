"""A load client: streamed completions over plain sockets in one event loop, with the time of every chunk.

It shares the machine with the server: while a load runs, bytes are kept with the time at which they came, and nothing is read
in them until the load has ended.
"""

import asyncio
import bisect
import itertools
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Prompt = Sequence[int] | str
"""Token ids, or text."""


@dataclass
class Answer:
    """What came of one request."""

    sent_s: float
    """When the connection was opened, on the clock of `time.perf_counter`."""
    chunk_s: list[float] = field(default_factory=list)
    """When each chunk with text came."""
    tokens: int = 0
    """Output tokens, as the server counts them."""

    @property
    def ttft_s(self) -> float:
        """From the first byte sent to the first text."""
        return self.chunk_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Between one chunk and the next: inter-token latencies, where no text is held back."""
        return [later - earlier for earlier, later in zip(self.chunk_s, self.chunk_s[1:], strict=False)]


@dataclass
class Load:
    """What came of many requests."""

    answers: list[Answer]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests by the time that all took."""
        return sum(answer.tokens for answer in self.answers) / self.wall_s


@dataclass(frozen=True)
class Client:
    """Sends completions to one server.

    Args:
        address: HOST:PORT of its HTTP server.
        model: The name that it serves the model by.
        max_tokens: Output tokens of every request; an end of text is ignored.
        temperature: 0 is greedy; else each request has a seed, the same in every run.
        ignores_eos: Whether the server can be told to; else a text may end early.
    """

    address: str
    model: str
    max_tokens: int
    temperature: float = 0.0
    ignores_eos: bool = True

    async def complete(self, prompt: Prompt, *, stream: bool = True) -> Answer:
        """One completion, over a connection of its own."""
        return self._answer(await self._exchange(prompt, stream=stream), stream=stream)

    async def _exchange(self, prompt: Prompt, *, stream: bool) -> "_Exchange":
        """Send one request, and wait for the end of its response."""
        request: dict[str, object] = {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
        }
        if self.ignores_eos:
            request["ignore_eos"] = True
        if self.temperature > 0:
            request["seed"] = zlib.crc32(json.dumps(request).encode())
        if stream:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps(request).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.address}\r\nContent-Type: application/json\r\n"
        message = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        exchange = _Exchange(message)
        host, port = self.address.rsplit(":", 1)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: exchange, host, int(port))
        try:
            await exchange.ended
        finally:
            transport.close()
        return exchange

    def _answer(self, exchange: "_Exchange", *, stream: bool) -> Answer:
        """Read what came."""
        answer = Answer(exchange.sent_s)
        body = list(exchange.body())
        if stream:
            _read_events(body, answer)
        else:
            answer.tokens = json.loads(b"".join(part for _, part in body))["usage"]["completion_tokens"]
        if self.ignores_eos and answer.tokens != self.max_tokens:
            raise RuntimeError(f"{self.max_tokens} tokens were asked for, {answer.tokens} came")
        return answer

    async def load(self, prompts: Sequence[Prompt], concurrency: int, *, stream: bool = True) -> Load:
        """All prompts, so many at once."""
        waiting = iter(prompts)
        exchanges: list[_Exchange] = []

        async def caller() -> None:
            for prompt in waiting:
                exchanges.append(await self._exchange(prompt, stream=stream))

        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(caller())
        wall_s = time.perf_counter() - start_s
        return Load([self._answer(exchange, stream=stream) for exchange in exchanges], wall_s)


class _Exchange(asyncio.Protocol):
    """One request, and what came back, with the times."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._parts: list[tuple[float, bytes]] = []
        self.sent_s = time.perf_counter()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self._parts.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closes the connection behind its answer, as it was asked to."""
        if self.ended.done():
            return
        if exc is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(exc)

    def body(self) -> Iterator[tuple[float, bytes]]:
        """Parts of the body of an HTTP/1.1 response, with the time at which each was whole."""
        whole = b"".join(part for _, part in self._parts)
        head, _, rest = whole.partition(b"\r\n\r\n")
        fields = head.decode("latin-1").lower()
        if "transfer-encoding: chunked" in fields:
            parts = list(self._chunks(rest, len(whole) - len(rest)))
        else:
            parts = [(self._parts[-1][0] if self._parts else self.sent_s, rest)]
        status = fields.split(" ", 2)[1] if " " in fields else "none"
        if status != "200":
            text = b"".join(part for _, part in parts).decode(errors="replace")
            raise RuntimeError(f"status {status}: {text}")
        yield from parts

    def _chunks(self, rest: bytes, start: int) -> Iterator[tuple[float, bytes]]:
        """Cut `rest`, which begins at byte `start` of all that came, into its chunks."""
        ends = list(itertools.accumulate(len(part) for _, part in self._parts))
        at = 0
        while True:
            line, _, _ = rest[at : at + 64].partition(b"\r\n")
            size = int(line.split(b";")[0], 16)
            if size == 0:
                return
            begin = at + len(line) + 2
            at = begin + size + 2
            if at > len(rest):
                raise RuntimeError("the server ended the stream within a chunk")
            yield self._parts[bisect.bisect_left(ends, start + begin + size)][0], rest[begin : begin + size]


def _read_events(body: Iterable[tuple[float, bytes]], answer: Answer) -> None:
    """Book the events of a stream."""
    waiting = b""
    for came_s, part in body:
        *events, waiting = (waiting + part).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: {"):
                continue
            chunk = json.loads(event.removeprefix(b"data: "))
            if "error" in chunk:
                raise RuntimeError(f"the server ended the stream: {chunk['error']}")
            if chunk["choices"] and chunk["choices"][0]["text"]:
                answer.chunk_s.append(came_s)
            if chunk.get("usage"):
                answer.tokens = chunk["usage"]["completion_tokens"]

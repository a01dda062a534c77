"""A load client: streamed completions over plain sockets in one event loop, with the time of every chunk.

Nothing but the standard library, so that the client costs little beside a server on the same machine.
"""

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Sequence
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
        answer = Answer(time.perf_counter())
        host, port = self.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            body = json.dumps(request).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.address}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            await writer.drain()
            if stream:
                await self._read_events(reader, answer)
            else:
                whole = json.loads(b"".join([part async for part in _body(reader)]))
                answer.tokens = whole["usage"]["completion_tokens"]
        finally:
            writer.close()
        if self.ignores_eos and answer.tokens != self.max_tokens:
            raise RuntimeError(f"{self.max_tokens} tokens were asked for, {answer.tokens} came")
        return answer

    async def _read_events(self, reader: asyncio.StreamReader, answer: Answer) -> None:
        waiting = b""
        async for part in _body(reader):
            now_s = time.perf_counter()
            *events, waiting = (waiting + part).split(b"\n\n")
            for event in events:
                if not event.startswith(b"data: {"):
                    continue
                chunk = json.loads(event.removeprefix(b"data: "))
                if "error" in chunk:
                    raise RuntimeError(f"the server ended the stream: {chunk['error']}")
                if chunk["choices"] and chunk["choices"][0]["text"]:
                    answer.chunk_s.append(now_s)
                if chunk.get("usage"):
                    answer.tokens = chunk["usage"]["completion_tokens"]

    async def load(self, prompts: Sequence[Prompt], concurrency: int, *, stream: bool = True) -> Load:
        """All prompts, so many at once."""
        waiting = iter(prompts)
        answers: list[Answer] = []

        async def caller() -> None:
            for prompt in waiting:
                answers.append(await self.complete(prompt, stream=stream))

        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(caller())
        return Load(answers, time.perf_counter() - start_s)


async def _body(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body of an HTTP/1.1 response, part by part."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = head.split(" ", 2)[1]
    if "transfer-encoding: chunked" in head:
        body = _chunks(reader)
    else:
        length = int(head.split("content-length:", 1)[1].split("\r\n", 1)[0])
        body = _whole(reader, length)
    if status != "200":
        text = b"".join([part async for part in body]).decode(errors="replace")
        raise RuntimeError(f"status {status}: {text}")
    async for part in body:
        yield part


async def _whole(reader: asyncio.StreamReader, length: int) -> AsyncIterator[bytes]:
    yield await reader.readexactly(length)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]

"""HTTP calls of the end-to-end tests: completions over plain sockets, so that a test decides when one is closed."""

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.daemon import Daemon

CALL_LIMIT_S = 60


def body(prompt: list[int], max_tokens: int, **more: object) -> dict[str, object]:
    """A completion that runs to its limit."""
    return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}


def connect(daemon: Daemon) -> http.client.HTTPConnection:
    """A connection to the daemon's HTTP port."""
    host, port = daemon.address("http").rsplit(":", 1)
    return http.client.HTTPConnection(host, int(port), timeout=CALL_LIMIT_S)


def send(connection: http.client.HTTPConnection, request: dict[str, object], headers: dict[str, str] | None = None) -> None:
    """Sends a completion and returns before the answer."""
    head = {"Content-Type": "application/json", **(headers or {})}
    connection.request("POST", "/v1/completions", json.dumps(request), head)


def complete(daemon: Daemon, request: dict[str, object], headers: dict[str, str] | None = None) -> tuple[int, dict]:
    """A whole completion: its status and its JSON."""
    connection = connect(daemon)
    try:
        send(connection, request, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def text(daemon: Daemon, prompt: list[int], max_tokens: int, **more: object) -> str:
    """The text of a completion that succeeds."""
    status, answer = complete(daemon, body(prompt, max_tokens, **more))
    assert status == 200, answer
    return answer["choices"][0]["text"]


@dataclass
class Stream:
    """A streamed completion, read by a thread of its own."""

    daemon: Daemon
    request: dict[str, object]
    headers: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    status: int | None = None
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self._started = threading.Event()
        self._connection = connect(self.daemon)
        self._thread = threading.Thread(target=self._read, name="stream", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            send(self._connection, {**self.request, "stream": True}, self.headers)
            # The answer keeps the socket open until it is closed itself, whether or not it was read to its end.
            with self._connection.getresponse() as response:
                self.status = response.status
                for event in _events(response):
                    self.events.append(event)
                    self._started.set()
        except (OSError, http.client.HTTPException) as error:
            self.failure = error.with_traceback(None)
        finally:
            self._started.set()
            self._connection.close()

    def wait_first(self) -> "Stream":
        """Waits for the first event."""
        assert self._started.wait(CALL_LIMIT_S), "no first event"
        assert self.events, (self.status, self.failure)
        return self

    def wait_end(self, *, limit_s: float) -> "Stream":
        """Waits until the server has closed the stream."""
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), f"still open after {limit_s} s; the last events: {self.events[-2:]}"
        return self

    def drop(self) -> None:
        """Closes the socket while the stream runs, as a client that goes away."""
        sock = self._connection.sock
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)

    @property
    def finished(self) -> bool:
        """True when it ended as a stream should."""
        return bool(self.events) and self.events[-1] == "[DONE]"

    @property
    def text(self) -> str:
        """The text of its first choice, as far as it came."""
        chunks = [json.loads(event) for event in self.events if event != "[DONE]"]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"][:1])

    @property
    def error(self) -> dict | None:
        """The error that it ended with, if it did."""
        if not self.events or self.events[-1] == "[DONE]":
            return None
        return json.loads(self.events[-1]).get("error")


def _events(response: http.client.HTTPResponse) -> Iterator[str]:
    if response.status != 200:
        yield response.read().decode()
        return
    for raw in response:
        line = raw.decode().strip()
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def metrics(daemon: Daemon) -> dict[str, float]:
    """All samples of `/metrics` by name and labels."""
    connection = connect(daemon)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    samples = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def total(samples: dict[str, float], name: str, **labels: str) -> float:
    """The sum of a metric over all label sets that hold `labels`."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    matches = (value for key, value in samples.items() if re.match(rf"{name}({{|$)", key) and all(want in key for want in wanted))
    return sum(matches)

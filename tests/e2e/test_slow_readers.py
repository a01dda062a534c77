"""A client that asks for a stream and reads none of it: its request ends, its blocks are free again, and nobody else notices."""

import json
import socket
import time

from e2e.calls import Stream, body, metrics, total
from e2e.conftest import StartFleet
from e2e.test_requests import until_idle
from support.daemon import Daemon

TOKENS, CHOICES = 3_500, 4
"""With log-probabilities, more than all buffers between daemon and client hold."""


def ask_and_read_nothing(daemon: Daemon, request: dict[str, object]) -> socket.socket:
    """A connection whose answer stays where it is."""
    host, port = daemon.address("http").rsplit(":", 1)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    content = json.dumps(request).encode()
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
    return connection


def test_a_reader_that_stops_is_cut_and_others_go_on(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "1", "--slow-reader-timeout", "1", "--max-num-seqs", "8", worker="--delay-ms 1")
    request = {**body([1, 2], TOKENS, logprobs=20), "stream": True}
    slow = ask_and_read_nothing(daemon, {**request, "n": CHOICES})
    other = Stream(daemon, request)
    deadline = time.monotonic() + 60
    while total(metrics(daemon), "paceline_slow_readers_total") < CHOICES:
        assert time.monotonic() < deadline, "the slow reader keeps its seats"
        time.sleep(0.1)
    assert other.wait_end(limit_s=60).finished
    # Tokens, not events: those that waited for their reader come together.
    chunks = [json.loads(event) for event in other.events[:-1]]
    assert sum(len(choice["logprobs"]["tokens"]) for chunk in chunks for choice in chunk["choices"]) == TOKENS
    samples = until_idle(daemon)
    assert total(samples, "paceline_slow_readers_total") == CHOICES
    assert total(samples, "paceline_engine_aborted_total") == CHOICES
    # The daemon closes the connection too: what still lies in the buffers comes, and then the end.
    while total(metrics(daemon), "paceline_calls_open") > 0:
        assert time.monotonic() < deadline, "the connection stays open"
        time.sleep(0.1)
    slow.settimeout(30)
    answer = b""
    try:
        while part := slow.recv(1 << 16):
            answer += part
    except ConnectionResetError:
        pass
    slow.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in answer

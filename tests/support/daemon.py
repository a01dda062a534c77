"""The daemon and scripted workers as tests see them."""

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.logged import LoggedProcess

ADDRESSES = re.compile(r"\b(http|grpc|control)\b[ =:/]+(?:http://)?([\w.\[\]:-]+:\d+)")
"""The addresses in a line the daemon prints, `paceline: http://HOST:PORT ... grpc HOST:PORT control HOST:PORT`."""


class Daemon(LoggedProcess):
    """One `paceline serve` with free ports.

    Args:
        arguments: What follows `paceline serve`; ports are added unless given.
        log_path: File that receives all it prints, its children's output included.
        environment: Variables to add to this process's.
        command: The program; by default the command of the environment that runs the tests.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str | Path] = (sys.executable, "-m", "paceline"),
    ) -> None:
        given = [str(argument) for argument in arguments]
        ports = [flag for flag in ("--port", "--grpc-port", "--control-port") if flag not in given]
        full = [*command, "serve", *given, *(part for flag in ports for part in (flag, "0"))]
        super().__init__("daemon", full, log_path=log_path, environment=environment)

    def address(self, kind: str, *, limit_s: float = 60) -> str:
        """HOST:PORT of `http`, `grpc` or `control`, as printed at start-up."""

        def names_it(line: str) -> bool:
            return line.startswith("paceline: ") and kind in dict(ADDRESSES.findall(line))

        line = self.wait_line(names_it, limit_s=limit_s, what=f"{kind} address")
        return dict(ADDRESSES.findall(line))[kind]

    @property
    def url(self) -> str:
        """The HTTP address as a URL without a path."""
        return f"http://{self.address('http')}"

    def wait_ready(self, *, limit_s: float = 120) -> "Daemon":
        """Waits until the daemon says that every rank is ready, and checks that `/ready` agrees."""

        def says_ready(line: str) -> bool:
            return line.startswith("paceline: ") and re.search(r"\bready\b", line) is not None

        self.wait_line(says_ready, limit_s=limit_s, what="ready line")
        assert self.status("/ready") == 200
        return self

    def status(self, path: str, *, limit_s: float = 10) -> int:
        """The HTTP status of a GET."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=limit_s) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


class ScriptedWorker(LoggedProcess):
    """A worker without a model that dials in to a daemon started with `--no-spawn`.

    Args:
        program: The built `paceline-scripted-worker`.
        daemon: The daemon to join.
        dp_rank: The rank to join as.
        arguments: How it behaves; see the program's help.
        log_path: File that receives all it prints.
        join_token: The token that the daemon asks for.
    """

    def __init__(
        self,
        program: Path,
        daemon: Daemon,
        dp_rank: int,
        arguments: Sequence[str],
        *,
        log_path: Path,
        join_token: str | None = None,
    ) -> None:
        command = [program, "--daemon-address", daemon.address("control"), "--dp-rank", str(dp_rank), *arguments]
        environment = {} if join_token is None else {"PACELINE_JOIN_TOKEN": join_token}
        super().__init__(f"worker dp{dp_rank}", command, log_path=log_path, environment=environment)

"""The daemon as tests see it: a process with ports of its own, a captured log, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support.processes import MARK, ROOT, kill_group, marked_processes

ADDRESSES = re.compile(r"\b(http|grpc|control)\b[ =:/]+(?:http://)?([\w.\[\]:-]+:\d+)")
"""The addresses in the line the daemon prints, `paceline: http://HOST:PORT ...`."""


class Daemon:
    """One `paceline serve`, started with free ports, and its log.

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
        self.log_path = log_path
        self.mark = uuid.uuid4().hex
        given = [str(argument) for argument in arguments]
        ports = [flag for flag in ("--port", "--grpc-port", "--control-port") if flag not in given]
        self._lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [*map(str, command), "serve", *given, *(part for flag in ports for part in (flag, "0"))],
            cwd=ROOT,
            env={**os.environ, **(environment or {}), MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="daemon log", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output, self.log_path.open("w") as log:
            for line in output:
                log.write(line)
                log.flush()
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def lines(self) -> list[str]:
        """All lines printed so far."""
        with self._changed:
            return list(self._lines)

    def wait_line(self, matches: Callable[[str], bool], *, limit_s: float, what: str) -> str:
        """The first line for which `matches` is true, waiting for it if need be."""
        deadline = time.monotonic() + limit_s
        seen = 0
        with self._changed:
            while True:
                for line in self._lines[seen:]:
                    if matches(line):
                        return line
                seen = len(self._lines)
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    state = f"ended with {self.process.poll()}" if self._ended else f"silent for {limit_s} s"
                    raise AssertionError(f"no {what}: the daemon {state}; its last lines:\n" + "\n".join(self._lines[-60:]))
                self._changed.wait(left)

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

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the daemon alone, not to its children."""
        self.process.send_signal(number)

    def wait(self, *, limit_s: float) -> int:
        """Its exit status."""
        status = self.process.wait(limit_s)
        self._reader.join(limit_s)
        return status

    def children(self) -> dict[int, str]:
        """Command lines of all live processes it started, by process id."""
        return {pid: command for pid, command in marked_processes(self.mark).items() if pid != self.process.pid}

    def stop(self, *, limit_s: float = 20) -> int:
        """Ends it with SIGTERM if it still runs; fails if it is slow or leaves a process behind."""
        try:
            if self.process.poll() is None:
                self.signal(signal.SIGTERM)
            status = self.process.wait(limit_s)
        finally:
            left = marked_processes(self.mark)
            kill_group(self.process.pid)
            for process_id in left:
                try:
                    os.kill(process_id, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.wait()
            self._reader.join(5)
        assert not left, f"left behind by the daemon: {left}; its last lines:\n" + "\n".join(self.lines[-30:])
        return status

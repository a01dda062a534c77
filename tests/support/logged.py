"""A process whose output is captured line by line, awaited without polling, and which may leave nothing behind."""

import os
import select
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support.processes import MARK, ROOT, kill_group, marked_processes


class LoggedProcess:
    """A child process and its log.

    Args:
        name: What it is called in failures.
        command: Program and arguments.
        log_path: File that receives all it prints, its children's output included.
        environment: Variables to add to this process's.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], *, log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.mark = uuid.uuid4().hex
        self._lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, **(environment or {}), MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"log of {name}", daemon=True)
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
                    state = "ended" if self._ended else f"did not print it in {limit_s:.0f} s"
                    tail = "\n".join(self._lines[-60:])
                    raise AssertionError(f"no {what}: the {self.name} {state}; its last lines:\n{tail}")
                self._changed.wait(left)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to this process alone, not to its children."""
        self.process.send_signal(number)

    def wait(self, *, limit_s: float) -> int:
        """Its exit status, with the whole log read."""
        status = self.process.wait(limit_s)
        self._reader.join(limit_s)
        return status

    def children(self) -> dict[int, str]:
        """Command lines of all live processes it started, in whatever session, by process id."""
        return {pid: command for pid, command in marked_processes(self.mark).items() if pid != self.process.pid}

    def wait_childless(self, *, limit_s: float) -> None:
        """Waits until every process it started has ended; fails with those that live on."""
        deadline = time.monotonic() + limit_s
        for pid in self.children():
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            finally:
                os.close(handle)
        left = self.children()
        assert not left, f"alive {limit_s} s later: {left}"

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
        tail = "\n".join(self.lines[-30:])
        assert not left, f"left behind by the {self.name}: {left}; its last lines:\n{tail}"
        return status

"""Child processes of tests: run with a limit, killed as a group, and found again if they outlive their test."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

MARK = "PACELINE_TEST_MARK"
"""Environment variable that children inherit, so that a process is recognised even after it left its session."""


@dataclass(frozen=True)
class Completed:
    """A process that has ended."""

    returncode: int
    output: str

    def tail(self, lines: int = 60) -> str:
        """The last lines of what it printed."""
        return "\n".join(self.output.splitlines()[-lines:])

    def check(self) -> None:
        """Fails with the last lines unless the exit status is 0."""
        if self.returncode != 0:
            raise AssertionError(f"exit status {self.returncode}; the last lines:\n{self.tail()}")


def run_limited(
    command: Sequence[str | Path], *, limit_s: float, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> Completed:
    """Runs a command in a process group of its own, which is killed at the limit.

    Args:
        command: Program and arguments.
        limit_s: Seconds after which the whole group is killed.
        cwd: Working directory.
        environment: Variables to add to this process's.

    Returns:
        Its exit status and its stdout and stderr together.

    Raises:
        TimeoutError: The limit was reached; the message ends with the last lines printed.
    """
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "CARGO_TERM_COLOR": "never", "NO_COLOR": "1", **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        kill_group(process.pid)
        output, _ = process.communicate()
        tail = Completed(-signal.SIGKILL, output).tail()
        raise TimeoutError(f"{command[0]} was killed after {limit_s:.0f} s; its last lines:\n{tail}") from None
    except BaseException:
        kill_group(process.pid)
        process.communicate()
        raise
    return Completed(process.returncode, output)


def kill_group(process_id: int) -> None:
    """Kills a process group whose leader is `process_id`; does nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_id, signal.SIGKILL)


def marked_processes(mark: str) -> dict[int, str]:
    """Live processes that inherited `mark`: command line by process id."""
    found = {}
    needle = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # It ended meanwhile, or is another user's.
        found[int(entry.name)] = command
    return found

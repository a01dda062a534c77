"""Fixtures for all tests: the Rust build, the daemon, scripted workers, and one summary of what the Rust tests counted."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from support.cargo import Build, build
from support.daemon import Daemon, ScriptedWorker
from support.logged import LoggedProcess

RUST_COUNTS = pytest.StashKey[dict[str, int]]()
"""Tests that passed, by Rust package."""

StartDaemon = Callable[..., Daemon]
StartWorker = Callable[..., ScriptedWorker]


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much of what can be had in any length."""
    parser.addoption("--requests", type=int, default=120, help="requests of each test of random traffic on real models")
    parser.addoption("--memory-requests", type=int, default=20_000, help="requests of the test that memory stays flat")


def pytest_configure() -> None:
    """A test run that is ended from outside ends its children too: SIGTERM unwinds instead of killing at once."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The Rust cases come first: they build what all others start, and a broken build is then named as such."""
    items.sort(key=lambda item: item.path.name != "test_rust.py")


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """What a file of tests left open is found at its end, not in the middle of another file."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def rust_build() -> Build:
    """All programs of the workspace, built once."""
    try:
        return build()
    except (RuntimeError, TimeoutError) as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def started() -> Iterator[list[LoggedProcess]]:
    """Processes of this test; each is stopped at its end, the last started first, and checked for leftovers."""
    processes: list[LoggedProcess] = []
    yield processes
    errors = []
    for process in reversed(processes):
        try:
            process.stop()
        except Exception as error:  # Every process is stopped, whatever another one did.
            errors.append(error)
    if errors:
        raise ExceptionGroup("processes that did not end cleanly", errors)


@pytest.fixture
def start_daemon(tmp_path: Path, started: list[LoggedProcess]) -> StartDaemon:
    """A function that starts `paceline serve` with the given arguments."""

    def start(
        *arguments: str | Path, environment: Mapping[str, str] | None = None, command: Sequence[str | Path] | None = None
    ) -> Daemon:
        chosen = {} if command is None else {"command": command}
        daemon = Daemon(arguments, log_path=tmp_path / f"daemon{len(started)}.log", environment=environment, **chosen)
        started.append(daemon)
        return daemon

    return start


@pytest.fixture
def start_worker(tmp_path: Path, started: list[LoggedProcess], rust_build: Build) -> StartWorker:
    """A function that starts a scripted worker for a rank of a daemon that runs with `--no-spawn`."""
    program = rust_build.programs["paceline-scripted-worker"]

    def start(daemon: Daemon, dp_rank: int, *arguments: str, join_token: str | None = None) -> ScriptedWorker:
        log_path = tmp_path / f"worker{len(started)}.log"
        worker = ScriptedWorker(program, daemon, dp_rank, arguments, log_path=log_path, join_token=join_token)
        started.append(worker)
        return worker

    return start


@pytest.fixture(scope="session")
def rust_counts(request: pytest.FixtureRequest) -> dict[str, int]:
    """Where a Rust case notes how many tests passed."""
    return request.config.stash.setdefault(RUST_COUNTS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Adds the Rust counts to the report, which otherwise shows one case per package."""
    counts = config.stash.get(RUST_COUNTS, {})
    if counts:
        listing = ", ".join(f"{package} {count}" for package, count in sorted(counts.items()))
        terminalreporter.write_line(f"rust tests passed: {sum(counts.values())} ({listing})")

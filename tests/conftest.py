"""Fixtures for all tests: the daemon, and one summary of what the Rust tests counted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from support.daemon import Daemon

RUST_COUNTS = pytest.StashKey[dict[str, int]]()
"""Tests that passed, by Rust package."""

StartDaemon = Callable[..., Daemon]


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """A function that starts daemons; each is stopped at the end of the test and checked for leftovers."""
    daemons: list[Daemon] = []

    def start(
        *arguments: str | Path, environment: Mapping[str, str] | None = None, command: Sequence[str | Path] | None = None
    ) -> Daemon:
        log_path = tmp_path / f"daemon{len(daemons)}.log"
        chosen = {} if command is None else {"command": command}
        daemon = Daemon(arguments, log_path=log_path, environment=environment, **chosen)
        daemons.append(daemon)
        return daemon

    yield start
    errors = []
    for daemon in reversed(daemons):
        try:
            daemon.stop()
        except Exception as error:  # Every daemon is stopped, whatever another one did.
            errors.append(error)
    if errors:
        raise ExceptionGroup("daemons that did not end cleanly", errors)


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

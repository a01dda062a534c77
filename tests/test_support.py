"""The helpers that other tests trust: they must notice a hang, an early end and a process left behind."""

import sys
from pathlib import Path

import pytest

from support.daemon import Daemon
from support.processes import run_limited

READY = "print('paceline: http://127.0.0.1:8000 ready grpc 127.0.0.1:50051 control 127.0.0.1:50052', flush=True)"
STOPPABLE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"
WAIT = "signal.pause()"
ORPHAN = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True)"


def scripted(tmp_path: Path, code: str) -> Daemon:
    return Daemon([], log_path=tmp_path / "log", command=(sys.executable, "-c", code))


def test_a_command_that_hangs_is_killed_with_its_last_lines() -> None:
    code = "import signal; print('the last line', flush=True); signal.pause()"
    with pytest.raises(TimeoutError, match="the last line"):
        run_limited([sys.executable, "-c", code], limit_s=2)


def test_addresses_are_read_from_the_ready_line(tmp_path: Path) -> None:
    daemon = scripted(tmp_path, f"{STOPPABLE}\n{READY}\n{WAIT}")
    assert daemon.address("control") == "127.0.0.1:50052"
    assert daemon.address("grpc") == "127.0.0.1:50051"
    assert daemon.url == "http://127.0.0.1:8000"
    assert daemon.stop() == 0
    assert "ready" in (tmp_path / "log").read_text()


def test_a_daemon_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    daemon = scripted(tmp_path, "print('no such model'); raise SystemExit(64)")
    with pytest.raises(AssertionError, match="no such model"):
        daemon.address("http")
    assert daemon.stop() == 64


def test_a_process_left_behind_is_found_in_whatever_session(tmp_path: Path) -> None:
    daemon = scripted(tmp_path, f"{STOPPABLE}\n{ORPHAN}\n{READY}\n{WAIT}")
    daemon.address("http")
    assert len(daemon.children()) == 1
    with pytest.raises(AssertionError, match="left behind"):
        daemon.stop()
    assert daemon.children() == {}

"""Workers that die, refuse, lie or stay silent while streams run: no stream hangs, the fleet comes back."""

import os
import re
import signal
import time

import pytest

from e2e.calls import Stream, body, metrics, text, total
from e2e.conftest import StartFleet
from support.daemon import Daemon

BACK_LIMIT_S = 30


def worker_process(daemon: Daemon, dp_rank: int) -> int:
    """Process id of a rank's worker."""
    found = [pid for pid, command in daemon.children().items() if f"--dp-rank {dp_rank} " in f"{command} "]
    assert len(found) == 1, daemon.children()
    return found[0]


def wait_back(daemon: Daemon) -> None:
    """Waits until every rank is in service again."""
    daemon.wait_line(lambda line: "in service again" in line, limit_s=BACK_LIMIT_S, what="recovery")
    assert daemon.status("/ready") == 200


def pinned_streams(daemon: Daemon, ranks: int, count: int, max_tokens: int) -> list[Stream]:
    """Streams that run on the ranks in turn."""
    streams = [
        Stream(daemon, body([number + 1, 5, 7], max_tokens), {"X-data-parallel-rank": str(number % ranks)})
        for number in range(count)
    ]
    return [stream.wait_first() for stream in streams]


def wait_ready_code(daemon: Daemon, code: int, *, limit_s: float) -> None:
    """Waits until `/ready` answers so."""
    deadline = time.monotonic() + limit_s
    while daemon.status("/ready") != code:
        assert time.monotonic() < deadline, f"/ready is not {code} after {limit_s} s"


@pytest.mark.parametrize("lockstep", ["off", "on"])
def test_a19_a_killed_worker_hangs_no_stream(start_fleet: StartFleet, lockstep: str) -> None:
    daemon = start_fleet("-dp", "4", "--lockstep", lockstep, worker="--delay-ms 5 --load-ms 700")
    streams = pinned_streams(daemon, 4, 8, 400)
    os.kill(worker_process(daemon, 2), signal.SIGKILL)
    wait_ready_code(daemon, 503, limit_s=5)
    assert daemon.status("/health") == 200
    for number, stream in enumerate(streams):
        stream.wait_end(limit_s=10)
        if number % 4 == 2 or lockstep == "on":
            assert stream.error is not None, stream.events[-1]
            assert "dp2" in stream.error["message"]
            assert not stream.finished
        else:
            assert stream.finished, stream.events[-1]
    assert any("dp2" in line and "worker lost" in line for line in daemon.lines)
    wait_back(daemon)
    assert text(daemon, [1, 2, 3], 5)
    assert len(daemon.children()) == 4


@pytest.mark.parametrize(
    ("worker", "told"),
    [
        ("--refuse-at-step 60", "dp1: refused the plan of step 60: rule 13"),
        ("--lie-digest-at-step 60", "dp1: false reply to step 60: digest"),
        ("--lie-passes-at-step 60", "dp1: false reply to step 60: passes: expected 1, got 2"),
        ("--die-at-step 60", "dp1: worker lost"),
    ],
)
def test_a_fault_in_lockstep_ends_the_streams_and_the_group_comes_back(start_fleet: StartFleet, worker: str, told: str) -> None:
    daemon = start_fleet("-dp=2", "--lockstep=on", worker=f"{worker} --only-dp-rank 1 --until-epoch 1 --delay-ms 10")
    # Sixty steps are time enough for all four to be under way, on a busy machine too.
    streams = [Stream(daemon, body([number + 1, 2], 300)) for number in range(4)]
    for stream in streams:
        assert stream.wait_end(limit_s=10).error is not None, stream.events[-1]
    daemon.wait_line(lambda line: told in line, limit_s=5, what=f"line with {told!r}")
    wait_back(daemon)
    assert text(daemon, [9, 9], 30) == text(daemon, [9, 9], 30)
    refused = total(metrics(daemon), "paceline_refused_plans_total")
    assert refused == (1 if "refuse" in worker else 0)


def test_f06_a_stopped_worker_is_found_in_work_and_idle(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", worker="--delay-ms 5")
    stream = Stream(daemon, body([1, 2, 3], 2000), {"X-data-parallel-rank": "0"}).wait_first()
    for dp_rank in (0, 1):  # Rank 0 works, rank 1 is idle.
        os.kill(worker_process(daemon, dp_rank), signal.SIGSTOP)
    wait_ready_code(daemon, 503, limit_s=10)
    assert stream.wait_end(limit_s=10).error is not None
    wait_back(daemon)
    assert len(daemon.children()) == 2
    pattern = re.compile(r"dp[01].*no heartbeat for 5000 ms")
    assert sum(1 for line in daemon.lines if pattern.search(line) and "recovers" in line) == 2


def test_f02_workers_do_not_outlive_a_killed_daemon(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2")
    workers = daemon.children()
    assert len(workers) == 2
    daemon.signal(signal.SIGKILL)
    daemon.wait(limit_s=10)
    daemon.wait_childless(limit_s=10)


def test_f02_workers_that_load_do_not_outlive_a_killed_daemon(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", worker="--load-ms 60000", ready=False)
    daemon.wait_line(lambda line: "dp1: worker joined" in line, limit_s=20, what="join of dp1")
    daemon.signal(signal.SIGKILL)
    daemon.wait(limit_s=10)
    daemon.wait_childless(limit_s=10)

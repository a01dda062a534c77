"""`--log-format json`: every line of a daemon and of its workers is an object that names the rank it is about."""

import json
import os
import re
import signal
from typing import Any

from e2e.conftest import StartFleet
from support.daemon import Daemon

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def objects(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in daemon.lines]


def wait_for(daemon: Daemon, *parts: str) -> dict[str, Any]:
    """The first line whose message has all `parts`."""
    line = daemon.wait_line(
        lambda line: all(part in json.loads(line)["message"] for part in parts), limit_s=30, what=" ".join(parts)
    )
    found: dict[str, Any] = json.loads(line)
    return found


def test_every_line_is_an_object_and_names_its_rank(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", "--log-format", "json", ready=False)
    assert wait_for(daemon, "ready http://")["target"] == "paceline"
    for dp_rank in (0, 1):
        assert wait_for(daemon, f"dp{dp_rank}: worker joined")["dp_rank"] == dp_rank
    assert wait_for(daemon, "dp0", "in service", "epoch 1")["dp_rank"] == 0

    # A worker that is killed, and what a worker says when the daemon ends.
    (killed,) = [pid for pid, command in daemon.children().items() if "--dp-rank 1 " in f"{command} "]
    os.kill(killed, signal.SIGKILL)
    lost = wait_for(daemon, "dp1", "recovers as epoch")
    assert (lost["level"], lost["dp_rank"]) == ("ERROR", 1)
    wait_for(daemon, "every rank is in service again")
    assert daemon.stop() == 0

    lines = objects(daemon)
    for line in lines:
        assert {"timestamp", "level", "target", "message"} <= set(line), line
        assert TIME.fullmatch(line["timestamp"]), line
    said = [line for line in lines if line["target"] == "paceline_worker"]
    assert {line["dp_rank"] for line in said} <= {0, 1}
    assert not [line for line in said if line["message"].startswith("dp")]


def test_the_reason_of_an_end_is_an_object_too(start_fleet: StartFleet) -> None:
    daemon = start_fleet("--log-format", "json", "--max-model-len", "5000", ready=False)
    assert daemon.wait(limit_s=20) == 64
    last = objects(daemon)[-1]
    assert last["level"] == "ERROR"
    assert "--max-model-len is 5000" in last["message"]

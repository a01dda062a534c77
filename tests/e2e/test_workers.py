"""Ranks of two workers, shared experts and draft layers, as the daemon wires them: scripted workers, real processes."""

import json
import os
import signal

from e2e.calls import Stream, body, complete, connect, metrics, text, total
from e2e.conftest import StartFleet
from support.daemon import Daemon

SHARED = ["-dp=2", "-tp=2", "--enable-expert-parallel", "--all2all-backend=all_to_all"]
BACK_LIMIT_S = 30


def drafts(k: int, **more: object) -> list[str]:
    """Flags for `k` drafts by the draft layer."""
    return ["--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": k, **more})]


def worker_process(daemon: Daemon, dp_rank: int, tp_rank: int) -> int:
    """Process id of one worker."""
    wanted = f"--dp-rank {dp_rank} --tp-rank {tp_rank} "
    (found,) = [process_id for process_id, command in daemon.children().items() if wanted in f"{command} "]
    return found


def numbers(daemon: Daemon, step: str) -> dict:
    """What `/explain` says of a step."""
    connection = connect(daemon)
    try:
        connection.request("GET", f"/explain/{step}")
        return json.loads(connection.getresponse().read())["steps"][0]
    finally:
        connection.close()


def test_every_worker_runs_every_step_and_drafts_are_counted_by_position(start_fleet: StartFleet) -> None:
    daemon = start_fleet(*SHARED, *drafts(3))
    assert len(daemon.children()) == 4
    ready = next(line for line in daemon.lines if "ready http" in line)
    assert "2 ranks of 2 workers, experts shared by all_to_all, up to 3 drafts by draft layers" in ready, ready
    expected = text(daemon, [1, 2, 3], 40)
    assert text(daemon, [1, 2, 3], 40) == expected
    step = numbers(daemon, "last")
    assert (step["k_verify"], step["k_draft"], step["passes"]) == (3, 3, 4)
    samples = metrics(daemon)
    for position in range(3):
        drafted = total(samples, "paceline_draft_tokens_per_position_total", position=str(position))
        accepted = total(samples, "paceline_accepted_tokens_per_position_total", position=str(position))
        assert 0 < accepted < drafted, position
    assert total(samples, "paceline_draft_blocks_missing_total") == 0


def test_drafts_go_with_the_load(start_fleet: StartFleet) -> None:
    by_load = [[1, 1, 2], [2, 4, 1], [5, 64, 0]]
    daemon = start_fleet("-dp=1", *drafts(2, num_speculative_tokens_per_batch_size=by_load), worker="--delay-ms 3")
    alone = Stream(daemon, body([1, 2, 3], 30)).wait_end(limit_s=30)
    assert alone.finished
    assert numbers(daemon, str(5))["k_draft"] == 2
    # They end one after the other, so that every range has its turn.
    streams = [Stream(daemon, body([number + 1, 5], 30 + 30 * number)) for number in range(6)]
    for stream in streams:
        assert stream.wait_end(limit_s=30).finished
    last = numbers(daemon, "last")["step"]
    seen = {numbers(daemon, str(step))["k_draft"] for step in range(1, last + 1)}
    assert seen == {0, 1, 2}


def test_one_killed_worker_ends_its_rank_and_comes_back(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp=2", "-tp=2", worker="--delay-ms 5")
    headers = [{"X-data-parallel-rank": str(dp_rank)} for dp_rank in range(2)]
    streams = [Stream(daemon, body([7, 5, 3], 300), header).wait_first() for header in headers]
    os.kill(worker_process(daemon, 1, 1), signal.SIGKILL)
    harmed = streams[1].wait_end(limit_s=10)
    assert harmed.error is not None
    assert "dp1 tp1: worker lost" in harmed.error["message"]
    daemon.wait_line(lambda line: "in service again" in line, limit_s=BACK_LIMIT_S, what="recovery")
    assert streams[0].wait_end(limit_s=30).finished
    assert any(line.startswith("dp1 tp1: ") or "dp1 tp1: starting another worker" in line for line in daemon.lines)
    assert len(daemon.children()) == 4
    status, answer = complete(daemon, body([7, 5, 3], 8), headers[1])
    assert status == 200, answer


def test_workers_that_sample_different_tokens_are_told_of(start_fleet: StartFleet) -> None:
    liar = "--lie-tokens-at-step 6 --only-dp-rank 0 --only-tp-rank 1 --until-epoch 1 --delay-ms 2"
    daemon = start_fleet("-dp=2", "-tp=2", worker=liar)
    stream = Stream(daemon, body([1, 2], 100), {"X-data-parallel-rank": "0"}).wait_end(limit_s=10)
    assert stream.error is not None
    assert "dp0 tp1: false reply to step 6: tokens digest: expected" in stream.error["message"]
    daemon.wait_line(lambda line: "in service again" in line, limit_s=BACK_LIMIT_S, what="recovery")
    assert text(daemon, [1, 2], 20)

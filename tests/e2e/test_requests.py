"""Requests through every layer: the same text in every form of fleet, disconnects, idle fleets, queues."""

import time

import pytest

from e2e.calls import Stream, body, complete, connect, metrics, send, text, total
from e2e.conftest import StartFleet
from support.daemon import Daemon

FLEETS = {
    "dp1": ["-dp", "1"],
    "dp2": ["-dp", "2"],
    "dp2 lockstep": ["-dp", "2", "--lockstep", "on"],
    "dp4 lockstep with drafts": [
        *["-dp", "4", "--lockstep", "on"],
        *["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
    ],
    "chunks and preemption": [
        "-dp",
        "2",
        "--max-num-batched-tokens",
        "40",
        "--num-gpu-blocks-override",
        "40",
        "--max-num-seqs",
        "8",
    ],
    "eager": ["-dp", "2", "--enforce-eager", "--lockstep=on"],
    "few sizes": ["-dp", "2", "--lockstep=on", "--max-num-seqs", "16", "--cudagraph-capture-sizes", "1,2,4,16"],
}

PROMPTS = [[(number * 37 + index * 11) % 900 for index in range(1 + number * number)] for number in range(20)]


def until_idle(daemon: Daemon, *, limit_s: float = 10) -> dict[str, float]:
    """Waits until no request lives and no KV block is held; the metrics then."""
    deadline = time.monotonic() + limit_s
    names = ("paceline_requests_running", "paceline_requests_waiting", "paceline_requests_known", "paceline_kv_blocks_used")
    while True:
        samples = metrics(daemon)
        left = {name: total(samples, name) for name in names}
        if not any(left.values()):
            return samples
        assert time.monotonic() < deadline, left


def test_the_text_is_the_same_in_every_fleet(start_fleet: StartFleet) -> None:
    expected: list[str] | None = None
    for name, arguments in FLEETS.items():
        daemon = start_fleet(*arguments)
        streams = [Stream(daemon, body(prompt, 40)) for prompt in PROMPTS]
        streamed = []
        for stream in streams:
            assert stream.wait_end(limit_s=60).finished, (name, stream.events[-1:])
            streamed.append(stream.text)
        whole = [text(daemon, prompt, 40) for prompt in PROMPTS]
        assert streamed == whole, name
        expected = expected or whole
        assert whole == expected, name
        until_idle(daemon)
        daemon.stop()


def test_a11_an_idle_fleet_runs_nothing(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "4", "--lockstep", "on")
    text(daemon, [1, 2, 3], 10)
    steps = total(until_idle(daemon), "paceline_steps_total")
    assert steps == 10
    # There is no event for nothing happening.
    time.sleep(1)
    assert total(metrics(daemon), "paceline_steps_total") == steps


def test_a20_an_idle_rank_takes_part_to_the_last_step(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", "--lockstep", "on")
    short = Stream(daemon, body([1, 2], 5), {"X-data-parallel-rank": "0"})
    long = Stream(daemon, body([3, 4], 500), {"X-data-parallel-rank": "1"})
    assert short.wait_end(limit_s=30).finished
    assert long.wait_end(limit_s=30).finished
    samples = until_idle(daemon)
    steps = [total(samples, "paceline_rank_steps_total", dp_rank=rank) for rank in ("0", "1")]
    assert steps[0] == steps[1] >= 500
    assert total(samples, "paceline_dummy_steps_total", dp_rank="0") >= 494


def test_a24_dummies_are_counted_apart(start_fleet: StartFleet) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 1}'
    daemon = start_fleet("-dp", "2", "--lockstep", "on", "--speculative-config", config, "--max-num-batched-tokens", "4096")
    status, answer = complete(daemon, body([7] * 4000, 1), {"X-data-parallel-rank": "0"})
    assert status == 200, answer
    samples = until_idle(daemon)
    assert total(samples, "paceline_padded_tokens_total", dp_rank="1", cause="idle_dummy") == 2
    assert total(samples, "paceline_real_tokens_total", dp_rank="1") == 0
    assert total(samples, "paceline_real_tokens_total", dp_rank="0") == 4000


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_e13_a_client_that_leaves_frees_its_request(start_fleet: StartFleet, stream: bool) -> None:
    daemon = start_fleet("-dp", "2", "--max-num-seqs", "2", worker="--delay-ms 20")
    # Four run, four wait in the queue.
    connections = [connect(daemon) for _ in range(8)]
    for number, connection in enumerate(connections):
        send(connection, {**body([number + 1, 2], 2000), "stream": stream})
    deadline = time.monotonic() + 20
    while total(metrics(daemon), "paceline_requests_running") < 4 or total(metrics(daemon), "paceline_requests_waiting") < 4:
        assert time.monotonic() < deadline
    for connection in connections:
        connection.close()
    samples = until_idle(daemon)
    assert total(samples, "paceline_engine_aborted_total") == 8
    # Nothing runs on: two more steps per rank at most were under way.
    steps = total(samples, "paceline_steps_total")
    time.sleep(0.2)
    assert total(metrics(daemon), "paceline_steps_total") <= steps + 2


def test_e13_four_choices_of_one_request_leave_together(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", worker="--delay-ms 10")
    stream = Stream(daemon, body([1, 2], 2000, n=4)).wait_first()
    stream.drop()
    samples = until_idle(daemon)
    assert total(samples, "paceline_engine_aborted_total") == 4


def test_e14_more_than_may_wait_get_429_at_once(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "1", "--max-num-seqs", "2", "--max-num-queued-reqs", "4", worker="--delay-ms 10")
    streams = [Stream(daemon, body([number + 1, 2], 100)) for number in range(10)]
    ended = [stream.wait_end(limit_s=60) for stream in streams]
    assert sorted(stream.status or 0 for stream in ended) == [200] * 6 + [429] * 4
    assert sum(stream.finished for stream in ended) == 6


def test_g09_ranks_that_do_not_exist(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2")
    for rank, expected in [("1", 200), ("2", 400), ("-1", 400), ("x", 400)]:
        status, answer = complete(daemon, body([1, 2], 2), {"X-data-parallel-rank": rank})
        assert status == expected, (rank, answer)


def test_d01_a_prompt_that_no_pool_holds_is_400_and_the_next_request_runs(start_fleet: StartFleet) -> None:
    sizes = ("--block-size=16", "--num-gpu-blocks-override=63", "--max-model-len=1024")
    daemon = start_fleet("-dp=2", *sizes)
    began = time.monotonic()
    status, answer = complete(daemon, body([5] * 1010, 1))
    assert (status, answer["error"]["param"]) == (400, "prompt")
    assert "1010" in answer["error"]["message"]
    assert "1008" in answer["error"]["message"]
    assert time.monotonic() - began < 10
    assert len(text(daemon, [5] * 10, 4)) > 0

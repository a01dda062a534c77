"""Real worker processes over real gRPC: joining, stepping in lockstep, refusing, and every way to end."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.v1.worker_pb2 import ControlToWorker, Rejected, Stop
from parity.checkpoints import greedy_text, make_checkpoint, make_drafting_checkpoint, random_tokens
from parity.fake_daemon import FakeDaemon
from parity.families import DEEPSEEK
from parity.planner import Planner
from parity.test_runner import settings


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return make_checkpoint(folder), folder


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    fake = FakeDaemon(dp_size=2)
    yield fake
    fake.close()


def start_group(daemon: FakeDaemon, folder: Path, tmp_path: Path, ranks: list[int]) -> list[subprocess.Popen[str]]:
    """Start a worker for each rank and bring the group to where it can step, with lockstep on."""
    processes = [daemon.start_worker(rank, folder, tmp_path / f"worker{rank}.log") for rank in ranks]
    for rank in ranks:
        daemon.welcome(rank, ranks, settings(folder, dp_size=len(ranks), lockstep=True))
    for rank in ranks:
        daemon.links[rank].expect_control("loaded")
    daemon.form(ranks)
    return processes


def seconds_until_exit(process: subprocess.Popen[str], limit_s: float) -> float:
    started = time.monotonic()
    process.wait(timeout=limit_s)
    return time.monotonic() - started


def test_one_worker_from_join_to_stop(tiny: tuple[torch.nn.Module, Path], daemon: FakeDaemon, tmp_path: Path) -> None:
    oracle, folder = tiny
    log = tmp_path / "worker.log"
    process = daemon.start_worker(0, folder, log)
    link = daemon.links[0]
    join = daemon.welcome(0, [0], settings(folder))
    assert (join.join_token, join.dp_rank, join.process_id) == ("secret", 0, process.pid)
    assert len(join.checkpoint_digest) == len(join.tokenizer_digest) == 64
    loaded = link.expect_control("loaded")
    assert (loaded.num_blocks, loaded.row_capacity, loaded.vocab_size) == (60, 4, 97)
    assert (loaded.attention_contract.name, loaded.attention_contract.ragged_query_lens) == ("reference", True)
    daemon.form([0])
    planner = Planner([0])
    seat = planner.admit(0, 3, random_tokens(12, seed=1), list(range(1, 9)))
    link.send_step(planner.eager({0: {3: 12}})[0])
    planner.settle(0, link.expect_step("reply").body)
    for step in range(2, 8):
        envelope = planner.full({0: [3]}, rows_padded=2)[0]
        link.send_step(envelope)
        reply = link.expect_step("reply")
        assert (reply.step, reply.epoch, reply.digest) == (step, 1, envelope.digest)
        planner.settle(0, reply.body)
    assert seat.output == greedy_text(oracle, seat.prompt, 7)
    assert link.heartbeats > 0
    link.control_out.put(ControlToWorker(stop=Stop(reason="the test is done")))
    assert seconds_until_exit(process, 5) < 2
    assert process.returncode == 0
    lines = log.read_text().splitlines()
    assert lines[0] == "dp0: joined group 0 (dp_ranks 0)"
    assert lines[-1] == "dp0: ends: the test is done"


def test_lockstep_pair_runs_then_refuses_a_difference(
    tiny: tuple[torch.nn.Module, Path], daemon: FakeDaemon, tmp_path: Path
) -> None:
    oracle, folder = tiny
    processes = start_group(daemon, folder, tmp_path, [0, 1])
    planner = Planner([0, 1])
    seat = planner.admit(1, 0, random_tokens(9, seed=2), list(range(1, 9)))
    plans = [planner.eager({1: {0: 9}})]
    for index in range(6):
        for rank, envelope in plans[index].items():
            daemon.links[rank].send_step(envelope)
        for rank in (0, 1):
            reply = planner.settle(rank, daemon.links[rank].expect_step("reply").body)
            assert (reply["passes"], reply["collectives"]) == (1, 1)
        plans.append(planner.full({1: [0]}, rows_padded=1 + index % 2))
    assert seat.output == greedy_text(oracle, seat.prompt, 6)
    # The same step with another padded size for each rank: no rank alone can see it.
    daemon.links[0].send_step(plans[6][0])
    planner.step -= 1
    daemon.links[1].send_step(planner.full({1: [0]}, rows_padded=4)[1])
    for rank, numbers in ((0, {2, 4}), (1, {2, 4})):
        refused = daemon.links[rank].expect_step("refused")
        assert (refused.rule, refused.field, refused.step) == ("rule 2", "rows_padded on all ranks", 7)
        assert {refused.expected, refused.got} == numbers
    # Nothing more is launched in this epoch.
    planner.step += 1
    daemon.links[1].send_step(planner.full({1: [0]}, rows_padded=4)[1])
    processes[1].send_signal(signal.SIGTERM)
    assert seconds_until_exit(processes[1], 5) < 2
    assert processes[1].returncode == 0
    assert daemon.links[1].steps_in.empty()


def test_a22_coupled_workers_warm_up_together_and_the_first_request_completes(tmp_path: Path) -> None:
    """Two ranks of two workers with drafts; the first request comes to one rank only."""
    oracle = make_drafting_checkpoint(tmp_path, "DeepseekV3", 1, **DEEPSEEK)
    daemon = FakeDaemon(dp_size=2, tp_size=2)
    try:
        serve_first_request(daemon, oracle, tmp_path)
    finally:
        daemon.close()


def serve_first_request(daemon: FakeDaemon, oracle: torch.nn.Module, folder: Path) -> None:
    places = [(dp_rank, tp_rank) for dp_rank in (0, 1) for tp_rank in (0, 1)]
    logs = [folder / f"worker{dp_rank}{tp_rank}.log" for dp_rank, tp_rank in places]
    fields = {"dp_size": 2, "tp_size": 2, "expert_parallel": "all_to_all", "drafter": "mtp", "drafter_layers": 1}
    for (dp_rank, tp_rank), log in zip(places, logs, strict=True):
        daemon.start_worker(dp_rank, folder, log, tp_rank=tp_rank)
    for dp_rank, tp_rank in places:
        daemon.welcome(dp_rank, [0, 1], settings(folder, **fields), tp_rank=tp_rank)
    for link in daemon.links:
        link.expect_control("loaded")
    assert not any("warm-up" in log.read_text() for log in logs), "collectives need the group"
    daemon.form([0, 1])
    said = [next(line for line in log.read_text().splitlines() if ": warm-up in " in line) for log in logs]
    assert [line.split(":")[0] for line in said] == ["dp0 tp0", "dp0 tp1", "dp1 tp0", "dp1 tp1"]
    ran = {line.split(" s: ")[1] for line in said}
    assert len(ran) == 1
    assert re.search("6 target, 6 extend and 3 single passes, .* [1-9][0-9]* of the drafter", ran.pop())
    planner = Planner([0, 1], drafter_layers=1)
    seat = planner.admit(1, 0, random_tokens(9, seed=2), list(range(1, 12)))
    envelopes = planner.eager({1: {0: 9}}, k_draft=3)
    for _ in range(4):
        for index, link in enumerate(daemon.links):
            link.send_step(envelopes[index // 2])
        replies = [link.expect_step("reply") for link in daemon.links]
        # All passes on all workers: target, extend, two single ones.
        assert len({(reply.passes, reply.collectives) for reply in replies}) == 1
        assert replies[0].passes == 4
        assert [bool(reply.body) for reply in replies] == [True, False, True, False]
        assert replies[2].tokens_digest == replies[3].tokens_digest != replies[0].tokens_digest
        planner.settle(0, replies[0].body)
        planner.settle(1, replies[2].body)
        envelopes = planner.full({1: [0]}, query_len=4, rows_padded=1, k_draft=3)
    assert len(seat.output) >= 4
    assert seat.output == greedy_text(oracle, seat.prompt, len(seat.output))


def test_refusal_frees_a_peer_and_sigterm_ends_a_blocked_worker(
    tiny: tuple[torch.nn.Module, Path], daemon: FakeDaemon, tmp_path: Path
) -> None:
    processes = start_group(daemon, tiny[1], tmp_path, [0, 1])
    planner = Planner([0, 1])
    planner.admit(1, 0, random_tokens(9, seed=2), list(range(1, 9)))
    first = planner.eager({1: {0: 9}})
    # Rank 0 launches and waits for rank 1, whose plan names an epoch that is not.
    daemon.links[0].send_step(first[0])
    broken = type(first[1])()
    broken.CopyFrom(first[1])
    broken.epoch = 9
    daemon.links[1].send_step(broken)
    refused = daemon.links[1].expect_step("refused")
    assert (refused.rule, refused.field, refused.expected, refused.got) == ("rule 13", "epoch", 1, 9)
    log = tmp_path / "worker0.log"
    deadline = time.monotonic() + 20
    while "a peer left the group" not in log.read_text():
        assert time.monotonic() < deadline, "rank 0 still waits for a peer that has refused"
        processes[0].poll()
    for process in processes:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert seconds_until_exit(process, 5) < 2
        assert process.returncode == 0


def test_sigterm_ends_a_worker_that_waits_for_a_peer_and_a_lost_daemon_ends_the_other(
    tiny: tuple[torch.nn.Module, Path], daemon: FakeDaemon, tmp_path: Path
) -> None:
    processes = start_group(daemon, tiny[1], tmp_path, [0, 1])
    planner = Planner([0, 1])
    planner.admit(1, 0, random_tokens(9, seed=2), list(range(1, 9)))
    daemon.links[0].send_step(planner.eager({1: {0: 9}})[0])
    beats = daemon.links[0].heartbeats
    deadline = time.monotonic() + 10
    while daemon.links[0].heartbeats < beats + 2:
        assert time.monotonic() < deadline, "no heartbeat while a pass waits"
    processes[0].send_signal(signal.SIGTERM)
    assert seconds_until_exit(processes[0], 5) < 2
    assert processes[0].returncode == 0
    daemon.vanish()
    assert seconds_until_exit(processes[1], 10) < 8
    assert processes[1].returncode == 1
    assert "dp1: ends: lost the daemon" in (tmp_path / "worker1.log").read_text()


def test_a_refused_join_ends_before_torch_is_imported(
    tiny: tuple[torch.nn.Module, Path], daemon: FakeDaemon, tmp_path: Path
) -> None:
    process = daemon.start_worker(1, tiny[1], tmp_path / "worker.log", token="wrong")
    assert daemon.links[1].expect_control("join").join_token == "wrong"
    rejected = Rejected(field="join_token", expected="the daemon's", got="another")
    daemon.links[1].control_out.put(ControlToWorker(rejected=rejected))
    process.wait(timeout=10)
    assert process.returncode == 64
    expected = "dp1: ends: the daemon refuses the join: join_token: expected the daemon's, got another\n"
    assert (tmp_path / "worker.log").read_text() == expected


def test_settings_that_cannot_be_met_are_reported_to_the_daemon(
    tiny: tuple[torch.nn.Module, Path], daemon: FakeDaemon, tmp_path: Path
) -> None:
    process = daemon.start_worker(0, tiny[1], tmp_path / "worker.log")
    daemon.welcome(0, [0], settings(tiny[1], attention_contract="trtllm"))
    failure = daemon.links[0].expect_control("failure")
    assert failure.message == "attention contract trtllm: block_size 4 is not one of (16, 32, 64)"
    process.wait(timeout=10)
    assert process.returncode == 64


def test_bad_folder_is_refused_without_a_daemon(daemon: FakeDaemon, tmp_path: Path) -> None:
    process = daemon.start_worker(0, tmp_path / "missing", tmp_path / "worker.log")
    process.wait(timeout=10)
    assert process.returncode == 64
    assert (tmp_path / "worker.log").read_text() == f"dp0: no such model folder: {tmp_path / 'missing'}\n"

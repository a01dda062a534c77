"""Real worker processes over real gRPC: joining, stepping in lockstep, refusing, and every way to end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paceline.v1.worker_pb2 import ControlToWorker, Rejected, Stop
from parity.checkpoints import greedy_text, make_checkpoint, random_tokens
from parity.fake_daemon import FakeDaemon
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

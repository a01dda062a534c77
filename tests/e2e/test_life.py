"""Starting and stopping: bad usage, taken ports, signals, workers that do not come up."""

import json
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from e2e.calls import Stream, body, complete, connect, text
from e2e.conftest import StartFleet
from support.cargo import Build
from support.processes import run_limited

USAGE = 64


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "99999"], "--port"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--max-num-seqs", "0"], "--max-num-seqs is 0"),
        (["-dp", "0"], "--data-parallel-size is 0"),
        (["-tp", "0"], "--tensor-parallel-size is 0"),
        (["-tp", "5"], "--tensor-parallel-size is 5, it must divide num_attention_heads of the model, 12"),
        (["-tp", "3"], "--tensor-parallel-size is 3, it must divide num_key_value_heads of the model, 4"),
        (["--enable-expert-parallel", "-dp", "5"], "shares the experts of the model among 5 workers, and it has 4"),
        (["--enable-expert-parallel", "-dp", "2", "--lockstep", "off"], "--lockstep is off"),
        (["--all2all-backend", "broadcast"], "--all2all-backend"),
        (["--demo", "moe"], "--demo is demo:moe, and the model to serve is"),
        (["--lockstep", "maybe"], "--lockstep"),
        (["--dtype", "int4"], "--dtype"),
        (["--quantization", "int4"], "--quantization"),
        (["--host", "nowhere.invalid"], "nowhere.invalid"),
        (["--speculative-config", '{"method": "eagle"}'], "--speculative-config"),
        (
            ["--max-num-batched-tokens", "2", "--speculative-config", '{"method":"ngram","num_speculative_tokens":2}'],
            "is 2, must be",
        ),
        (["--max-num-seqs", "100", "--cudagraph-capture-sizes", "8,112"], "112"),
        (["--max-model-len", "5000"], "--max-model-len is 5000"),
        (["--config", "/nonexistent.toml"], "/nonexistent.toml"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_64(rust_build: Build, tiny_model: Path, arguments: list[str], named: str) -> None:
    began = time.monotonic()
    command = [rust_build.programs["paceline"], "serve", tiny_model, "--skip-prepare", *arguments]
    ports = [] if "--port" in arguments else ["--port", "0"]
    result = run_limited([*command, *ports], limit_s=20)
    assert time.monotonic() - began < 5
    assert result.returncode == USAGE, result.output
    lines = [line for line in result.output.splitlines() if not line.startswith("paceline: listening")]
    assert len(lines) == 1, result.output
    assert lines[0].startswith("paceline: ")
    assert named in lines[0]


def test_drafts_by_mtp_need_a_draft_layer(rust_build: Build, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dense"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["num_nextn_predict_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    for method in ("mtp", "deepseek_mtp", "glm4_moe_mtp"):
        drafts = json.dumps({"method": method, "num_speculative_tokens": 1})
        serve = [rust_build.programs["paceline"], "serve", folder, "--skip-prepare", "--port", "0", "--speculative-config", drafts]
        result = run_limited(serve, limit_s=20)
        assert result.returncode == USAGE, result.output
        told = result.output.splitlines()[-1]
        assert "--speculative-config: method mtp needs num_nextn_predict_layers of at least 1" in told, told


def test_unknown_keys_of_a_file_are_errors_and_flags_go_before_it(rust_build: Build, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "paceline.toml"
    path.write_text("max-num-seqs = 0\n")
    serve = [rust_build.programs["paceline"], "serve", tiny_model, "--skip-prepare", "--port", "0", "--config", path]
    assert "--max-num-seqs is 0" in run_limited(serve, limit_s=20).output
    from_environment = run_limited(serve, limit_s=20, environment={"PACELINE_MAX_NUM_SEQS": "70000"})
    assert "--max-num-seqs is 70000" in from_environment.output
    from_flag = run_limited([*serve, "--max-num-seqs", "80000"], limit_s=20, environment={"PACELINE_MAX_NUM_SEQS": "70000"})
    assert "--max-num-seqs is 80000" in from_flag.output
    path.write_text("max-sequences = 4\n")
    unknown = run_limited(serve, limit_s=20)
    assert (unknown.returncode, "max-sequences" in unknown.output) == (USAGE, True), unknown.output


@pytest.mark.parametrize("flag", ["--port", "--grpc-port", "--control-port"])
def test_f09_a_taken_port_is_known_before_anything_is_loaded(rust_build: Build, tiny_model: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        free = [part for other in ("--port", "--grpc-port", "--control-port") if other != flag for part in (other, "0")]
        began = time.monotonic()
        # Without --skip-prepare: the interpreter does not exist, and is not needed to see the port.
        command = [rust_build.programs["paceline"], "serve", tiny_model, flag, port, *free, "--python", "/nonexistent"]
        result = run_limited(command, limit_s=20)
    assert time.monotonic() - began < 5
    assert result.returncode == USAGE
    assert len(result.output.splitlines()) == 1
    assert port in result.output


def test_f09_many_daemons_start_at_once_on_ports_of_their_own(start_fleet: StartFleet) -> None:
    daemons = [start_fleet(ready=False) for _ in range(8)]
    addresses = {daemon.wait_ready(limit_s=60).address(kind) for daemon in daemons for kind in ("http", "grpc", "control")}
    assert len(addresses) == 24


def test_a_missing_interpreter_is_bad_usage(rust_build: Build, tiny_model: Path) -> None:
    command = [rust_build.programs["paceline"], "serve", tiny_model, "--port", "0", "--python", "/nonexistent"]
    result = run_limited(command, limit_s=20)
    assert result.returncode == USAGE
    assert "--python /nonexistent" in result.output.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_fleet_ends_within_two_seconds(start_fleet: StartFleet, number: signal.Signals) -> None:
    daemon = start_fleet("-dp", "2")
    idle = connect(daemon)
    idle.request("GET", "/health")
    assert idle.getresponse().read() is not None
    began = time.monotonic()
    daemon.signal(number)
    assert daemon.wait(limit_s=10) == 0
    assert time.monotonic() - began < 2
    assert not daemon.children()
    assert not [line for line in daemon.lines if "ERROR" in line or "WARN" in line]
    idle.close()


def test_f01_streams_that_run_at_the_end_get_an_error_event(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", worker="--delay-ms 10")
    streams = [Stream(daemon, body([number, 2], 2000)).wait_first() for number in range(1, 5)]
    daemon.signal(signal.SIGTERM)
    for stream in streams:
        error = stream.wait_end(limit_s=10).error
        assert error is not None, stream.events[-1]
        assert "the daemon stops" in error["message"]
    assert daemon.wait(limit_s=10) == 0


def test_f01_streams_may_finish_within_the_shutdown_timeout(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", "--shutdown-timeout", "30", worker="--delay-ms 5")
    streams = [Stream(daemon, body([number, 2], 200)).wait_first() for number in range(1, 5)]
    daemon.signal(signal.SIGTERM)
    assert all(stream.wait_end(limit_s=20).finished for stream in streams)
    assert daemon.wait(limit_s=5) == 0


def test_f01_a_second_signal_ends_the_wait(start_fleet: StartFleet) -> None:
    daemon = start_fleet("--shutdown-timeout", "60", worker="--delay-ms 10")
    stream = Stream(daemon, body([1, 2], 3000)).wait_first()
    daemon.signal(signal.SIGTERM)
    daemon.wait_line(lambda line: "SIGTERM" in line, limit_s=5, what="line about the signal")
    daemon.signal(signal.SIGTERM)
    assert stream.wait_end(limit_s=5).error is not None
    assert daemon.wait(limit_s=5) == 0


def test_f05_a_start_that_takes_too_long_names_the_rank(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", "--startup-timeout", "1", worker="--load-ms 60000", ready=False)
    began = time.monotonic()
    assert daemon.wait(limit_s=20) == 1
    assert time.monotonic() - began < 10
    assert any("dp0, dp1: not in service within 1 s" in line for line in daemon.lines)
    assert not daemon.children()


def test_f05_a_signal_during_the_start_ends_it(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "2", worker="--load-ms 60000", ready=False)
    daemon.wait_line(lambda line: "dp1: worker joined" in line, limit_s=20, what="join of dp1")
    assert (daemon.status("/health"), daemon.status("/ready")) == (200, 503)
    began = time.monotonic()
    daemon.signal(signal.SIGINT)
    assert daemon.wait(limit_s=10) == 128 + signal.SIGINT
    assert time.monotonic() - began < 4
    assert not daemon.children()


@pytest.mark.parametrize(("worker", "told"), [("--fail-loading", "told to fail"), ("--no-such-flag", "process ended")])
def test_a_worker_that_fails_at_the_start_ends_the_daemon_and_is_named(start_fleet: StartFleet, worker: str, told: str) -> None:
    daemon = start_fleet("-dp", "2", worker=worker, ready=False)
    assert daemon.wait(limit_s=20) != 0
    last = daemon.lines[-1]
    assert last.startswith(("paceline: dp0: ", "paceline: dp1: ")), last
    assert any(told in line for line in daemon.lines)
    assert not daemon.children()


def test_workers_may_dial_in_by_themselves(start_fleet: StartFleet, rust_build: Build) -> None:
    daemon = start_fleet("-dp", "2", "--no-spawn", "--join-token", "open sesame", ready=False)
    daemon.wait_line(lambda line: "waiting for 2 workers" in line, limit_s=20, what="how to join")
    status, answer = complete(daemon, body([1], 1))
    assert status == 503, answer
    program = rust_build.programs["paceline-scripted-worker"]
    dial = [program, "--vocab-size", "900", "--daemon-address", daemon.address("control")]
    stranger = run_limited([*dial, "--dp-rank", "0", "--join-token", "guess"], limit_s=20)
    assert (stranger.returncode, "join_token" in stranger.output) == (USAGE, True), stranger.output
    workers = [
        subprocess.Popen([*map(str, dial), "--dp-rank", str(dp_rank), "--join-token", "open sesame"], stderr=subprocess.DEVNULL)
        for dp_rank in range(2)
    ]
    try:
        daemon.wait_ready(limit_s=20)
        assert text(daemon, [1, 2], 4)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait(limit_s=10) == 0
        # They were told to stop and end well.
        assert [worker.wait(10) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()

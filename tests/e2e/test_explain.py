"""Why a step had its shape: the command `paceline explain`, the step log and the counters behind them."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.calls import Stream, body, complete, connect, metrics, text, total
from e2e.conftest import StartFleet
from support.cargo import Build
from support.daemon import Daemon

MODEL_LEN = 16384
# Steps so long that requests which are sent one after the other run side by side.
UNHURRIED = "--delay-ms 10"
ONE_DRAFT = '{"method": "ngram", "num_speculative_tokens": 1}'

Explain = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def tiny_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with room for a long prompt."""
    folder = tmp_path_factory.mktemp("models") / "long"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": MODEL_LEN}))
    return folder


@pytest.fixture
def explain(rust_build: Build) -> Explain:
    """A function that runs `paceline explain` against a daemon."""

    def run(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [rust_build.programs["paceline"], "explain", "--url", daemon.url, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    return run


def told(explain: Explain, daemon: Daemon, *arguments: str) -> str:
    """The words of a step that is kept."""
    result = explain(daemon, *arguments)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def numbers(daemon: Daemon, path: str, key: str | None = None) -> tuple[int, dict]:
    """Status and JSON of `/explain/...`."""
    connection = connect(daemon)
    try:
        connection.request("GET", f"/explain/{path}", headers={} if key is None else {"Authorization": f"Bearer {key}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_a24_a_dummy_beside_a_long_chunk_is_explained_and_counted_apart(start_fleet: StartFleet, explain: Explain) -> None:
    daemon = start_fleet("-dp=2", "--lockstep=on", "--speculative-config", ONE_DRAFT, "--max-num-batched-tokens=8192")
    headers = {"X-data-parallel-rank": "0", "X-Request-Id": "long"}
    status, answer = complete(daemon, body([7] * 8192, 1), headers)
    assert status == 200, answer
    words = told(explain, daemon, "last")
    assert words.splitlines() == [
        "group 0, epoch 1, step 1: eager",
        "  why: not full because dp_rank 0 has a prompt row; no token ladder covers 8192 tokens",
        "  shape: 1 row, 8192 tokens on every rank; drafts of a row: 1 verified, 1 proposed",
        "  dp_rank 0: 0 decode rows, 1 prompt row, 8192 real tokens, 0 of padding; attention was given 8192 tokens",
        "    request cmpl-long started: it may run on no other rank",
        "  dp_rank 1: no row of its own, 1 dummy row, 0 real tokens, 8192 of padding (2 idle dummy, 8190 group alignment); "
        "attention was given 2 tokens",
    ]
    assert told(explain, daemon, "1") == words
    samples = metrics(daemon)
    for name, labels, value in [
        ("paceline_dummy_tokens_total", {"dp_rank": "1"}, 2),
        ("paceline_dummy_steps_total", {"dp_rank": "1"}, 1),
        ("paceline_attention_padded_tokens_total", {"dp_rank": "1"}, 2),
        ("paceline_padded_tokens_total", {"dp_rank": "1", "cause": "idle_dummy", "mode": "eager"}, 2),
        ("paceline_padded_tokens_total", {"dp_rank": "1"}, 8192),
        ("paceline_padded_tokens_total", {"dp_rank": "0"}, 0),
        ("paceline_real_tokens_total", {"dp_rank": "0", "mode": "eager"}, 8192),
        ("paceline_real_tokens_total", {"dp_rank": "1"}, 0),
        ("paceline_downgrades_total", {"dp_rank": "0", "cause": "prompt_row"}, 1),
        ("paceline_downgrades_total", {"dp_rank": "1"}, 0),
        ("paceline_prompt_tokens_total", {}, 8192),
        ("paceline_generation_tokens_total", {}, 1),
        ("paceline_balance_ratio", {}, 0.5),
    ]:
        assert total(samples, name, **labels) == value, (name, labels)


def test_the_ledger_adds_up(start_fleet: StartFleet) -> None:
    daemon = start_fleet(
        *["-dp=2", "--lockstep=on", "--speculative-config", ONE_DRAFT],
        *["--max-num-seqs=8", "--cudagraph-capture-sizes=4,8,16", "--max-num-batched-tokens=64"],
        worker=UNHURRIED,
    )
    streams = [Stream(daemon, body([number + 1, 5, 7] * (number + 1), 20 + 9 * number)) for number in range(11)]
    for stream in streams:
        assert stream.wait_end(limit_s=30).finished
    status, last = numbers(daemon, "last")
    assert status == 200
    real, padded, attention, steps = [0, 0], [0, 0], [0, 0], last["steps"][0]["step"]
    causes: dict[str, int] = {}
    for number in range(1, steps + 1):
        (step,) = numbers(daemon, str(number))[1]["steps"]
        for index, rank in enumerate(step["ranks"]):
            assert rank["real_tokens"] + rank["padding_tokens"] == step["tokens_padded"], step
            assert sum(rank["padding"].values()) == rank["padding_tokens"], step
            assert step["mode"] != "full" or rank["attention_tokens"] == step["tokens_padded"], step
            real[index] += rank["real_tokens"]
            padded[index] += rank["padding_tokens"]
            attention[index] += rank["attention_tokens"] - rank["real_tokens"]
            for cause, tokens in rank["padding"].items():
                causes[cause] = causes.get(cause, 0) + tokens
    samples = metrics(daemon)
    assert total(samples, "paceline_steps_total") == steps
    for index in range(2):
        dp_rank = str(index)
        assert total(samples, "paceline_real_tokens_total", dp_rank=dp_rank) == real[index]
        assert total(samples, "paceline_padded_tokens_total", dp_rank=dp_rank) == padded[index]
        assert total(samples, "paceline_attention_padded_tokens_total", dp_rank=dp_rank) == attention[index]
        assert total(samples, "paceline_rank_steps_total", dp_rank=dp_rank) == steps
    for cause, tokens in causes.items():
        assert total(samples, "paceline_padded_tokens_total", cause=cause) == tokens
    for cause in ("idle_dummy", "row_ladder", "placeholder", "group_alignment"):
        assert causes[cause] > 0, causes
    largest = total(samples, "paceline_balance_largest_tokens_total")
    assert samples["paceline_balance_ratio"] == pytest.approx(sum(real) / largest)


def test_a_preempted_request_is_named(start_fleet: StartFleet, explain: Explain) -> None:
    sizes = ("--max-num-seqs=4", "--num-gpu-blocks-override=9", "--max-model-len=128", "--block-size=16")
    daemon = start_fleet("-dp=1", *sizes, worker=UNHURRIED)
    streams = [Stream(daemon, body([number + 1] * 20, 60), {"X-Request-Id": f"r{number}"}) for number in range(4)]
    for stream in streams:
        assert stream.wait_end(limit_s=30).finished
    assert total(metrics(daemon), "paceline_preemptions_total") > 0
    last = numbers(daemon, "last")[1]["steps"][0]["step"]
    steps = [numbers(daemon, str(number))[1]["steps"][0] for number in range(1, last + 1)]
    preempted = [(step["step"], name) for step in steps for name in step["ranks"][0]["preempted"]]
    number, name = preempted[0]
    assert name in {f"cmpl-r{number}" for number in range(4)}
    assert f"request {name} was preempted" in told(explain, daemon, str(number))


def test_a_request_that_is_held_is_named_with_the_reason(start_fleet: StartFleet, explain: Explain) -> None:
    # Two decode rows cost four of five tokens; a prompt of one token takes the fifth, and decodes next.
    daemon = start_fleet(
        "-dp=1", "--speculative-config", ONE_DRAFT, "--max-num-batched-tokens=5", "--max-num-seqs=4", worker=UNHURRIED
    )
    streams = [Stream(daemon, body([number + 1], 60), {"X-Request-Id": f"r{number}"}) for number in range(4)]
    for stream in streams:
        assert stream.wait_end(limit_s=30).finished
    last = numbers(daemon, "last")[1]["steps"][0]["step"]
    steps = [numbers(daemon, str(number))[1]["steps"][0] for number in range(1, last + 1)]
    held = [(step["step"], row["request"]) for step in steps for row in step["ranks"][0]["held"] if row["reason"] == "budget"]
    number, name = held[0]
    assert f"request {name} runs and had no row: held by the token budget" in told(explain, daemon, str(number))


def steps_of(daemon: Daemon) -> list[dict]:
    """The numbers of all steps of the one group, in order."""
    last = numbers(daemon, "last")[1]["steps"][0]["step"]
    return [numbers(daemon, str(number))[1]["steps"][0] for number in range(1, last + 1)]


def placement(daemon: Daemon, name: str) -> tuple[int, dict]:
    """Where a request started first, and what is told of it."""
    ranks = [rank for step in steps_of(daemon) for rank in step["ranks"]]
    found = [(rank["dp_rank"], started) for rank in ranks for started in rank["started"] if started["request"] == f"cmpl-{name}"]
    return found[0]


COUPLED = ("-dp=2", "--lockstep=on", "--enable-prefix-caching")


def test_a_prefix_decides_and_is_told(start_fleet: StartFleet) -> None:
    prompt = [number % 250 + 1 for number in range(320)]
    for flag, expected in [("on", (1, "prefix", 304)), ("off", (0, "turn", 0))]:
        daemon = start_fleet(*COUPLED, "--prefix-affinity", flag)
        pinned = {"X-data-parallel-rank": "1", "X-Request-Id": "first"}
        assert complete(daemon, body(prompt, 2), pinned)[0] == 200
        assert complete(daemon, body(prompt, 2), {"X-Request-Id": "again"})[0] == 200
        dp_rank, started = placement(daemon, "first")
        assert (dp_rank, started["reason"]) == (1, "pinned")
        dp_rank, started = placement(daemon, "again")
        assert (dp_rank, started["reason"], started["cached_tokens"]) == expected
        assert total(metrics(daemon), "paceline_prefix_cache_hit_tokens_total") == expected[2]
        daemon.stop()


@pytest.mark.parametrize(("measure", "expected"), [("tokens", 1), ("requests", 0)])
def test_the_load_decides_and_is_told(start_fleet: StartFleet, measure: str, expected: int) -> None:
    daemon = start_fleet(*COUPLED, "--placement-load", measure, worker=UNHURRIED)
    loads = [(0, 1_000), (1, 50), (1, 50)]
    prompts = [[(number * place) % 250 + 1 for place in range(length)] for number, (_, length) in enumerate(loads, 1)]
    heads = [{"X-data-parallel-rank": str(dp_rank)} for dp_rank, _ in loads]
    streams = [Stream(daemon, body(prompt, 400), head) for prompt, head in zip(prompts, heads, strict=True)]
    for stream in streams:
        stream.wait_first()
    assert complete(daemon, body([7] * 5, 1), {"X-Request-Id": "new"})[0] == 200
    assert placement(daemon, "new") == (expected, {"request": "cmpl-new", "reason": "load", "ran_on": None, "cached_tokens": 0})
    for stream in streams:
        stream.drop()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--prefill-alignment-steps=2"], ("alignment", "held until they run on several ranks, step 2 of at most 2")),
        (["--max-prefill-tokens-beside-decodes=64"], ("gap", "at most 64 tokens of a rank, for another rank decodes")),
        ([], None),
    ],
    ids=["alignment", "gap", "neither"],
)
def test_what_holds_prompts_back_is_explained(
    start_fleet: StartFleet, explain: Explain, flags: list[str], expected: tuple[str, str] | None
) -> None:
    daemon = start_fleet(*COUPLED, *flags, "--max-num-batched-tokens=400", worker=UNHURRIED)
    stream = Stream(daemon, body([5] * 10, 400), {"X-data-parallel-rank": "0"}).wait_first()
    assert complete(daemon, body([7] * 300, 1), {"X-data-parallel-rank": "1"})[0] == 200
    held = [(step["step"], step["prompts"]["reason"]) for step in steps_of(daemon) if step["prompts"]]
    reason, sentence = expected or (None, "")
    assert {name for _, name in held} >= ({reason} if reason else set()), held
    words = [told(explain, daemon, str(step)) for step, _ in held]
    assert bool(words) == bool(reason)
    assert not words or any(f"prompts: {sentence}" in text for text in words), words
    stream.drop()


def test_groups_answer_by_themselves(start_fleet: StartFleet, explain: Explain) -> None:
    daemon = start_fleet("-dp=2")
    for dp_rank in ("0", "1"):
        assert complete(daemon, body([1, 2, 3], 4), {"X-data-parallel-rank": dp_rank})[0] == 200
    both = told(explain, daemon, "2")
    assert "group 0, epoch 1, step 2: full" in both
    assert "group 1, epoch 1, step 2: full" in both
    assert told(explain, daemon, "2", "--group", "1") == told(explain, daemon, "2", "--dp-rank", "1")
    assert told(explain, daemon, "last") == told(explain, daemon, "4", "--dp-rank=1")


def test_a_step_that_is_not_kept_is_said_with_both_numbers(start_fleet: StartFleet, explain: Explain) -> None:
    daemon = start_fleet("-dp=2", "--lockstep=on")
    result = explain(daemon, "last")
    assert (result.returncode, result.stderr) == (1, "paceline: no step of any group has run yet\n")
    text(daemon, [1, 2, 3], 4300)
    for step in ("204", "4301"):
        result = explain(daemon, step, "--dp-rank", "1")
        expected = f"paceline: step {step} of dp_rank 1 is not kept: the first kept is step 205, the last is step 4300\n"
        assert (result.returncode, result.stdout, result.stderr) == (1, "", expected)
    assert "step 205: " in told(explain, daemon, "205")
    result = explain(daemon, "1", "--group", "3")
    assert (result.returncode, result.stderr) == (1, "paceline: no step of group 3 has run yet\n")


@pytest.mark.parametrize("arguments", [["first"], ["-1"], ["1", "--group", "x"], ["1", "--url", "https://localhost"], []])
def test_bad_usage_is_one_line_and_64(rust_build: Build, arguments: list[str]) -> None:
    command = [rust_build.programs["paceline"], "explain", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 64
    assert result.stderr.startswith("paceline: ")
    assert result.stderr.count("\n") == 1, result.stderr


def test_the_key_is_asked_for(start_fleet: StartFleet, explain: Explain) -> None:
    # Who waits for readiness by a call would need the key.
    daemon = start_fleet("-dp=1", "--api-key", "secret", ready=False)
    assert numbers(daemon, "last")[0] == 401
    result = explain(daemon, "last")
    assert result.returncode == 1
    assert "needs its API key" in result.stderr
    assert "no step" in explain(daemon, "last", "--api-key", "secret").stderr
    assert numbers(daemon, "last", "secret")[0] == 404


def test_nobody_listens(rust_build: Build) -> None:
    # Port 1 needs rights that no test has: nothing of ours listens there.
    command = [rust_build.programs["paceline"], "explain", "last", "--url", "http://127.0.0.1:1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("paceline: no answer from http://127.0.0.1:1: ")


@pytest.mark.parametrize("level", ["info", "debug"])
def test_the_debug_log_has_one_line_for_each_step(start_fleet: StartFleet, level: str) -> None:
    daemon = start_fleet("-dp=2", "--lockstep=on", "--log-level", level)
    assert complete(daemon, body([1, 2, 3], 5), {"X-data-parallel-rank": "1"})[0] == 200
    daemon.stop()
    steps = [line for line in daemon.lines if "group 0, epoch 1, step " in line]
    if level == "info":
        assert steps == []
        return
    assert len(steps) == 5
    assert "step 1: " in steps[0]
    assert "not full because dp_rank 1 has a prompt row" in steps[0]
    assert "dp_rank 0: no row of its own, 1 dummy row, 0 real tokens, 3 of padding (1 idle dummy" in steps[0]
    assert "step 2: full: the largest rank has 1 decode row, the ladder's entry is 1; 1 row, 1 token on every rank" in steps[1]

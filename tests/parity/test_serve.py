"""The whole server on a real model: its text is `transformers`' text, however many ranks, rows, chunks or preemptions.

Everything is compared over HTTP with real workers. Prompts are token ids, so that only the model is compared.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from reference import NEW_TOKENS, Continuation, continuations
from support.daemon import Daemon
from support.demo import demo_folder

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to serve the model."""

    name: str
    arguments: tuple[str, ...]
    concurrency: int
    must_preempt: bool = False


# `--num-gpu-blocks-override 75` holds the longest prompt (900 + 24 tokens) and little else: 16 tokens a block.
SETUPS = [
    Setup("one rank, one at a time", ("-dp", "1"), 1),
    Setup("two ranks, 16 at once", ("-dp", "2"), 16),
    Setup("two ranks, small cache and budget", ("-dp=2", "--num-gpu-blocks-override", "75", "--max-num-batched-tokens", "96"), 16, True),
    Setup("lockstep, chunks", ("-dp", "2", "--lockstep", "on", "--max-num-batched-tokens", "160"), 8),
    Setup(
        "lockstep, drafts, TRTLLM's contract, small cache",
        (
            *("-dp", "2", "--lockstep", "on", "--num-gpu-blocks-override", "75", "--max-num-batched-tokens", "128"),
            *("--attention-contract", "trtllm"),
            *("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'),
        ),
        16,
        True,
    ),
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo_folder()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Continuation]:
    return continuations(folder)


@pytest.fixture(scope="module")
def seeded_texts() -> dict[str, list[str]]:
    """What each setup made of the same seeds."""
    return {}


def complete(daemon: Daemon, bodies: list[Json], concurrency: int) -> list[Json]:
    """The choices of single-choice completions, in order."""
    with httpx.Client(base_url=daemon.url, timeout=240) as client, ThreadPoolExecutor(concurrency) as pool:

        def one(body: Json) -> Json:
            response = client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            (choice,) = response.json()["choices"]
            return choice

        return list(pool.map(one, bodies))


def counter(daemon: Daemon, name: str) -> float:
    """Sum of a counter over its labels."""
    lines = httpx.get(f"{daemon.url}/metrics", timeout=10).text.splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    assert values, f"no {name} in /metrics"
    return sum(values)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_text_is_that_of_transformers(
    setup: Setup, folder: Path, expected: list[Continuation], seeded_texts: dict[str, list[str]], start_daemon: Any
) -> None:
    """Greedy tokens are equal one by one, log-probabilities within 1e-3, seeded text is the same in every setup."""
    daemon = start_daemon(folder, "--dtype", "float32", "--max-model-len", "1024", *setup.arguments)
    daemon.wait_ready(limit_s=120)
    common = {"max_tokens": NEW_TOKENS, "ignore_eos": True}

    greedy = [common | {"prompt": [item.prompt], "temperature": 0, "logprobs": 1} for item in expected]
    tokens = [
        common | {"prompt": [item.prompt], "temperature": 0, "return_tokens_as_token_ids": True, "logprobs": 0}
        for item in expected
    ]
    choices = complete(daemon, greedy, setup.concurrency)
    as_ids = complete(daemon, tokens, setup.concurrency)
    for item, choice, ids in zip(expected, choices, as_ids, strict=True):
        got = [int(token.removeprefix("token_id:")) for token in ids["logprobs"]["tokens"]]
        assert got == item.tokens, f"prompt of {len(item.prompt)} tokens"
        assert choice["text"] == ids["text"]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(item.logprobs, abs=1e-3)

    seeded = [common | {"prompt": [item.prompt], "temperature": 0.8, "seed": 7 + index} for index, item in enumerate(expected)]
    seeded_texts[setup.name] = [choice["text"] for choice in complete(daemon, seeded, setup.concurrency)]
    first = next(iter(seeded_texts.values()))
    assert seeded_texts[setup.name] == first

    preemptions = counter(daemon, "paceline_preemptions_total")
    assert (preemptions > 0) == setup.must_preempt, f"{preemptions} preemptions"

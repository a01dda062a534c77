"""The whole server on a real model: its text is `transformers`' text, however many ranks, rows, chunks or preemptions.

Everything goes over real sockets to real workers: greedy token ids over gRPC, seeded text over HTTP. Prompts are token
ids, so that only the model is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import pytest

from parity.reference import NEW_TOKENS, Continuation, continuations
from parity.serving import counter, forced_call, greedy, sampled
from support.demo import demo_folder


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to serve the model."""

    name: str
    arguments: tuple[str, ...]
    concurrency: int
    # Requests longer than this do not fit, and the others must preempt each other.
    longest_tokens: int | None = None
    # Whether prompts that come again are read from the cache.
    cached: bool = True


# 31 blocks of 4 tokens hold the longest request of 124 tokens and little else, so that requests which started together
# run out of blocks together.
SMALL_CACHE = ("--max-model-len", "128", "--block-size", "4", "--num-gpu-blocks-override", "31")
DRAFTS = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
SETUPS = [
    Setup("one rank, one at a time, no prefix cache", ("-dp", "1", "--no-enable-prefix-caching"), 1, cached=False),
    Setup("two ranks, 16 at once", ("-dp", "2"), 16),
    Setup("two ranks, small cache and budget", ("-dp=2", *SMALL_CACHE, "--max-num-batched-tokens", "32"), 16, 124),
    Setup(
        "lockstep, small cache and budget",
        ("-dp", "2", "--lockstep", "on", *SMALL_CACHE, "--max-num-batched-tokens", "48"),
        16,
        124,
    ),
    Setup(
        "lockstep, drafts, TRTLLM's contract, chunks",
        ("-dp", "2", "--lockstep", "on", "--max-num-batched-tokens", "128", "--attention-contract", "trtllm", *DRAFTS),
        8,
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


@pytest.fixture(scope="module")
def calls() -> list[dict[str, Any]]:
    """The forced call of each setup that has room for one."""
    return []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_text_is_that_of_transformers(
    setup: Setup,
    folder: Path,
    expected: list[Continuation],
    seeded_texts: dict[str, list[str]],
    calls: list[dict[str, Any]],
    start_daemon: Any,
) -> None:
    """Greedy tokens are equal one by one, log-probabilities within 1e-3, seeded text and a forced call the same in every setup.

    Prompts come again. The first setup computes them again, the others read them from the prefix cache: the same text.
    """
    daemon = start_daemon(folder, "--dtype", "float32", "--tool-call-parser", "hermes", *setup.arguments)
    daemon.wait_ready(limit_s=120)
    fits = (len(item.prompt) + NEW_TOKENS <= (setup.longest_tokens or 8192) for item in expected)
    expected = list(compress(expected, fits))
    prompts = [item.prompt for item in expected]

    answers = greedy(daemon, prompts, NEW_TOKENS, setup.concurrency)
    again = greedy(daemon, prompts[::4], NEW_TOKENS, setup.concurrency)
    for item, (tokens, logprobs) in zip([*expected, *expected[::4]], [*answers, *again], strict=True):
        assert tokens == item.tokens, f"prompt of {len(item.prompt)} tokens"
        assert logprobs == pytest.approx(item.logprobs, abs=1e-3)

    seeded_texts[setup.name] = sampled(daemon, prompts, NEW_TOKENS, setup.concurrency)
    first = next(iter(seeded_texts.values()))
    compared = min(len(first), len(prompts))
    assert seeded_texts[setup.name][:compared] == first[:compared]

    if setup.longest_tokens is None:
        calls.append(forced_call(daemon))
        assert calls[-1] == calls[0]

    preemptions = counter(daemon, "paceline_preemptions_total")
    assert (preemptions > 0) == (setup.longest_tokens is not None), f"{preemptions} preemptions"
    hits = counter(daemon, "paceline_prefix_cache_hit_tokens_total")
    assert (hits > 0) == setup.cached, f"{hits} tokens from the cache"


def test_what_the_backend_cannot_take_is_bad_usage(folder: Path, start_daemon: Any) -> None:
    """A worker that refuses its settings ends the daemon with its own words and exit code 64; no process is left."""
    daemon = start_daemon(folder, "-dp", "2", "--block-size", "24", "--attention-contract", "trtllm")
    assert daemon.wait(limit_s=60) == 64
    assert "attention contract trtllm: block_size 24 is not one of (16, 32, 64)" in daemon.lines[-1]
    assert not daemon.children()

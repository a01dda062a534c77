"""The mixture-of-experts demo: its text is `transformers`' text with any ranks, workers, exchange, drafts and chunks."""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import Any

import pytest
from openai import OpenAI

from parity.moe_configurations import IN_EVERY_RUN, Configuration, missing_pairs
from parity.moe_serving import Served, expected, held_out_prompts, serve
from parity.serving import counter, greedy

PROMPTS = 8


@pytest.fixture(scope="module")
def first_served() -> dict[str, Served]:
    """What each configuration gave, the plainest first."""
    return {}


def test_every_value_meets_every_other() -> None:
    """The array is pairwise: no pair of values is left out."""
    assert missing_pairs() == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("configuration", IN_EVERY_RUN, ids=lambda configuration: configuration.name)
def test_text_is_the_same(configuration: Configuration, first_served: dict[str, Served], start_daemon: Any) -> None:
    """Greedy tokens are those of `transformers`, log-probabilities within 1e-3; seeded text is that of one plain rank."""
    daemon = start_daemon("--demo", "moe", *configuration.arguments())
    continuations = expected(PROMPTS)
    served = serve(daemon, configuration, [item.prompt for item in continuations])

    for item, tokens, logprobs in zip(continuations, served.greedy, served.logprobs, strict=True):
        assert tokens == item.tokens, f"prompt of {len(item.prompt)} tokens"
        assert logprobs == pytest.approx(item.logprobs, abs=1e-3)
    first_served.setdefault("first", served)
    assert served.seeded == first_served["first"].seeded

    counters = served.counters
    assert counters["paceline_refused_plans_total"] == 0
    assert (counters["paceline_preemptions_total"] > 0) == (configuration.load == "preempting"), counters
    assert (counters["paceline_accepted_tokens_total"] > 0) == (configuration.k > 0), counters


MTP = {"method": "mtp", "num_speculative_tokens": 3}
# Two ranks that share experts and step together, with drafts of the model's own layer.
TWO_RANKS = ("--dtype", "float32", "-dp", "2", "--enable-expert-parallel", "--speculative-config", json.dumps(MTP))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("depth", [0, 1])
def test_c22_four_ranks_accept_as_many_drafts_as_one(depth: int, start_daemon: Any) -> None:
    """The same text, and the same share of accepted drafts within 3%, on one rank and on four."""
    prompts = held_out_prompts(64)
    texts, shares = [], []
    for dp in (1, 4):
        served = Configuration(dp, "allgather_reducescatter", 1, 3, "busy", 256, depth)
        daemon = start_daemon("--demo", "moe", *served.arguments())
        daemon.wait_ready(limit_s=240)
        texts.append([tokens for tokens, _ in greedy(daemon, prompts, 32, served.concurrency)])
        drafted = counter(daemon, "paceline_draft_tokens_total")
        shares.append(counter(daemon, "paceline_accepted_tokens_total") / drafted)
        daemon.stop()
    assert texts[0] == texts[1]
    assert shares[1] == pytest.approx(shares[0], rel=0.03)
    assert shares[0] > 0.3


@pytest.mark.timeout(600)
def test_c19_a_prompt_from_the_cache_is_drafted_for_as_well_as_before(start_daemon: Any) -> None:
    """2,000 tokens twice: the second time they are read from the cache, with the same text and drafts as good."""
    daemon = start_daemon("--demo", "moe", *TWO_RANKS, "--enable-prefix-caching").wait_ready(limit_s=240)
    prompt = list(islice(chain.from_iterable(held_out_prompts(64)), 2_000))
    assert len(prompt) == 2_000
    texts, cached, shares = [], [], []
    drafted = accepted = 0.0
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        model = client.models.list().data[0].id
        for _ in range(2):
            answer = client.completions.create(
                model=model, prompt=prompt, max_tokens=48, temperature=0, extra_body={"ignore_eos": True}
            )
            texts.append(answer.choices[0].text)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
            before = (drafted, accepted)
            drafted = counter(daemon, "paceline_draft_tokens_total")
            accepted = counter(daemon, "paceline_accepted_tokens_total")
            shares.append((accepted - before[1]) / (drafted - before[0]))
    # A drafter with KV of its own has the last block that matches computed again.
    assert cached == [0, 1_984]
    assert texts[1] == texts[0]
    assert shares[1] >= 0.95 * shares[0] > 0.1, shares

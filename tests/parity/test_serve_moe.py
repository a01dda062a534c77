"""The mixture-of-experts demo: its text is `transformers`' text with any ranks, workers, exchange, drafts and chunks."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.timeout(600)
def test_c22_four_ranks_accept_as_many_drafts_as_one(start_daemon: Any) -> None:
    """The same text, and the same share of accepted drafts within 3%, on one rank and on four."""
    prompts = held_out_prompts(64)
    texts, shares = [], []
    for dp in (1, 4):
        served = Configuration(dp, "allgather_reducescatter", 1, 3, "busy", 256)
        daemon = start_daemon("--demo", "moe", *served.arguments())
        daemon.wait_ready(limit_s=240)
        texts.append([tokens for tokens, _ in greedy(daemon, prompts, 32, served.concurrency)])
        drafted = counter(daemon, "paceline_draft_tokens_total")
        shares.append(counter(daemon, "paceline_accepted_tokens_total") / drafted)
        daemon.stop()
    assert texts[0] == texts[1]
    assert shares[1] == pytest.approx(shares[0], rel=0.03)
    assert shares[0] > 0.3

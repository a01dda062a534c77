"""The mixture-of-experts demo: its text is `transformers`' text with any ranks, workers, exchange, drafts and chunks."""

from __future__ import annotations

from typing import Any

import pytest

from parity.moe_configurations import IN_EVERY_RUN, Configuration, missing_pairs
from parity.moe_serving import Served, expected, serve

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

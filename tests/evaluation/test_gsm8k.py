"""GSM8K as lm_eval asks it, on the mixture-of-experts demo. `gsm8k.py` and `scores.py` do more by hand: see RESULTS.md."""

from __future__ import annotations

from typing import Any

import pytest

from evaluation.gsm8k import DRAFTS, RANKS, Answers, arguments, ask, differences, questions
from parity.serving import counter
from support.demo import demo_folder

COUNT, SHOTS, MAX_TOKENS = 12, 0, 48


@pytest.mark.timeout(600)
def test_answers_are_the_same_for_any_ranks_and_drafts(start_daemon: Any) -> None:
    asked = questions(demo_folder("moe"), COUNT, SHOTS)
    given: dict[tuple[int, int], Answers] = {}
    for dp in RANKS:
        for k in DRAFTS:
            daemon = start_daemon(*arguments("moe", dp, k)).wait_ready(limit_s=240)
            given[dp, k] = ask(daemon, asked, MAX_TOKENS)
            assert (counter(daemon, "paceline_accepted_tokens_total") > 0) == (k > 0)
            daemon.stop()
    first = given[1, 0]
    assert all(first.texts)
    assert not {setting: found for setting, answers in given.items() if (found := differences(first, answers))}

"""Structured output on a real model: the same answers with and without drafts, on one rank and on two."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

from parity.serving import counter, in_parallel
from support.daemon import Daemon

SCHEMA = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "maxLength": 40},
        "steps": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 2},
        "answer": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["question", "steps", "answer"],
}
PROMPTS = [f"Question: Natalia sold {number} clips. How many clips?\nAnswer: " for number in range(3, 9)]


def answers(daemon: Daemon) -> list[str]:
    """Greedy and seeded answers to every prompt, with log-probabilities that are those of the unmasked model."""
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        model = client.models.list().data[0].id

        def one(item: tuple[str, int]) -> str:
            prompt, index = item
            answer = client.completions.create(
                model=model,
                prompt=prompt,
                max_tokens=160,
                temperature=0.8 if index % 2 else 0.0,
                seed=index,
                logprobs=1,
                extra_body={"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            ).choices[0]
            assert answer.finish_reason == "stop", answer.text
            assert answer.logprobs is not None
            assert any(value < -1 for value in answer.logprobs.token_logprobs or []), "some tokens were forced"
            return answer.text

        return in_parallel(one, [(prompt, index) for prompt in PROMPTS for index in range(2)], 4)


@pytest.mark.timeout(400)
def test_c09_answers_are_the_same_json_with_and_without_drafts(start_daemon: Any) -> None:
    """One plain rank, then two in lockstep with drafts of the model's own."""
    plain = start_daemon("--demo", "moe", "--dtype", "float32")
    plain.wait_ready(limit_s=240)
    expected = answers(plain)
    plain.stop()
    for text in expected:
        value = json.loads(text)
        assert set(value) == set(SCHEMA["properties"])
        assert 0 <= value["answer"] <= 9999
    config = json.dumps({"method": "mtp", "num_speculative_tokens": 3})
    drafting = start_daemon("--demo", "moe", "--dtype", "float32", "-dp", "2", "--speculative-config", config)
    drafting.wait_ready(limit_s=240)
    assert answers(drafting) == expected
    assert counter(drafting, "paceline_refused_plans_total") == 0
    assert counter(drafting, "paceline_accepted_tokens_total") > 0

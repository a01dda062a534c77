"""Structured output over HTTP, with scripted workers: whatever their model says, every answer is what was asked for."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.calls import connect
from e2e.conftest import StartFleet

REQUESTS = 500
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", 3]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
}


@pytest.mark.timeout(180)
def test_c09_five_hundred_answers_are_json_behind_their_reasoning(start_fleet: StartFleet) -> None:
    """Reasoning ends inside rows of drafts: no call fails, and every answer keeps to its schema."""
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 3})
    daemon = start_fleet("-dp", "2", "--speculative-config", config, "--reasoning-parser", "deepseek_r1")
    path = "/v1/chat/completions"

    def ask(index: int) -> tuple[int, dict]:
        request = {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"question {index}"}],
            "max_tokens": 400,
            "temperature": 0,
            "thinking_token_budget": index % 7,
            "structured_outputs": {"json": SCHEMA},
        }
        connection = connect(daemon)
        try:
            connection.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(REQUESTS)))
    assert {status for status, _ in answers} == {200}
    for _, answer in answers:
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop", choice
        value = json.loads(choice["message"]["content"])
        assert set(value) == {"name", "tags"}, value
        assert len(value["name"]) <= 8, value
        assert all(tag in ("a", "bb", 3) for tag in value["tags"]), value
    connection = connect(daemon)
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    assert re.search(r"^paceline_refused_plans_total\S* 0(\.0)?$", metrics, re.MULTILINE), metrics

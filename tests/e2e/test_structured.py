"""Structured output over HTTP, with scripted workers: whatever their model says, every answer is what was asked for."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.calls import body, complete, connect, metrics, text, total
from e2e.conftest import StartFleet
from support.daemon import Daemon

REQUESTS = 500
PROMPT = list(range(300, 330))
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


def _texts(daemon: Daemon) -> list[tuple[str, int, int | None]]:
    """Held answers and free ones side by side: their text, their tokens, and those of reasoning."""

    def ask(index: int) -> tuple[str, int, int | None]:
        request: dict[str, object] = {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"question {index}"}],
            "max_tokens": 300,
            "temperature": 0.7 if index % 4 < 2 else 0,
            "seed": index,
        }
        if index % 2:
            request |= {"thinking_token_budget": index % 5, "structured_outputs": {"json": SCHEMA}}
        else:
            request |= {"max_tokens": 40, "ignore_eos": True}
        connection = connect(daemon)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(request), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == 200, answer
        finally:
            connection.close()
        message, usage = answer["choices"][0]["message"], answer["usage"]
        if index % 2:
            assert set(json.loads(message["content"])) == {"name", "tags"}, message
        thought = usage["completion_tokens_details"]["reasoning_tokens"]
        assert thought <= usage["completion_tokens"], usage
        assert not index % 2 or thought <= index % 5, usage
        return f"{message['reasoning']} {message['content']}", usage["completion_tokens"], thought

    with ThreadPoolExecutor(12) as pool:
        return list(pool.map(ask, range(36)))


@pytest.mark.timeout(120)
def test_c02_held_and_free_answers_are_the_same_for_any_depth_and_drafts(start_fleet: StartFleet) -> None:
    """Masks follow the commit of the step before, also where a step is planned ahead; nobody beside them is touched."""
    found = []
    for depth, drafts in [(0, 0), (0, 3), (1, 0), (1, 3)]:
        flags = ["--scheduling-depth", str(depth), "--reasoning-parser", "deepseek_r1"]
        if drafts:
            flags += ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": drafts})]
        daemon = start_fleet(*flags)
        found.append(_texts(daemon))
        samples = metrics(daemon)
        assert total(samples, "paceline_refused_plans_total") == 0
        assert drafts == 0 or total(samples, "paceline_accepted_tokens_total") > 0
        daemon.stop()
    assert all(texts == found[0] for texts in found)


@pytest.mark.timeout(60)
def test_c03_a_stop_string_ends_the_same_text_with_and_without_drafts(start_fleet: StartFleet) -> None:
    """Wherever in a row of drafts a stop string is complete: what follows it is neither shown nor counted."""
    found = []
    for drafts in (0, 3):
        flags = ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": drafts})] if drafts else []
        daemon = start_fleet(*flags)
        whole = text(daemon, PROMPT, 48)
        ends = [(len(whole), 48)]
        for place in range(len(whole) // 3, len(whole) // 3 + 8):
            stop = whole[place : place + 3]
            status, answer = complete(daemon, body(PROMPT, 48, stop=[stop]))
            assert status == 200, answer
            choice = answer["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")
            assert choice["stop_reason"] == stop
            ends.append((len(choice["text"]), answer["usage"]["completion_tokens"]))
        found.append((whole, ends))
        daemon.stop()
    assert found[0] == found[1]
    assert all(tokens < 48 for _, tokens in found[0][1][1:])

"""Every form of call gives the same answer whichever rank runs it, and whether there are others beside it."""

import json
from collections.abc import Callable

import pytest

from e2e.calls import connect
from e2e.conftest import StartFleet
from e2e.test_requests import until_idle
from support.daemon import Daemon

Rank = Callable[[int], str | None]

CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
SEEDED = {"temperature": 0.9, "seed": 7, "ignore_eos": True, "max_tokens": 12}

CALLS: list[tuple[str, dict[str, object]]] = [
    ("/v1/completions", {**GREEDY, "prompt": "The river bank"}),
    ("/v1/completions", {**GREEDY, "prompt": "The river bank", "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {**GREEDY, "prompt": "The river bank", "max_tokens": 1, "echo": True, "logprobs": 3}),
    ("/v1/completions", {**GREEDY, "prompt": "The river bank", "max_tokens": 0, "echo": True, "logprobs": 1}),
    ("/v1/completions", {**GREEDY, "prompt": [[5, 6, 7], [8, 9], [10]]}),
    ("/v1/completions", {**GREEDY, "prompt": list(range(3, 300)), "prompt_logprobs": 2, "return_token_ids": True}),
    ("/v1/completions", {**SEEDED, "prompt": ["one", "two"], "n": 3, "logprobs": 2}),
    ("/v1/completions", {**SEEDED, "prompt": "x", "repetition_penalty": 1.3, "logit_bias": {"300": 5}, "min_tokens": 4}),
    ("/v1/completions", {**SEEDED, "prompt": "x", "allowed_token_ids": [300, 301, 302], "stop_token_ids": [301]}),
    ("/v1/chat/completions", {**SEEDED, "messages": CONVERSATION, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**SEEDED, "messages": CONVERSATION, "n": 2, "stream": True}),
    ("/v1/responses", {"input": "Name a colour.", "temperature": 0, "max_output_tokens": 12}),
    ("/tokenize", {"messages": CONVERSATION}),
]

OWN = {"id", "created", "created_at", "system_fingerprint", "item_id", "response_id", "cached_tokens"}
"""Fields that differ from answer to answer; how much of a prompt is cached depends on what the rank has run before."""


def plain(value: object) -> object:
    """An answer without what belongs to it alone."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items() if name not in OWN}
    return [plain(part) for part in value] if isinstance(value, list) else value


def joined(chunks: list[dict]) -> object:
    """What a stream says, however its tokens were put together."""
    texts: dict[int, str] = {}
    ends: dict[int, object] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
            ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"])
    return texts, ends, [plain(chunk["usage"]) for chunk in chunks if chunk.get("usage")]


def answers(daemon: Daemon, rank: Rank) -> list[object]:
    """What each call is answered; `rank` says which rank the call of a number is for."""
    found: list[object] = []
    for number, (path, request) in enumerate(CALLS):
        connection = connect(daemon)
        pinned = rank(number)
        headers = {} if pinned is None else {"X-data-parallel-rank": pinned}
        connection.request("POST", path, json.dumps(request), headers)
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        assert response.status == 200, (path, request, body)
        if request.get("stream"):
            events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
            assert events[-1] == "[DONE]"
            found.append(joined([json.loads(event) for event in events[:-1]]))
        else:
            found.append(plain(json.loads(body)))
    return found


@pytest.mark.timeout(600)
def test_f12_every_call_is_answered_the_same_on_either_rank_and_on_both(start_fleet: StartFleet) -> None:
    alone = start_fleet("-dp", "1")
    expected = answers(alone, lambda _: None)
    until_idle(alone)
    alone.stop()
    drafts = '{"method": "ngram", "num_speculative_tokens": 2}'
    ranks: dict[str, Rank] = {
        "the second only": lambda _: "1",
        "in turn": lambda number: str(number % 2),
        "the first only": lambda _: "0",
        "whichever": lambda _: None,
    }
    for more in ([], ["--lockstep", "on"], ["--lockstep", "on", "--speculative-config", drafts]):
        daemon = start_fleet("-dp", "2", *more)
        for name, rank in ranks.items():
            for call, wanted, got in zip(CALLS, expected, answers(daemon, rank), strict=True):
                assert got == wanted, (more, name, call)
        until_idle(daemon)
        daemon.stop()

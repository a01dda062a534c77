"""Our own typed gRPC clients against the whole server, with and without an event loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest

from paceline.client import (
    AsyncClient,
    Client,
    FinishReason,
    InvalidRequestError,
    StructuredOutputs,
    UnauthorizedError,
    UnavailableError,
    UnknownModelError,
)

from .conftest import KEY, MODEL, Api

PROMPT = [300, 301, 302]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


def test_a_whole_answer_and_its_pieces_are_the_same(api: Api) -> None:
    with Client(api.grpc, api_key=KEY) as client:
        whole = client.generate(PROMPT, logprobs=2, **GREEDY)
        pieces = list(client.stream(PROMPT, **GREEDY))
    assert len(whole.token_ids) == len(whole.logprobs) == 6
    assert whole.finish_reason is FinishReason.LENGTH
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 6)
    assert all(
        len(entry.top) == 2 and entry.token_id == token for entry, token in zip(whole.logprobs, whole.token_ids, strict=True)
    )
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.token_ids] == whole.token_ids
    assert pieces[-1].usage == whole.usage


def test_choices_texts_chats_and_pinned_ranks(api: Api) -> None:
    with Client(api.grpc, api_key=KEY) as client:
        choices = client.generate_all("hello", n=3, max_tokens=4, seed=5, ignore_eos=True)
        assert [choice.index for choice in choices] == [0, 1, 2]
        chat = client.generate([{"role": "user", "content": "hello"}], **GREEDY)
        assert chat.usage.prompt_tokens > 1
        on_each = [client.generate(PROMPT, data_parallel_rank=rank, **GREEDY).token_ids for rank in range(2)]
        assert on_each[0] == on_each[1]
        repeated = [client.generate(PROMPT, temperature=0.8, seed=7, max_tokens=6, model=MODEL).text for _ in range(2)]
        assert repeated[0] == repeated[1]


def test_answers_are_what_they_have_to_be(api: Api) -> None:
    schema = {"type": "object", "properties": {"age": {"enum": [1, 22]}}, "required": ["age"]}
    with Client(api.grpc, api_key=KEY) as client:
        held = {"max_tokens": 40, "temperature": 0}
        answer = client.generate(PROMPT, structured_outputs=StructuredOutputs(json=schema), **held)
        assert json.loads(answer.text)["age"] in (1, 22)
        assert answer.finish_reason is FinishReason.STOP
        assert client.generate(PROMPT, structured_outputs=StructuredOutputs(choice=["red", "blue"]), **held).text in ("red", "blue")
        with pytest.raises(InvalidRequestError, match=r"structured_outputs\.regex"):
            client.generate(PROMPT, structured_outputs=StructuredOutputs(regex="("), **held)
        with pytest.raises(ValueError, match="exactly one"):
            client.generate(PROMPT, structured_outputs=StructuredOutputs(), **held)


def test_each_failure_has_its_class_and_the_servers_words(api: Api) -> None:
    with Client(api.grpc, api_key=KEY) as client:
        with pytest.raises(InvalidRequestError, match="temperature"):
            client.generate(PROMPT, temperature=-1)
        with pytest.raises(UnknownModelError, match="another"):
            client.generate(PROMPT, model="another")
        with pytest.raises(ValueError, match="empty"):
            client.generate([])
        with pytest.raises(TypeError, match="no_such_option"):
            client.generate(PROMPT, no_such_option=1)
        assert client.generate(PROMPT, **GREEDY).text
    with Client(api.grpc) as client, pytest.raises(UnauthorizedError):
        client.generate(PROMPT)
    with Client("127.0.0.1:1", timeout_s=10) as client, pytest.raises(UnavailableError) as caught:
        client.generate(PROMPT)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


def test_the_asynchronous_client_gives_the_same(api: Api) -> None:
    with Client(api.grpc, api_key=KEY) as client:
        expected = client.generate(PROMPT, **GREEDY)

    async def ask() -> None:
        async with AsyncClient(api.grpc, api_key=KEY) as client:
            answers = await asyncio.gather(*(client.generate(PROMPT, **GREEDY) for _ in range(8)))
            assert all(answer == expected for answer in answers)
            async for piece in client.stream(PROMPT, max_tokens=200, ignore_eos=True):
                assert piece.token_ids
                break
            with pytest.raises(InvalidRequestError, match="top_p"):
                await client.generate(PROMPT, top_p=2)

    asyncio.run(ask())

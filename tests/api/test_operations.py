"""Operating a server with our own clients: gates, aborts, and changes of the prefix cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.client import (
    AsyncClient,
    BlockStored,
    CacheCleared,
    Client,
    FinishReason,
    ForbiddenError,
    Gate,
    InvalidRequestError,
    PauseMode,
    UnavailableError,
)
from support.cargo import Build

from .conftest import KEY, Api, serve

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
PROMPT = list(range(300, 340))


@pytest.fixture(scope="module")
def operated(rust_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that may be operated, with the prefix cache on."""
    yield from serve(rust_build, tmp_path_factory.mktemp("operated"), ["--enable-admin", "--enable-prefix-caching"])


def test_a13_a_pause_holds_requests_and_a_resume_lets_them_go_on(operated: Api) -> None:
    with Client(operated.grpc, api_key=KEY) as client:
        # A salt of its own: the scripted worker makes tokens of tokens that it was told, and knows no cached ones.
        whole = client.generate(PROMPT, max_tokens=60, cache_salt="whole", **GREEDY)
        stream = client.stream(PROMPT, max_tokens=60, **GREEDY)
        tokens = list(next(stream).token_ids)
        state = client.admin.pause()
        assert {rank.gate for rank in state.ranks} == {Gate.PAUSED}
        assert sum(rank.running for rank in state.ranks) == 1
        assert {rank.gate for rank in client.admin.resume().ranks} == {Gate.OPEN}
        for piece in stream:
            tokens += piece.token_ids
        assert tokens == whole.token_ids
        state = client.admin.pause(PauseMode.WAIT, dp_rank=1, clear_cache=True)
        assert [rank.gate for rank in state.ranks] == [Gate.OPEN, Gate.FINISHING]
        client.admin.resume()
        with pytest.raises(InvalidRequestError, match="rank 9"):
            client.admin.pause(dp_rank=9)


def test_requests_are_ended_by_id_and_say_so(operated: Api) -> None:
    with Client(operated.grpc, api_key=KEY) as client:
        for request_id, end in (("mine", lambda: client.admin.abort(["mine"])), ("other", client.admin.abort_all)):
            stream = client.stream(PROMPT, max_tokens=80, request_id=request_id, n=2, **GREEDY)
            next(stream)
            assert end() == 2
            assert {piece.finish_reason for piece in stream} >= {FinishReason.ABORT}
        assert client.admin.abort(["nobody"]) == 0


def test_f01_a_drain_refuses_new_requests_and_ends_when_none_is_left(operated: Api) -> None:
    with Client(operated.grpc, api_key=KEY) as client:
        stream = client.stream(PROMPT, max_tokens=60, **GREEDY)
        next(stream)
        state = client.admin.drain()
        assert state.draining
        assert not state.ready
        with pytest.raises(UnavailableError, match="drains"):
            client.generate(PROMPT)
        assert list(stream)[-1].finish_reason is FinishReason.LENGTH
        assert client.admin.drain(wait=True).draining
        assert client.admin.resume().ready


def test_changes_of_the_prefix_cache_can_be_followed(operated: Api) -> None:
    prompt = list(range(500, 550))
    with Client(operated.grpc, api_key=KEY) as client:
        client.admin.reset_prefix_cache()
        events = client.admin.cache_events(dp_rank=1)
        ask: dict[str, Any] = {"data_parallel_rank": 1, "max_tokens": 2, **GREEDY}
        assert client.generate(prompt, **ask).usage.cached_tokens == 0  # type: ignore[union-attr]
        assert client.generate(prompt, **ask).usage.cached_tokens == 48  # type: ignore[union-attr]
        assert client.generate(prompt, cache_salt="tenant", **ask).usage.cached_tokens == 0  # type: ignore[union-attr]
        client.admin.reset_prefix_cache()
        seen: list[Any] = []
        while CacheCleared() not in seen:
            batch = next(events)
            assert (batch.dp_rank, batch.block_size, batch.missed) == (1, 16, 0)
            seen += batch.events
        stored = [event for event in seen if isinstance(event, BlockStored)]
        assert len(stored) == 6, "three blocks for each salt"
        assert [token for event in stored[:3] for token in event.token_ids] == prompt[:48]
        assert stored[0].parent_block_hash is None
        assert stored[1].parent_block_hash == stored[0].block_hash
        assert stored[3].block_hash != stored[0].block_hash, "another salt, another hash"


def test_the_asynchronous_client_operates_too(operated: Api) -> None:
    async def operate() -> None:
        async with AsyncClient(operated.grpc, api_key=KEY) as client:
            events = await client.admin.cache_events()
            await client.admin.pause()
            waiting = asyncio.ensure_future(client.generate(list(range(600, 640)), max_tokens=2, **GREEDY))
            while (await client.admin.status()).waiting == 0:
                await asyncio.sleep(0)
            await client.admin.resume()
            assert len((await waiting).token_ids) == 2
            assert isinstance((await anext(events)).events[0], BlockStored)
            assert await client.admin.abort_all() == 0
            assert (await client.model_info()).dp_size == 2
            ids = await client.tokenize("hello", add_special_tokens=False)
            assert await client.detokenize(ids) == "hello"

    asyncio.run(operate())


def test_a_server_that_was_not_started_for_it_only_shows_its_state(api: Api) -> None:
    with Client(api.grpc, api_key=KEY) as client:
        assert client.admin.status().ready
        for call in (client.admin.pause, client.admin.resume, client.admin.drain, client.admin.abort_all):
            with pytest.raises(ForbiddenError, match="--enable-admin"):
                call()
        with pytest.raises(ForbiddenError, match="--enable-admin"):
            next(client.admin.cache_events())
        assert client.tokenize([{"role": "user", "content": "hi"}])

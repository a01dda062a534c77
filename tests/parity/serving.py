"""How parity tests ask a served model: greedy token ids over gRPC, seeded text over HTTP, counters from /metrics."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from openai import OpenAI

from paceline.v1.generation_pb2 import GenerateRequest, Sampling, Stopping, TokenIds
from paceline.v1.generation_pb2_grpc import GenerationStub
from support.daemon import Daemon


def in_parallel(call: Callable[[Any], Any], items: Iterable[Any], concurrency: int) -> list[Any]:
    """The results of `call`, in order, with so many calls under way at once."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(call, items))


def greedy(daemon: Daemon, prompts: list[list[int]], new_tokens: int, concurrency: int) -> list[tuple[list[int], list[float]]]:
    """Greedy token ids and their log-probabilities, over gRPC."""
    with grpc.insecure_channel(daemon.address("grpc")) as channel:
        stub = GenerationStub(channel)

        def one(prompt: list[int]) -> tuple[list[int], list[float]]:
            request = GenerateRequest(
                token_ids=TokenIds(ids=prompt),
                sampling=Sampling(temperature=0.0),
                stopping=Stopping(max_tokens=new_tokens, ignore_eos=True),
                logprobs=0,
            )
            parts = list(stub.Generate(request, timeout=240))
            tokens = [token for part in parts for token in part.token_ids]
            return tokens, [entry.logprob for part in parts for entry in part.logprobs]

        return in_parallel(one, prompts, concurrency)


def sampled(daemon: Daemon, prompts: list[list[int]], new_tokens: int, concurrency: int) -> list[str]:
    """Text at temperature 0.8, prompt i with seed 7 + i, by the `openai` client."""
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        model = client.models.list().data[0].id

        def one(item: tuple[int, list[int]]) -> str:
            index, prompt = item
            answer = client.completions.create(
                model=model,
                prompt=prompt,
                max_tokens=new_tokens,
                temperature=0.8,
                seed=7 + index,
                extra_body={"ignore_eos": True},
            )
            return answer.choices[0].text

        return in_parallel(one, enumerate(prompts), concurrency)


def counter(daemon: Daemon, name: str) -> float:
    """Sum of a counter over its labels."""
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    assert values, f"no {name} in /metrics"
    return sum(values)


WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit", "days"],
}


def forced_call(daemon: Daemon) -> dict[str, Any]:
    """The arguments of a call that a model has to make, checked against their schema."""
    function = {"name": "get_weather", "description": "Tells the weather of some days.", "parameters": WEATHER}
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        asked: dict[str, Any] = {
            "model": client.models.list().data[0].id,
            "messages": [{"role": "user", "content": "What will the weather be like in Paris for the next three days?"}],
            "tools": [{"type": "function", "function": function}, {"type": "function", "function": {"name": "give_up"}}],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            "temperature": 0,
            "max_tokens": 200,
        }
        choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content is None
    [call] = choice.message.tool_calls or []
    assert call.function.name == "get_weather"
    arguments: dict[str, Any] = json.loads(call.function.arguments)
    assert set(arguments) == set(WEATHER["properties"])
    assert isinstance(arguments["city"], str)
    assert len(arguments["city"]) <= 20
    assert arguments["unit"] in ("celsius", "kelvin")
    assert 1 <= arguments["days"] <= 14
    return arguments

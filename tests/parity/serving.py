"""How parity tests ask a served model: greedy token ids over gRPC, seeded text over HTTP, counters from /metrics."""

from __future__ import annotations

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

"""What a call asks for, and how that becomes a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.v1.generation_pb2 import ChatMessage, ChatPrompt, GenerateRequest, Sampling, Stopping, TokenIds

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or the messages of a chat (`{"role": ..., "content": ...}`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to continue a prompt. What is None is left to the server: the model's own default, as `--help` tells.

    `temperature` 0 is greedy. `seed` makes an answer repeatable; choice i of `n` has a seed of its own. `logprobs` is the
    number of likeliest tokens to tell beside each token's own log-probability. `data_parallel_rank` pins a rank.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    n: int | None = None
    logprobs: int | None = None
    priority: int | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    model: str | None = None
    data_parallel_rank: int | None = None
    request_id: str | None = None


def request_of(prompt: Prompt, options: GenerationOptions) -> GenerateRequest:
    """The request for `prompt`. Raises `ValueError` for an empty sequence, which is neither ids nor messages."""
    request = GenerateRequest(
        model=options.model,
        sampling=Sampling(
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            min_p=options.min_p,
            seed=options.seed,
        ),
        stopping=Stopping(
            max_tokens=options.max_tokens,
            stop=options.stop,
            stop_token_ids=options.stop_token_ids,
            ignore_eos=options.ignore_eos,
            include_stop_str_in_output=options.include_stop_str_in_output,
        ),
        n=options.n,
        logprobs=options.logprobs,
        priority=options.priority,
        skip_special_tokens=options.skip_special_tokens,
        add_special_tokens=options.add_special_tokens,
    )
    if isinstance(prompt, str):
        request.text = prompt
        return request
    if not prompt:
        raise ValueError("prompt: an empty sequence is neither token ids nor messages")
    messages = [message for message in prompt if isinstance(message, Mapping)]
    if messages:
        request.chat.CopyFrom(ChatPrompt(messages=[ChatMessage(role=m["role"], content=m["content"]) for m in messages]))
    else:
        request.token_ids.CopyFrom(TokenIds(ids=[token for token in prompt if isinstance(token, int)]))
    return request


def metadata_of(api_key: str | None, options: GenerationOptions) -> tuple[tuple[str, str], ...]:
    """What travels beside the request."""
    metadata: list[tuple[str, str]] = []
    if api_key is not None:
        metadata.append(("authorization", f"Bearer {api_key}"))
    if options.data_parallel_rank is not None:
        metadata.append(("x-data-parallel-rank", str(options.data_parallel_rank)))
    if options.request_id is not None:
        metadata.append(("x-request-id", options.request_id))
    return tuple(metadata)

"""What a call asks for, and how that becomes a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any

from paceline.v1.generation_pb2 import (
    ChatMessage,
    ChatPrompt,
    Choices,
    GenerateRequest,
    Sampling,
    Stopping,
    TokenIds,
    TokenizeRequest,
)
from paceline.v1.generation_pb2 import StructuredOutputs as StructuredOutputsMessage

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Text, token ids, or the messages of a chat (`{"role": ..., "content": ...}`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """What an answer has to be: one of these, by vLLM's names.

    `json` is a JSON schema, as text or as what `json.dumps` takes; `regex` matches the whole answer; `choice` is a list of
    answers; `grammar` is in the syntax of Lark, from its rule `start`, or of llama.cpp, from its rule `root`; `json_object` is any
    JSON object; `structural_tag` is free text in which some marks begin what has a form, as text or as an object.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None

    def message(self) -> StructuredOutputsMessage:
        """Its form on the wire. Raises `ValueError` unless exactly one constraint is given."""
        given = [self.json, self.regex, self.choice, self.grammar, self.json_object or None, self.structural_tag]
        if sum(one is not None for one in given) != 1:
            raise ValueError("structured_outputs: give exactly one of json, regex, choice, grammar, json_object and structural_tag")
        return StructuredOutputsMessage(
            json=_json(self.json),
            regex=self.regex,
            choice=None if self.choice is None else Choices(texts=self.choice),
            grammar=self.grammar,
            json_object=self.json_object or None,
            structural_tag=_json(self.structural_tag),
            disable_any_whitespace=self.disable_any_whitespace,
            disable_additional_properties=self.disable_additional_properties,
        )


def _json(value: str | Mapping[str, Any] | None) -> str | None:
    """JSON as text, given as text or as what it says."""
    return value if value is None or isinstance(value, str) else dumps(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to continue a prompt. What is None is left to the server: the model's own default, as `--help` tells.

    `temperature` 0 is greedy. `seed` makes an answer repeatable; choice i of `n` has a seed of its own. `logprobs` is the
    number of likeliest tokens to tell beside each token's own log-probability. `data_parallel_rank` pins a rank.
    Cached prefixes are shared only among calls of the same `cache_salt`.
    `structured_outputs` says what the answer has to be; `thinking_token_budget` is the most tokens that a chat may reason for.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    min_tokens: int | None = None
    n: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    continuous_usage: bool | None = None
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    model: str | None = None
    data_parallel_rank: int | None = None
    request_id: str | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None


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
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            repetition_penalty=options.repetition_penalty,
            logit_bias=options.logit_bias,
            allowed_token_ids=None if options.allowed_token_ids is None else TokenIds(ids=options.allowed_token_ids),
            bad_words=options.bad_words,
        ),
        stopping=Stopping(
            max_tokens=options.max_tokens,
            stop=options.stop,
            stop_token_ids=options.stop_token_ids,
            ignore_eos=options.ignore_eos,
            include_stop_str_in_output=options.include_stop_str_in_output,
            min_tokens=options.min_tokens,
        ),
        n=options.n,
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_logprobs,
        continuous_usage=options.continuous_usage,
        truncate_prompt_tokens=options.truncate_prompt_tokens,
        cache_salt=options.cache_salt,
        priority=options.priority,
        skip_special_tokens=options.skip_special_tokens,
        add_special_tokens=options.add_special_tokens,
        structured_outputs=None if options.structured_outputs is None else options.structured_outputs.message(),
        thinking_token_budget=options.thinking_token_budget,
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


def tokenize_request_of(prompt: str | Sequence[Mapping[str, str]], add_special_tokens: bool | None) -> TokenizeRequest:
    """The request for the tokens of a text or of a chat's messages."""
    request = TokenizeRequest(add_special_tokens=add_special_tokens)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.chat.CopyFrom(ChatPrompt(messages=[ChatMessage(role=m["role"], content=m["content"]) for m in prompt]))
    return request


def key_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """The key, where there is one."""
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)


def metadata_of(api_key: str | None, options: GenerationOptions) -> tuple[tuple[str, str], ...]:
    """What travels beside the request."""
    metadata = list(key_metadata(api_key))
    if options.data_parallel_rank is not None:
        metadata.append(("x-data-parallel-rank", str(options.data_parallel_rank)))
    if options.request_id is not None:
        metadata.append(("x-request-id", options.request_id))
    return tuple(metadata)

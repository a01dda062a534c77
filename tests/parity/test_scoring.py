"""What evaluations read on a real model: the prompt's own log-probabilities, and text under penalties and biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM

from parity.reference import Continuation, continuations
from parity.serving import counter, in_parallel
from support.demo import demo_folder

DRAFTS = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
SMALL_CACHE = ("--max-model-len", "128", "--block-size", "4", "--num-gpu-blocks-override", "31")
ADJUSTED = {
    "ignore_eos": True,
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.2,
    "logit_bias": {"198": -4, "28": 1.5},
    "bad_words": ["the"],
    "min_tokens": 20,
}
# As the case says it, with log-probabilities.
PENALISED = {"ignore_eos": True, "repetition_penalty": 1.2}
# Text that says the same again, for drafts that are accepted.
REPEATING = {"ignore_eos": True, "frequency_penalty": -1.5}


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo_folder()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Continuation]:
    return continuations(folder)


def ask(daemon: Any, prompts: list[list[int]], fields: dict[str, Any], extra: dict[str, Any]) -> list[Any]:
    """The choice that answers each prompt, 8 calls at a time."""
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        model = client.models.list().data[0].id

        def one(item: tuple[int, list[int]]) -> Any:
            index, prompt = item
            answer = client.completions.create(model=model, prompt=prompt, seed=7 + index, extra_body=extra, **fields)
            return answer.choices[0]

        return in_parallel(one, enumerate(prompts), 8)


def penalised_logprobs(daemon: Any, prompts: list[list[int]]) -> list[tuple[list[str], list[float]]]:
    """Tokens and log-probabilities of 40 tokens each: those of the unadjusted model, none of them certain, streamed or not."""
    fields = {"max_tokens": 40, "temperature": 0.5, "logprobs": 5}
    found = []
    for choice in ask(daemon, prompts, fields, PENALISED):
        assert len(choice.logprobs.tokens) == len(choice.logprobs.top_logprobs) == 40
        assert all(value < 0 for value in choice.logprobs.token_logprobs)
        found.append((choice.logprobs.tokens, choice.logprobs.token_logprobs))
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        asked: dict[str, Any] = {"model": client.models.list().data[0].id, "prompt": prompts[0], "seed": 7, "stream": True}
        chunks = list(client.completions.create(**asked, extra_body=PENALISED, **fields))
    held = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    tokens = [token for logprobs in held if logprobs is not None for token in logprobs.tokens or []]
    values = [value for logprobs in held if logprobs is not None for value in logprobs.token_logprobs or []]
    assert tokens == found[0][0]
    assert values == pytest.approx(found[0][1], abs=1e-3)
    return found


@torch.no_grad()
def scores(folder: Path, prompts: list[list[int]]) -> list[list[float]]:
    """Log-probability of each token from the second on, by a direct forward."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        steps = model(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
        found.append([float(steps[index, token]) for index, token in enumerate(prompt[1:])])
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("arguments", "longest"),
    [
        (("-dp", "2", "--max-num-batched-tokens", "48", *DRAFTS), 8192),
        (("-dp", "1", *SMALL_CACHE, "--max-num-batched-tokens", "32"), 124),
    ],
    ids=["chunks and drafts", "preemptions"],
)
def test_e03_prompts_score_as_in_a_direct_forward(
    folder: Path, expected: list[Continuation], start_daemon: Any, arguments: tuple[str, ...], longest: int
) -> None:
    """Echoed prompts, in chunks, with drafts and after preemptions: every token has its log-probability, once."""
    daemon = start_daemon(folder, "--dtype", "float32", *arguments)
    daemon.wait_ready(limit_s=120)
    new_tokens = 1 if longest > 1000 else 3
    items = [item for item in expected if len(item.prompt) + len(item.tokens) + new_tokens <= longest]
    texts = [[*item.prompt, *item.tokens] for item in items]
    fields = {"max_tokens": new_tokens, "temperature": 0, "echo": True, "logprobs": 1}
    for text, direct, choice in zip(texts, scores(folder, texts), ask(daemon, texts, fields, {}), strict=True):
        logprobs = choice.logprobs
        assert len(logprobs.tokens) == len(logprobs.top_logprobs) == len(logprobs.text_offset) <= len(text) + new_tokens
        assert logprobs.token_logprobs[0] is None
        assert logprobs.token_logprobs[1 : len(text)] == pytest.approx(direct, abs=1e-3)
        assert "".join(logprobs.tokens[: len(text)]) in choice.text


@pytest.mark.timeout(600)
def test_c15_adjusted_text_is_the_same_for_any_number_of_ranks_and_drafts(
    folder: Path, expected: list[Continuation], start_daemon: Any
) -> None:
    """Penalties, biases and bad words look at prompt and output: drafts and ranks leave no trace in them."""
    prompts = [item.prompt for item in expected if len(item.prompt) <= 100]
    texts, logprobs = [], []
    for arguments in [("-dp", "1"), ("-dp", "2", *DRAFTS), ("-dp", "1", *SMALL_CACHE, *DRAFTS)]:
        daemon = start_daemon(folder, "--dtype", "float32", *arguments)
        daemon.wait_ready(limit_s=120)
        fields = {"max_tokens": 24, "temperature": 0.8}
        choices = [ask(daemon, prompts, fields, extra) for extra in (ADJUSTED, REPEATING)]
        texts.append([[choice.text for choice in group] for group in choices])
        logprobs.append(penalised_logprobs(daemon, [prompt for prompt in prompts if len(prompt) <= 80][:4]))
        if DRAFTS[0] in arguments:
            assert counter(daemon, "paceline_accepted_tokens_total") > 0
        daemon.stop()
    assert texts[0] == texts[1] == texts[2]
    for found in logprobs[1:]:
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in logprobs[0]]
        for (_, values), (_, wanted) in zip(found, logprobs[0], strict=True):
            assert values == pytest.approx(wanted, abs=1e-3)
    assert not any(" the " in text for text in texts[0][0])

"""One served configuration of the mixture-of-experts demo against `transformers`: what equals, and what was counted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from transformers import AutoTokenizer

from parity.moe_configurations import MODEL_LEN, Configuration
from parity.reference import Continuation, continuations_of
from parity.serving import counter, greedy, sampled
from support.daemon import Daemon
from support.demo import demo_folder

NEW_TOKENS = 64
HELD_OUT = Path(__file__).parents[1] / "data" / "text" / "gsm8k_test.jsonl"


@dataclass(frozen=True, slots=True)
class Served:
    """What one configuration gave."""

    greedy: list[list[int]]
    logprobs: list[list[float]]
    seeded: list[str]
    counters: dict[str, int]


COUNTERS = (
    "paceline_steps_total",
    "paceline_refused_plans_total",
    "paceline_preemptions_total",
    "paceline_draft_tokens_total",
    "paceline_accepted_tokens_total",
)


def held_out_prompts(count: int) -> list[list[int]]:
    """Token ids of the first held-out questions that fit every configuration."""
    tokenizer = AutoTokenizer.from_pretrained(demo_folder("moe"))
    questions = (json.loads(line)["question"] for line in HELD_OUT.read_text().splitlines())
    prompts = (tokenizer(f"Question: {question}\nAnswer:").input_ids for question in questions)
    return list(islice((prompt for prompt in prompts if len(prompt) + NEW_TOKENS <= MODEL_LEN), count))


@cache
def expected(count: int) -> list[Continuation]:
    """Greedy fp32 continuations of held-out questions, by `transformers`."""
    return continuations_of(demo_folder("moe"), held_out_prompts(count), NEW_TOKENS)


def serve(daemon: Daemon, configuration: Configuration, prompts: list[list[int]]) -> Served:
    """Ask a started daemon for every prompt, greedily and with seeds."""
    daemon.wait_ready(limit_s=240)
    answers = greedy(daemon, prompts, NEW_TOKENS, configuration.concurrency)
    seeded = sampled(daemon, prompts, NEW_TOKENS, configuration.concurrency)
    counters = {name: int(counter(daemon, name)) for name in COUNTERS}
    return Served([tokens for tokens, _ in answers], [logprobs for _, logprobs in answers], seeded, counters)


def first_difference(item: Continuation, tokens: list[int]) -> int | None:
    """Index of the first token that is not that of `transformers`."""
    return next((i for i, (a, b) in enumerate(zip(item.tokens, tokens, strict=True)) if a != b), None)

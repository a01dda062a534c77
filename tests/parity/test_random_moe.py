"""A thousand requests of random lengths on coupled ranks, some of them idle at any time: no refusal, no hang, right text.

The shapes are those that broke other servers: attention with padded rows and unpadded tokens (Phi-mini-MoE behind
TRTLLM's contract), and idle ranks beside drafting ones (DeepSeek with one draft).
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parity.checkpoints import greedy_text, load_drafting_oracle, make_checkpoint, make_drafting_checkpoint, random_tokens
from parity.families import CASES
from parity.serving import counter, greedy
from support.daemon import Daemon

REQUESTS = 1000
COMPARED = 25
LENGTHS = ("--max-model-len", "96", "--block-size", "16", "--max-num-batched-tokens", "48", "--max-num-seqs", "8")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests by their number of new tokens; in waves of different width, so that ranks idle now and then."""

    prompts: list[list[int]]
    new_tokens: list[int]
    waves: list[int]


def traffic(seed: int, ranks: int) -> Traffic:
    """Random prompts of 1 to 60 tokens, 1 to 12 new ones, 1 to twice as many requests at once as there are ranks."""
    chance = random.Random(seed)
    prompts = [random_tokens(chance.choice((1, 2, 5, 15, 16, 17, 31, 60)), seed * REQUESTS + index) for index in range(REQUESTS)]
    waves: list[int] = []
    while sum(waves) < REQUESTS:
        waves.append(min(chance.choice((1, 1, 2, ranks - 1, 2 * ranks)) or 1, REQUESTS - sum(waves)))
    return Traffic(prompts, [chance.randrange(1, 13) for _ in range(REQUESTS)], waves)


def run(daemon: Daemon, load: Traffic) -> list[list[int]]:
    """Greedy token ids of every request."""
    texts: list[list[int]] = []
    for wave in load.waves:
        begin = len(texts)
        prompts = load.prompts[begin : begin + wave]
        longest = max(load.new_tokens[begin : begin + wave])
        answers = greedy(daemon, prompts, longest, wave)
        texts += [tokens for tokens, _ in answers]
    return texts


def check(daemon: Daemon, load: Traffic, oracle: Any) -> None:
    """Run the load; every rank took part in every step, nothing was refused, and the text is the oracle's."""
    daemon.wait_ready(limit_s=240)
    texts = run(daemon, load)
    assert counter(daemon, "paceline_refused_plans_total") == 0
    assert counter(daemon, "paceline_worker_restarts_total") == 0
    assert counter(daemon, "paceline_dummy_steps_total") > 0
    for index in range(0, REQUESTS, REQUESTS // COMPARED):
        assert texts[index] == greedy_text(oracle, load.prompts[index], len(texts[index])), f"request {index}"


@pytest.mark.timeout(600)
def test_phi_with_two_workers_a_rank_behind_the_contract_of_trtllm(tmp_path: Path, start_daemon: Any) -> None:
    family, fields = CASES["phimoe"]
    oracle = make_checkpoint(tmp_path, family, **fields)
    ranks = ("-dp", "2", "-tp", "2", "--enable-expert-parallel", "--attention-contract", "trtllm")
    daemon = start_daemon(tmp_path, "--dtype", "float32", *ranks, *LENGTHS)
    check(daemon, traffic(1, 2), oracle)


@pytest.mark.timeout(600)
def test_deepseek_on_four_ranks_with_one_draft(tmp_path: Path, start_daemon: Any) -> None:
    family, fields = CASES["deepseek"]
    make_drafting_checkpoint(tmp_path, family, 1, **fields)
    oracle = load_drafting_oracle(tmp_path, family)
    drafts = ("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 1}))
    daemon = start_daemon(tmp_path, "--dtype", "float32", "-dp", "4", "--enable-expert-parallel", *drafts, *LENGTHS)
    check(daemon, traffic(2, 4), oracle)
    assert counter(daemon, "paceline_draft_tokens_total") > 0

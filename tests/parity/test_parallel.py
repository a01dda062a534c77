"""Whole steps of lockstep groups over real process groups: expert and tensor parallelism give one worker's text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from parity.checkpoints import greedy_text, make_checkpoint, make_drafting_checkpoint, random_tokens
from parity.crew import Crew
from parity.families import CASES, DEEPSEEK
from parity.planner import Planner, Seat
from parity.test_runner import settings

AG, A2A = "allgather_reducescatter", "all_to_all"
CREWS = {"tp2": ([0], 2), "dp2": ([0, 1], 1), "dp2-tp2": ([0, 1], 2)}
DRAFTS = 2


@pytest.fixture(scope="module", params=list(CREWS))
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with Crew(*CREWS[request.param]) as crew:
        yield crew


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    folder = tmp_path_factory.mktemp("deepseek")
    return make_drafting_checkpoint(folder, "DeepseekV3", 1, **DEEPSEEK), folder


@pytest.fixture(scope="module")
def phimoe(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    folder = tmp_path_factory.mktemp("phimoe")
    family, fields = CASES["phimoe-window"]
    return make_checkpoint(folder, family, **fields), folder


class Group:
    """A crew under a planner."""

    def __init__(self, crew: Crew, drafter_layers: int = 0) -> None:
        self.crew = crew
        self.planner = Planner(crew.dp_ranks, drafter_layers=drafter_layers)
        self.collectives: list[int] = []

    def eager(self, chunks: dict[int, dict[int, int]], k_draft: int = 0) -> None:
        self._run(self.planner.eager(chunks, k_draft=k_draft))

    def full(self, seats: dict[int, list[int]], rows_padded: int, query_len: int = 1, k_draft: int = 0) -> None:
        self._run(self.planner.full(seats, rows_padded=rows_padded, query_len=query_len, k_draft=k_draft))

    def _run(self, envelopes: dict) -> None:
        results = self.crew.step(envelopes)
        for dp_rank, done in results.items():
            reply = self.planner.settle(dp_rank, done.body)
            assert (reply["passes"], reply["collectives"]) == (done.passes, done.collectives)
            self.collectives.append(done.collectives)


def serve_with_idle_ranks(group: Group, k: int) -> list[Seat]:
    """Requests on the last rank beside dummies, then on all of them; chunks, padded decodes, ranks of unequal load."""
    planner, last = group.planner, group.crew.dp_ranks[-1]
    seats = [planner.admit(last, 1, random_tokens(14, seed=1), list(range(1, 12)))]
    group.eager({last: {1: 9}}, k_draft=k)
    group.eager({last: {1: 5}}, k_draft=k)
    for _ in range(3):
        group.full({last: [1]}, rows_padded=2, query_len=k + 1, k_draft=k)
    for dp_rank in group.crew.dp_ranks:
        seats.append(planner.admit(dp_rank, 0, random_tokens(6 + 5 * dp_rank, seed=2 + dp_rank), [20, 30, 21, 31, 22, 32, 23, 33]))
    # A prompt beside a decode row on one rank, alone on the others.
    rows = {dp_rank: {0: len(planner.seats[dp_rank][0].prompt)} for dp_rank in group.crew.dp_ranks}
    rows[last] = {1: 0, **rows[last]}
    group.eager(rows, k_draft=k)
    for _ in range(4):
        group.full({**{dp_rank: [0] for dp_rank in group.crew.dp_ranks}, last: [0, 1]}, rows_padded=4, query_len=k + 1, k_draft=k)
    return seats


def kinds_of(crew: Crew) -> list[str]:
    """Ranks whose experts are their own are groups of their own."""
    return ["off", AG, A2A] if len(crew.dp_ranks) == 1 else [AG, A2A]


def test_experts_latents_and_drafts_over_every_group(crew: Crew, deepseek: tuple[torch.nn.Module, Path]) -> None:
    oracle, folder = deepseek
    fields = {"drafter": "mtp", "drafter_layers": 1, "lockstep": True}
    for kind in kinds_of(crew):
        said = crew.load(folder, settings(folder, expert_parallel=kind, **fields))
        assert len(set(said)) == 1
        for k in (0, DRAFTS):
            group = Group(crew, drafter_layers=1)
            crew.reset()
            for seat in serve_with_idle_ranks(group, k):
                assert seat.output == greedy_text(oracle, seat.prompt, len(seat.output)), kind
            # What a step costs in collectives follows from its passes, not from who has requests.
            assert len(set(group.collectives[-4:])) == 1


def test_a22_drafter_collectives_run_before_the_group_is_ready(crew: Crew, deepseek: tuple[torch.nn.Module, Path]) -> None:
    _, folder = deepseek
    for kind in kinds_of(crew):
        said = crew.load(folder, settings(folder, expert_parallel=kind, drafter="mtp", drafter_layers=1))
        (line,) = set(said)
        numbers = [int(number) for number in re.findall(r"\d+", line)]
        target, extend, single, _, of_drafter = numbers
        # FULL of 1 and 4 rows for both widths and EAGER of either; FULL and EAGER single passes.
        assert (target, extend, single) == (6, 6, 3)
        # The drafter has one MoE layer: there, back, and among tp workers; tp adds embedding, attention, dense and head.
        assert of_drafter >= (6 + 3) * (2 if kind != "off" else 1)


def test_phimoe_with_a_window_over_every_group(crew: Crew, phimoe: tuple[torch.nn.Module, Path]) -> None:
    oracle, folder = phimoe
    for kind in kinds_of(crew):
        crew.load(folder, settings(folder, expert_parallel=kind))
        for seat in serve_with_idle_ranks(Group(crew), 0):
            assert seat.output == greedy_text(oracle, seat.prompt, len(seat.output)), kind


def test_a_dense_rank_of_two_workers(tmp_path: Path) -> None:
    oracle = make_checkpoint(tmp_path, "Qwen3", head_dim=32)
    with Crew([0], 2) as crew:
        crew.load(tmp_path, settings(tmp_path, drafter="ngram"))
        for seat in serve_with_idle_ranks(Group(crew), 0):
            assert seat.output == greedy_text(oracle, seat.prompt, len(seat.output))

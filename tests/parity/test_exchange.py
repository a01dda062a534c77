"""The exchange of tokens for experts over real process groups: the sum of a token's experts, wherever they are held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.parallel.build import KINDS, build_parallel
from paceline.parallel.exchange import LocalExchange, PassTokens
from parity.crew import Crew, CrewWorker

EXPERTS, TOP_K, HIDDEN = 7, 3, 16
CREWS = {"tp2": ([0], 2), "dp2": ([0, 1], 1), "dp3": ([0, 1, 2], 1), "dp2-tp2": ([0, 1], 2)}
# Tokens that each rank runs, and of them those of requests; for as many ranks as there are.
PASSES: dict[str, tuple[str, int, list[int], list[int]]] = {
    "full": ("full", 8, [8, 8, 8], [5, 8, 3]),
    "full beside a dummy": ("full", 4, [4, 4, 4], [0, 3, 0]),
    "eager": ("eager", 0, [5, 9, 1], [5, 9, 1]),
    "eager beside a dummy": ("eager", 0, [1, 6, 3], [0, 6, 3]),
    "one token": ("eager", 0, [1, 1, 1], [1, 0, 0]),
    "piecewise": ("piecewise", 8, [8, 8, 8], [7, 2, 0]),
}
Tokens = tuple[Tensor, Tensor, Tensor, Tensor]


class CountingExperts:
    """An expert is a matrix; counts the visits to those that are held."""

    def __init__(self, held: range) -> None:
        self.held = held
        self.visits = 0
        generator = torch.Generator().manual_seed(0)
        self.matrices = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=generator)

    def __call__(self, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for token, choice in (expert_ids >= 0).nonzero().tolist():
            expert = int(expert_ids[token, choice])
            if expert in self.held:
                self.visits += 1
                total[token] += weights[token, choice] * (x[token] @ self.matrices[expert])
        return total


def tokens_of(dp_rank: int, name: str, ranks: int = 1) -> tuple[PassTokens, Tensor, Tensor, Tensor]:
    """What a rank's MoE layer is given in a pass; padding has values that would show."""
    mode, padded, counts, requests = PASSES[name]
    generator = torch.Generator().manual_seed(100 + dp_rank)
    count = counts[dp_rank]
    x = torch.randn(count, HIDDEN, generator=generator)
    ids = torch.rand(count, EXPERTS, generator=generator).argsort(dim=1)[:, :TOP_K]
    weights = torch.rand(count, TOP_K, generator=generator)
    is_request = torch.arange(count) < requests[dp_rank]
    # Outside FULL the plan pads to the largest rank that is there.
    padded = max(counts[:ranks]) if mode == "eager" else padded
    return PassTokens(padded, is_request), x, ids, weights


def run_exchange(worker: CrewWorker, kind: str, name: str) -> tuple[list[list[float]], int, int, list[int]]:
    """Body of a worker: the result, visits to its experts, collectives, experts held."""
    parallel = build_parallel(kind, EXPERTS, worker.groups.world, worker.groups.workers)
    before = worker.pulse.collectives
    tokens, x, ids, weights = tokens_of(worker.dp_rank, name, len(worker.dp_ranks))
    experts = CountingExperts(parallel.exchange.held)
    with torch.inference_mode():
        parallel.exchange.prepare(tokens)
        result = parallel.exchange.run(x, ids, weights, experts)
    return result.tolist(), experts.visits, worker.pulse.collectives - before, list(parallel.exchange.held)


@pytest.fixture(scope="module", params=list(CREWS))
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with Crew(*CREWS[request.param]) as crew:
        yield crew


def expected_of(dp_rank: int, name: str) -> Tensor:
    tokens, x, ids, weights = tokens_of(dp_rank, name)
    local = LocalExchange(EXPERTS)
    local.prepare(tokens)
    return local.run(x, ids, weights, CountingExperts(range(EXPERTS)))


@pytest.mark.parametrize("name", list(PASSES))
def test_every_exchange_gives_what_one_worker_gives(crew: Crew, name: str) -> None:
    ranks, workers = len(crew.dp_ranks), len(crew.dp_ranks) * crew.tp_size
    requests = PASSES[name][3][:ranks]
    by_kind: dict[str, list[Any]] = {kind: crew.call(run_exchange, kind, name) for kind in KINDS}
    for kind, results in by_kind.items():
        is_spread = kind != "off"
        for index, (result, _, collectives, held) in enumerate(results):
            expected = expected_of(index // crew.tp_size, name)
            torch.testing.assert_close(torch.tensor(result), expected, atol=1e-5, rtol=1e-5)
            # There, back, and where a rank has several workers once more among them; without experts abroad, a sum.
            assert collectives == (2 + (crew.tp_size > 1) if is_spread else int(crew.tp_size > 1))
            assert len(held) in ([EXPERTS // workers, -(-EXPERTS // workers)] if is_spread else range(1, EXPERTS + 1))
        # Padding and dummies visit no expert, and each token of a request its own ones once.
        visits = sum(result[1] for result in results)
        assert visits == TOP_K * sum(requests)
        for rank in range(ranks):
            first, *others = results[rank * crew.tp_size : (rank + 1) * crew.tp_size]
            assert all(other[0] == first[0] for other in others), "tp workers go on with the same bits"
    gathered, sent = ([result[0] for result in by_kind[kind]] for kind in ("allgather_reducescatter", "all_to_all"))
    assert gathered == sent, "both ways add in one order"


def break_off(worker: CrewWorker) -> str:
    """Rank 1 leaves; the others find out in their next collective."""
    from paceline.parallel.collectives import PeerLostError

    if worker.dp_rank == 1:
        worker.groups.close()
        return "left"
    try:
        worker.groups.world.all_gather(torch.zeros(4))
        worker.groups.world.all_gather(torch.zeros(4))
    except PeerLostError as error:
        worker.groups.close()
        return str(error)
    return "nothing"


def test_a_peer_that_leaves_has_an_error_of_its_own() -> None:
    with Crew([0, 1]) as crew:
        found, left = crew.call(break_off)
    assert left == "left"
    assert found.startswith("a peer left the group: ")

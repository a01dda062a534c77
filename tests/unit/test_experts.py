"""Experts of one layer in their two forms, against the definition; and which tokens reach them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from paceline.layers.moe import FusedExperts, SortedExperts, build_experts
from paceline.parallel.exchange import LocalExchange, PassTokens

EXPERTS, INNER, HIDDEN, TOP_K = 6, 10, 16, 3
HELD = range(2, 5)


def random_experts(held: range) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    gate_up = [torch.randn(2 * INNER, HIDDEN, generator=generator) for _ in range(EXPERTS)]
    down = [torch.randn(HIDDEN, INNER, generator=generator) for _ in range(EXPERTS)]
    return gate_up[held.start : held.stop], down[held.start : held.stop]


def random_visits(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    expert_ids = torch.rand(tokens, EXPERTS, generator=generator).argsort(dim=-1)[:, :TOP_K]
    return torch.randn(tokens, HIDDEN, generator=generator), expert_ids, torch.rand(tokens, TOP_K, generator=generator)


def by_definition(held: range, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    gate_up, down = random_experts(held)
    output = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for expert, weight in zip(expert_ids[token].tolist(), weights[token], strict=True):
            if expert in held:
                gate, up = (gate_up[expert - held.start] @ x[token]).tensor_split(2)
                output[token] += weight * (down[expert - held.start] @ (functional.silu(gate) * up))
    return output


@pytest.mark.parametrize("form", [SortedExperts, FusedExperts])
@pytest.mark.parametrize("held", [range(EXPERTS), HELD, range(5, 6)])
@pytest.mark.parametrize("tokens", [0, 1, 7, 40])
def test_both_forms_are_the_weighted_sum(form: type, held: range, tokens: int) -> None:
    x, expert_ids, weights = random_visits(tokens)
    if tokens > 2:
        expert_ids[1] = -1
        expert_ids[2, 1] = -1
    got = form(held, *random_experts(held))(x, expert_ids, weights)
    torch.testing.assert_close(got, by_definition(held, x, expert_ids, weights), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", [SortedExperts, FusedExperts])
def test_a_token_that_visits_nobody_here_gets_zeros(form: type) -> None:
    x, expert_ids, weights = random_visits(4)
    experts = form(HELD, *random_experts(HELD))
    assert not experts(x, torch.full_like(expert_ids, -1), weights).any()
    assert not experts(x, torch.full_like(expert_ids, 5), weights).any()


def test_no_experts_held_gives_zeros() -> None:
    experts = build_experts(range(3, 3), [], [])
    assert isinstance(experts, SortedExperts)
    assert not experts(*random_visits(5)).any()


def test_small_layers_are_fused_and_large_ones_are_not() -> None:
    assert isinstance(build_experts(HELD, *random_experts(HELD)), FusedExperts)
    wide = [torch.zeros(2 * 400, 1024)], [torch.zeros(1024, 400)]
    assert isinstance(build_experts(range(1), *wide), SortedExperts)


@pytest.mark.parametrize("form", [SortedExperts, FusedExperts])
def test_padding_is_seen_by_no_expert(form: type) -> None:
    x, expert_ids, weights = random_visits(6)
    experts = form(range(EXPERTS), *random_experts(range(EXPERTS)))
    seen: list[torch.Tensor] = []

    def spy(x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        seen.append(expert_ids)
        output: torch.Tensor = experts(x, expert_ids, weights)
        return output

    exchange = LocalExchange(EXPERTS)
    is_request = torch.tensor([True, True, False, True, False, False])
    exchange.prepare(PassTokens(6, is_request))
    poisoned = x.masked_fill(~is_request.unsqueeze(1), float("nan"))
    got = exchange.run(poisoned, expert_ids, weights, spy)
    assert (seen[0][~is_request] == -1).all()
    assert torch.equal(seen[0][is_request], expert_ids[is_request])
    torch.testing.assert_close(got[is_request], by_definition(range(EXPERTS), x, expert_ids, weights)[is_request])

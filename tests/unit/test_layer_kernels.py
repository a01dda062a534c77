"""Layers by the kernels of `_core` and by torch's own operations: the second serve types that the first do not take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline import _core
from paceline.layers.host import array_of, has_kernels
from paceline.layers.mlp import activated
from paceline.layers.norm import RmsNorm
from paceline.layers.rotary import HeadNorm, Rotation

TOKENS, WIDTH = 5, 24


def drawn(*shape: int, seed: int) -> Tensor:
    """Numbers in fp64, a type without kernels."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """A type with kernels."""
    chosen: torch.dtype = request.param
    return chosen


def close(got: Tensor, expected: Tensor) -> None:
    assert has_kernels(got)
    assert not has_kernels(expected)
    relative, absolute = (1e-5, 1e-6) if got.dtype is torch.float32 else (2e-2, 3e-2)
    torch.testing.assert_close(got.double(), expected, rtol=relative, atol=absolute)


def test_norm_and_the_addition_before_it(dtype: torch.dtype) -> None:
    x, added, weight = drawn(TOKENS, WIDTH, seed=1), drawn(TOKENS, WIDTH, seed=2), drawn(WIDTH, seed=3)
    stream = x.to(dtype)
    got, expected = RmsNorm(weight.to(dtype), 1e-5).after(stream, added.to(dtype)), RmsNorm(weight, 1e-5).after(x, added)
    close(got, expected)
    close(stream, x)
    columns = drawn(TOKENS, 2 * WIDTH, seed=4)
    close(RmsNorm(weight.to(dtype), 1e-5)(columns.to(dtype)[:, :WIDTH]), RmsNorm(weight, 1e-5)(columns[:, :WIDTH]))


def test_activation(dtype: torch.dtype) -> None:
    gate_up = drawn(TOKENS, 2 * WIDTH, seed=5)
    close(activated(gate_up.to(dtype)), activated(gate_up))


@pytest.mark.parametrize("width", [8, 4])
@pytest.mark.parametrize("has_norm", [False, True])
def test_rotation(dtype: torch.dtype, width: int, *, has_norm: bool) -> None:
    count, size = 2, 8
    heads, cos, sin = drawn(TOKENS, WIDTH, seed=6), drawn(TOKENS, width, seed=7), drawn(TOKENS, width, seed=8)
    weight = drawn(count, size, seed=9)
    got = heads.to(dtype)
    Rotation(cos.to(dtype), sin.to(dtype)).apply(got, count, size, HeadNorm(weight.to(dtype), 1e-6) if has_norm else None)
    untouched = heads[:, count * size :].clone()
    Rotation(cos, sin).apply(heads, count, size, HeadNorm(weight, 1e-6) if has_norm else None)
    close(got, heads)
    assert torch.equal(heads[:, count * size :], untouched)


def test_arrays_that_do_not_fit_are_refused() -> None:
    half, single = torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="all float32 or all uint16"):
        _core.gate(array_of(half), array_of(single))
    with pytest.raises(ValueError, match="columns of gate and up: expected 8, got 4"):
        _core.gate(array_of(single), array_of(single.clone()))
    with pytest.raises(ValueError, match="columns of x: expected 3, got 4"):
        _core.rms_norm(array_of(single), None, array_of(torch.ones(3)), 1e-5, array_of(single.clone()))
    pool = array_of(torch.zeros(1, 8, 4))
    attention = _core.PagedAttention([pool], [pool.copy()], 4)
    with pytest.raises(ValueError, match="tokens of the pass: expected 0, got 2"):
        attention.attend(0, array_of(torch.zeros(2, 12)), 1, 1.0, 0, 8, array_of(single))

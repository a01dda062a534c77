"""Linear layers of int8 weights against the definition, and what does not fit them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline import _core
from paceline.layers import int8
from paceline.layers.host import array_of
from paceline.layers.linear import Linear
from paceline.layers.moe import SortedExperts, build_experts
from paceline.layers.quantization import Quantization
from paceline.layers.wide import WideLayouts, WideProduct


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of `x` as whole numbers up to 127, and the factor of each."""
    x = x.float()
    largest = x.abs().amax(dim=1, keepdim=True)
    return (x * (torch.tensor(127.0) / largest)).round(), largest / 127


def by_definition(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Exact sums of whole numbers, in fp64, times the factors in fp32."""
    (rows, row_factors), (outputs, output_factors) = quantised(x), quantised(weight)
    sums = (rows.double() @ outputs.double().T).float()
    product = sums * output_factors.T * row_factors
    return (product if bias is None else product + bias.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 96), (3, 33, 41), (12, 576, 32), (29, 7, 1), (130, 192, 100)])
def test_a_product_is_exact_sums_of_quantised_rows(dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> None:
    weight, bias = drawn(outputs, inputs, seed=1).to(dtype), drawn(outputs, seed=2).to(dtype)
    x = drawn(rows, inputs, seed=3).to(dtype)
    for chosen in (None, bias):
        layer = Linear(weight, chosen, quantization=Quantization.INT8)
        assert layer.weight is None
        assert torch.equal(layer(x), by_definition(x, weight, chosen))


def test_inputs_need_not_lie_side_by_side_and_there_may_be_none() -> None:
    layer = Linear(drawn(8, 16, seed=1), quantization=Quantization.INT8)
    x = drawn(5, 32, seed=2)
    assert torch.equal(layer(x[:, :16]), layer(x[:, :16].contiguous()))
    assert layer(x[:0, :16]).shape == (0, 8)


def test_a_row_alone_is_the_row_among_others() -> None:
    layer = Linear(drawn(70, 48, seed=1).bfloat16(), quantization=Quantization.INT8)
    x = drawn(40, 48, seed=2).bfloat16()
    # Other rows are much larger: their scale is not this row's.
    x[1::2] *= 100
    together = layer(x)
    for index in range(40):
        assert torch.equal(layer(x[index : index + 1])[0], together[index])


@pytest.mark.parametrize("shape", [(96, 64), (41, 33), (100, 1536)])
def test_many_rows_are_the_same_bits_with_and_without_the_other_product(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = drawn(*shape, seed=1).bfloat16(), drawn(64, shape[1], seed=2).bfloat16()
    x[5] = 1
    both = Linear(weight, quantization=Quantization.INT8)
    monkeypatch.setattr(int8, "has_wide_product", lambda: False)
    own = Linear(weight, quantization=Quantization.INT8)
    for rows in (1, int8.OWN_ROWS_MAX, int8.OWN_ROWS_MAX + 1, 64):
        assert torch.equal(both(x[:rows]), own(x)[:rows])


def test_layouts_may_come_later_and_nothing_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = WideLayouts()
    monkeypatch.setattr(int8, "WIDE_LAYOUTS", layouts)
    monkeypatch.setattr(int8, "has_wide_product", lambda: True)
    monkeypatch.setattr(WideProduct, "lay_out", lambda product: laid_out.append(product))
    laid_out: list[WideProduct] = []
    weight, x = drawn(41, 33, seed=1), drawn(12, 33, seed=2)
    layouts.put_off()
    kept, gone = (Linear(weight, quantization=Quantization.INT8) for _ in range(2))
    assert torch.equal(kept(x), by_definition(x, weight, None))
    assert laid_out == []
    del gone
    thread = layouts.make_up()
    assert thread is not None
    thread.join(timeout=60)
    assert len(laid_out) == 1
    assert layouts.make_up() is None
    Linear(weight, quantization=Quantization.INT8)
    assert len(laid_out) == 2


def test_arrays_that_do_not_fit_are_refused_with_both_numbers() -> None:
    bytes_, ones = torch.zeros(4, 6, dtype=torch.int8).numpy(), torch.ones(4).numpy()
    matrix = _core.Int8Matrix(bytes_, ones)
    x, product = drawn(2, 6, seed=2), torch.empty(2, 4)
    with pytest.raises(ValueError, match="columns of x: expected 6, got 4"):
        matrix.multiply(array_of(product), array_of(product.clone()))
    with pytest.raises(ValueError, match="columns of the product: expected 4, got 6"):
        matrix.multiply(array_of(x), array_of(x.clone()))
    with pytest.raises(ValueError, match="rows of the product: expected 2, got 3"):
        matrix.multiply(array_of(x), array_of(torch.empty(3, 4)))
    with pytest.raises(ValueError, match="all float32 or all uint16"):
        matrix.multiply(array_of(x.bfloat16()), array_of(product))
    with pytest.raises(ValueError, match="biases: expected 4, got 3"):
        _core.Int8Matrix(bytes_, ones, ones[:3])
    with pytest.raises(ValueError, match="inputs of an int8 matrix: expected 131072 at most, got 131073"):
        _core.Int8Matrix(torch.zeros(1, 131073, dtype=torch.int8).numpy(), ones[:1])
    with pytest.raises(ValueError, match="columns of the sums: expected 4, got 6"):
        matrix.finish(x.numpy(), ones[:2], array_of(product))
    with pytest.raises(ValueError, match="rows of the sums: expected 3, got 2"):
        matrix.finish(product.numpy(), ones[:3], array_of(product.clone()))
    with pytest.raises(ValueError, match="factors: expected 2, got 4"):
        _core.quantise_rows(array_of(x), torch.zeros(2, 6, dtype=torch.int8).numpy(), ones.copy())


def test_quantised_experts_are_not_fused_so_that_who_holds_them_does_not_show() -> None:
    gate_up, down = [drawn(2 * 10, 16, seed=index) for index in range(6)], [drawn(16, 10, seed=9 + index) for index in range(6)]
    x, expert_ids = drawn(7, 16, seed=20), torch.rand(7, 6, generator=torch.Generator().manual_seed(1)).argsort(dim=-1)[:, :2]
    weights = torch.ones(7, 2)
    whole = build_experts(range(6), gate_up, down, Quantization.INT8)
    halves = [build_experts(held, gate_up[held.start : held.stop], down[held.start : held.stop], Quantization.INT8)
              for held in (range(3), range(3, 6))]  # fmt: skip
    assert all(isinstance(experts, SortedExperts) for experts in (whole, *halves))
    torch.testing.assert_close(sum(half(x, expert_ids, weights) for half in halves), whole(x, expert_ids, weights))

"""Reading checkpoints: parts of tensors, block-scaled FP8, and that nothing is overlooked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paceline.weights.loader import Cut, WeightReader, WeightsError

ROWS, COLUMNS = 300, 200


def scaled_fp8(folder: Path) -> torch.Tensor:
    """Save one matrix in FP8 with a factor per block; gives what it stands for."""
    generator = torch.Generator().manual_seed(3)
    quantised = torch.randn(ROWS, COLUMNS, generator=generator).to(torch.float8_e4m3fn)
    factors = torch.rand(3, 2, generator=generator) + 0.5
    save_file({"a.weight": quantised, "a.weight_scale_inv": factors}, folder / "model.safetensors")
    expected = quantised.float()
    for row in range(ROWS):
        for column_block in range(2):
            expected[row, column_block * 128 : (column_block + 1) * 128] *= factors[row // 128, column_block]
    return expected


@pytest.mark.parametrize("cut", [None, Cut(0, range(100, 290)), Cut(1, range(1, 130)), Cut(0, range(299, 300))])
def test_fp8_is_multiplied_by_the_factor_of_its_block(tmp_path: Path, cut: Cut | None) -> None:
    expected = scaled_fp8(tmp_path)
    with WeightReader(tmp_path, dtype=torch.float32) as weights:
        got = weights.take("a.weight", (ROWS, COLUMNS), cut)
        weights.finish()
    if cut is not None:
        expected = expected.index_select(cut.dim, torch.tensor(list(cut.part)))
    assert torch.equal(got, expected)


def test_parts_are_those_of_the_whole(tmp_path: Path) -> None:
    whole = torch.randn(6, 4)
    save_file({"a": whole, "b": whole + 1}, tmp_path / "model.safetensors")
    with WeightReader(tmp_path, dtype=torch.float32) as weights:
        assert torch.equal(weights.take("a", (6, 4), Cut(1, range(1, 3))), whole[:, 1:3])
        fused = weights.take_fused([("a", (6, 4), Cut(0, range(2, 4))), ("b", (6, 4), None)])
    assert torch.equal(fused, torch.cat((whole[2:4], whole + 1)))


def test_rows_in_the_type_of_the_model_are_views(tmp_path: Path) -> None:
    whole = torch.randn(6, 4)
    save_file({"a": whole, "b": whole.bfloat16()}, tmp_path / "model.safetensors")
    with WeightReader(tmp_path, dtype=torch.float32) as weights:
        assert weights.view("b", (6, 4)) is None, "of another type"
        assert weights.view("a", (6, 4), Cut(1, range(1, 3))) is None, "columns"
        with pytest.raises(WeightsError, match="2 tensors that this architecture does not use: a, b"):
            weights.finish()
        rows, columns = weights.view("a", (6, 4), Cut(0, range(2, 4))), weights.view("a", (6, 4), Cut(1, range(4)))
        weights.leave("b")
        weights.finish()
    (tmp_path / "model.safetensors").unlink()
    assert rows is not None
    assert columns is not None
    assert torch.equal(rows, whole[2:4])
    assert torch.equal(columns, whole)


def test_what_is_left_counts_as_known(tmp_path: Path) -> None:
    one = torch.ones(1)
    names = ("a", "b.0.weight", "b.0.weight_scale_inv", "c.1", "c.2", "d")
    save_file({name: one.clone() for name in names}, tmp_path / "model.safetensors")
    seen: list[tuple[int, int]] = []
    with WeightReader(tmp_path, dtype=torch.float32, on_progress=lambda *counts: seen.append(counts)) as weights:
        weights.take("a", (1,))
        weights.leave("b.0.weight", "not there")
        weights.leave_all("c.")
        with pytest.raises(WeightsError, match="has 1 tensors that this architecture does not use: d"):
            weights.finish()
        weights.leave("d")
        weights.finish()
    assert seen[-1] == (6, 6)


def test_faults_are_named(tmp_path: Path) -> None:
    tensors = {
        "a": torch.ones(2, 3),
        "b": torch.ones(2, dtype=torch.int8),
        "c": torch.ones(2, 2).to(torch.float8_e4m3fn),
        "d": torch.ones(2, 2).to(torch.float8_e4m3fn),
        "d_scale_inv": torch.ones(2, 1),
        "e": torch.ones(2, 2).to(torch.float8_e5m2),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    faults = {
        "a": ((3, 2), r"tensor a has shape \(2, 3\), config.json says \(3, 2\)"),
        "b": ((2,), "tensor b is torch.int8: of quantised types only block-scaled float8_e4m3fn is read"),
        "c": ((2, 2), "no tensor c_scale_inv"),
        "d": ((2, 2), r"tensor d_scale_inv has shape \(2, 1\)"),
        "e": ((2, 2), "tensor e is torch.float8_e5m2"),
        "z": ((1,), "no tensor z"),
    }
    with WeightReader(tmp_path, dtype=torch.float32) as weights:
        for name, (shape, message) in faults.items():
            with pytest.raises(WeightsError, match=message):
                weights.take(name, shape)

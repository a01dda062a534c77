"""Linear layers of few rows, which read weights as they were stored, against the layout that many rows read."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from paceline import _core
from paceline.layers.host import array_of
from paceline.layers.linear import PLAIN_ROWS_MAX, Linear, are_tiles, can_pack
from paceline.layers.plain import PlainWeights
from paceline.layers.quantization import Quantization
from paceline.weights.loader import WeightReader


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (33, 70), (1, 2)])
def test_few_rows_give_what_many_give(outputs: int, inputs: int) -> None:
    weight, bias, x = numbers(outputs, inputs, seed=1), numbers(outputs, seed=2), numbers(9, inputs, seed=3)
    exact = (x.double() @ weight.double().T + bias.double()).float()
    for linear in (Linear(weight, bias, pack=True), Linear(weight, bias, pack=True, is_shared=True)):
        for rows in range(1, 10):
            torch.testing.assert_close(linear(x[:rows]).float(), exact[:rows], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("outputs", "inputs"), [(130, 94), (130, 96)])
def test_a_row_gives_the_same_bits_whatever_it_comes_with(outputs: int, inputs: int) -> None:
    weight = numbers(outputs, inputs, seed=1)
    if not can_pack(weight):
        return
    rows = 150 if are_tiles(weight) else PLAIN_ROWS_MAX
    linear, x = Linear(weight, pack=True), numbers(rows, inputs, seed=2)
    together = linear(x)
    for row in range(rows):
        assert torch.equal(linear(x[row : row + 1]), together[row : row + 1])


def test_which_weights_are_tiles() -> None:
    weight = numbers(130, 96, seed=1)
    assert are_tiles(weight) == _core.has_matrix_instructions()
    assert not are_tiles(weight[:15])
    assert not are_tiles(weight[:, :94])
    assert not are_tiles(weight.float())


def test_columns_of_a_wider_tensor_are_read() -> None:
    linear, wide = Linear(numbers(8, 16, seed=1), pack=True), numbers(2, 32, seed=2)
    assert torch.equal(linear(wide[:, :16]), linear(wide[:, :16].contiguous()))


def test_copies_lie_side_by_side_and_their_memory_goes_with_them() -> None:
    plain = PlainWeights(bytes_max=192 << 20)
    weights = [numbers(64, 30, seed=seed) for seed in range(3)]
    copies = [plain.keep(weight) for weight in weights]
    for copy, weight in zip(copies, weights, strict=True):
        assert copy is not None
        assert torch.equal(copy, weight)
        assert copy.data_ptr() % 64 == 0
    assert plain.held_bytes == 64 << 20
    large = plain.keep(torch.zeros(50 << 20, dtype=torch.bfloat16))
    assert large is not None
    assert plain.held_bytes == 164 << 20
    assert plain.keep(torch.zeros(50 << 20, dtype=torch.bfloat16)) is None, "there is no room left"
    del copies, copy, large
    gc.collect()
    assert plain.held_bytes == 0


@pytest.mark.parametrize("rows", [1, 16, 17, 32, 33, 64])
def test_compressed_weights_give_the_same_bits_in_three_quarters_of_the_bytes(rows: int) -> None:
    parts = [array_of(numbers(size, 96, seed=size)) for size in (96, 48, 33)]
    x, bias = array_of(numbers(rows, 96, seed=1)), array_of(numbers(177, seed=2))
    products = []
    for compress in (False, True):
        weight = _core.LinearWeight(parts, bias, compress=compress)
        # In blocks of 32 outputs.
        assert (0.75 < weight.compressed_bytes / ((96 + 64 + 64) * 96 * 2) < 0.8) == (compress and _core.has_matrix_instructions())
        products.append(np.zeros((rows, 177), dtype=np.uint16))
        _core.linear(x, weight, products[-1])
    assert np.array_equal(*products)


def test_weights_are_compressed_while_there_is_room() -> None:
    plain, parts = PlainWeights(bytes_max=3 * 96 * 64), [array_of(numbers(96, 64, seed=1))]
    first = plain.compress(parts, None)
    assert plain.held_bytes == first.compressed_bytes
    assert (first.compressed_bytes > 0) == _core.has_matrix_instructions()
    if first.compressed_bytes:
        assert plain.compress(parts, None).compressed_bytes == 0
    del first
    gc.collect()
    assert plain.held_bytes == 0


def mapped_ranges(path: Path) -> list[range]:
    """Where in this process the file of that path, or what had that path, is mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    bounds = [line.split()[0].split("-") for line in lines if str(path) in line]
    return [range(int(start, 16), int(end, 16)) for start, end in bounds]


def save_parts(path: Path, *sizes: int) -> list[torch.Tensor]:
    parts = [numbers(size, 64, seed=size) for size in sizes]
    save_file({str(index): part for index, part in enumerate(parts)}, path)
    return parts


def read_parts(folder: Path, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    with WeightReader(folder, dtype=torch.bfloat16) as weights:
        views = [weights.view(str(index), tuple(part.shape)) for index, part in enumerate(parts)]
        weights.finish()
    return [view for view in views if view is not None]


def test_parts_are_read_in_the_file_whatever_becomes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = save_parts(path, 96, 48, 32)
    linear, whole, x = Linear(read_parts(tmp_path, parts), pack=True, is_shared=True), torch.cat(parts), numbers(9, 64, seed=4)
    save_parts(tmp_path / "other", 17)
    (tmp_path / "other").rename(path)
    path.unlink()
    for rows in range(1, 10):
        assert torch.equal(linear(x[:rows]), Linear(whole, pack=True)(x[:rows]))
    if not can_pack(whole):
        return
    assert linear.plain is not None
    for array, part in zip(linear.plain.weight.parts, parts, strict=True):
        assert np.array_equal(array, array_of(part))
        assert any(array.ctypes.data in mapped for mapped in mapped_ranges(path))


def test_parts_that_other_instructions_would_take_are_joined(tmp_path: Path) -> None:
    parts = save_parts(tmp_path / "model.safetensors", 64, 8)
    linear = Linear(read_parts(tmp_path, parts), pack=True, is_shared=True)
    if can_pack(parts[0]):
        assert linear.plain is not None
        assert len(linear.plain.weight.parts) == (1 if _core.has_matrix_instructions() else 2)


def test_nothing_stays_mapped_of_what_is_quantised(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    parts = save_parts(path, 96, 48)
    linear = Linear(read_parts(tmp_path, parts), is_shared=True, quantization=Quantization.INT8)
    gc.collect()
    assert not mapped_ranges(path)
    x = numbers(3, 64, seed=4)
    assert torch.equal(linear(x), Linear(torch.cat(parts), quantization=Quantization.INT8)(x))


def test_what_is_shared_is_counted_while_it_is_used() -> None:
    plain = PlainWeights()
    array = plain.share(np.zeros((4, 8), dtype=np.uint16))
    assert (plain.shared_bytes, plain.held_bytes) == (64, 0)
    del array
    gc.collect()
    assert plain.shared_bytes == 0


def test_arrays_that_do_not_fit_are_refused_with_both_numbers() -> None:
    x, weight, product = (np.zeros(shape, dtype=np.uint16) for shape in ((2, 4), (3, 4), (2, 3)))
    bias = np.zeros(3, dtype=np.uint16)
    _core.linear(x, _core.LinearWeight([weight], bias), product)
    unpaired = np.frombuffer(bytes(26), dtype=np.uint8)
    unpaired = unpaired[(2 - unpaired.ctypes.data) % 4 :][:24].view(np.uint16).reshape(3, 4)
    refused: list[tuple[str, list[np.ndarray], np.ndarray | None]] = [
        ("inputs of a part: expected 4, got 2", [weight, weight[:, :2].copy()], None),
        ("elements of the bias: expected 3, got 2", [weight], bias[:2]),
        ("3 outputs and 3 inputs: an even number", [weight[:, :3].copy()], None),
        ("whole rows", [np.zeros((3, 8), dtype=np.uint16)[:, :4]], None),
        ("one part at least", [], None),
        ("a weight begins 2 bytes behind a multiple of 4", [unpaired], None),
    ]
    for message, parts, part_bias in refused:
        with pytest.raises(ValueError, match=message):
            _core.LinearWeight(parts, part_bias)
    known = _core.LinearWeight([weight[:2], weight[2:]])
    for message, arguments in [
        ("columns of x: expected 4, got 2", (x[:, :2].copy(), known, product)),
        ("rows of the product: expected 1, got 2", (x[:1], known, product)),
        ("columns of the product: expected 3, got 2", (x, known, product[:, :2].copy())),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.linear(*arguments)
    with pytest.raises(TypeError):
        _core.linear(array_of(torch.zeros(2, 4)), known, product)

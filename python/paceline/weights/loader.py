"""Reading a checkpoint's tensors by their Hugging Face names. safetensors only: no pickle, no remote code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.errors import UsageError
from paceline.weights.files import shard_paths

# Buffers that old checkpoints saved beside the weights; they are computed here.
_COMPUTED_SUFFIXES = (".rotary_emb.inv_freq", ".attn.bias", ".masked_bias")
# A tensor in FP8 has a second one with a factor for each block of so many rows and columns.
SCALE_SUFFIX = "_scale_inv"
SCALE_BLOCK = 128
# Files begin tensors where the ones before them end; our kernels read two numbers of bfloat16 at a time.
_ALIGNMENT_BYTES = 4


class WeightsError(UsageError):
    """A tensor that is missing, of another shape than the config says, or that nothing uses."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a tensor that a worker reads: along axis `dim`, the indices in `part` (of step 1)."""

    dim: int
    part: range


class WeightReader:
    """Takes tensors out of a checkpoint one by one, in the type and on the device that the model runs in.

    A tensor in block-scaled FP8 is given dequantised. Each name is taken or left; `finish` then proves that the model
    knows the whole checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Open the checkpoint in `folder`. `on_progress` is called with tensors done and in all."""
        self.dtype = dtype
        self.device = torch.device(device)
        self._folder = folder
        self._on_progress = on_progress
        self._files: list[Any] = []
        self._file_of: dict[str, Any] = {}
        self._settled: set[str] = set()
        for path in shard_paths(folder):
            try:
                file: Any = safe_open(str(path), framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise WeightsError(f"{path} is not readable: {error}") from None
            self._files.append(file)
            self._file_of.update(dict.fromkeys(file.keys(), file))

    def __enter__(self) -> Self:
        """Use as a context manager, so that files are closed."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the files; tensors already taken stay valid."""
        self._file_of.clear()
        self._files.clear()

    def take(self, name: str, shape: tuple[int, ...], cut: Cut | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Read tensor `name`, which must have `shape`, or only `cut` of it; in `dtype` if given, else in the model's.

        Raises `WeightsError`.
        """
        tensor = self._read(name, shape, cut)
        # A copy of its own even where nothing is converted: what is to stay in the file's pages is asked for by `view`.
        return tensor.to(device=self.device, dtype=dtype or self.dtype, copy=True).contiguous()

    def view(self, name: str, shape: tuple[int, ...], cut: Cut | None = None) -> Tensor | None:
        """Tensor `name` or rows of it as they lie in the file, mapped into memory: all workers of a machine share its pages.

        Not to be written to. Gives `None`, and leaves the tensor untaken, where it is not of the model's type, or not
        whole rows on a CPU. The pages outlive the reader, and the file's name: a checkpoint that is deleted, or replaced by
        renaming another, does not matter. One that is written over or cut short in place is the model's ruin.
        """
        is_rows = cut is None or cut.dim == 0 or cut.part == range(shape[cut.dim])
        if not is_rows or self.device.type != "cpu":
            return None
        view = self._open(name, shape)
        tensor: Tensor = view[:] if cut is None or cut.dim else view[_index(cut)]
        if tensor.dtype is not self.dtype or not tensor.is_contiguous() or tensor.data_ptr() % _ALIGNMENT_BYTES:
            return None
        self._settle(name)
        return tensor

    def take_fused(self, parts: Sequence[tuple[str, tuple[int, ...], Cut | None]]) -> Tensor:
        """Read several tensors, each whole or cut, stacked along axis 0 in the order given. Raises `WeightsError`."""
        return torch.cat([self._read(*part).to(device=self.device, dtype=self.dtype) for part in parts])

    def leave(self, *names: str) -> None:
        """Say that tensors, where the checkpoint has them, are not for this worker."""
        for name in names:
            if name in self._file_of:
                self._settle(name)
            if name + SCALE_SUFFIX in self._file_of:
                self._settle(name + SCALE_SUFFIX)

    def leave_all(self, prefix: str) -> None:
        """Say that every tensor whose name begins with `prefix` is not for this worker."""
        self.leave(*(name for name in self._file_of if name.startswith(prefix)))

    def finish(self) -> None:
        """Check that every tensor was taken or left, save computed buffers. Raises `WeightsError`."""
        unused = sorted(name for name in self._file_of.keys() - self._settled if not name.endswith(_COMPUTED_SUFFIXES))
        if unused:
            shown = ", ".join(unused[:3])
            raise WeightsError(f"{self._folder} has {len(unused)} tensors that this architecture does not use: {shown}")

    def _read(self, name: str, shape: tuple[int, ...], cut: Cut | None = None) -> Tensor:
        view = self._open(name, shape)
        tensor: Tensor = view[:] if cut is None else view[_index(cut)]
        if tensor.dtype is torch.float8_e4m3fn:
            tensor = self._dequantised(tensor, name, shape, cut)
        elif not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise WeightsError(f"tensor {name} is {tensor.dtype}: of quantised types only block-scaled float8_e4m3fn is read")
        self._settle(name)
        return tensor

    def _open(self, name: str, shape: tuple[int, ...]) -> Any:
        """A tensor of which parts can be read without reading all of it."""
        file = self._file_of.get(name)
        if file is None:
            raise WeightsError(f"{self._folder} has no tensor {name}")
        view = file.get_slice(name)
        found = tuple(view.get_shape())
        if found != shape:
            raise WeightsError(f"tensor {name} has shape {found}, config.json says {shape}")
        return view

    def _dequantised(self, quantised: Tensor, name: str, shape: tuple[int, ...], cut: Cut | None) -> Tensor:
        """Multiply what was read of an FP8 matrix by the factors of its blocks, in fp32."""
        if len(shape) != 2:
            raise WeightsError(f"tensor {name} is {quantised.dtype} of {len(shape)} axes: block scales need a matrix")
        scale_name = name + SCALE_SUFFIX
        factors: Tensor = self._open(scale_name, tuple(-(-size // SCALE_BLOCK) for size in shape))[:]
        self._settle(scale_name)
        for dim, size in enumerate(shape):
            part = cut.part if cut is not None and cut.dim == dim else range(size)
            factors = factors.index_select(dim, torch.arange(part.start, part.stop) // SCALE_BLOCK)
        return quantised.float() * factors.float()

    def _settle(self, name: str) -> None:
        if name in self._settled:
            return
        self._settled.add(name)
        if self._on_progress is not None:
            self._on_progress(len(self._settled), len(self._file_of))


def _index(cut: Cut) -> tuple[slice, ...]:
    return (slice(None),) * cut.dim + (slice(cut.part.start, cut.part.stop),)

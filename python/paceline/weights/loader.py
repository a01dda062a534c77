"""Reading a checkpoint's tensors by their Hugging Face names. safetensors only: no pickle, no remote code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class WeightsError(UsageError):
    """A tensor that is missing, of another shape than the config says, or that nothing uses."""


class WeightReader:
    """Takes tensors out of a checkpoint one by one, in the type and on the device that the model runs in.

    Each name is taken once; `finish` then proves that the model used the whole checkpoint.
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
        self._taken: set[str] = set()
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

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read tensor `name`, which must have `shape`. Raises `WeightsError`."""
        tensor = self._read(name, shape)
        # A copy of its own even where nothing is converted: the file's pages must not be the model's memory.
        return tensor.to(device=self.device, dtype=self.dtype, copy=True).contiguous()

    def take_fused(self, parts: Sequence[tuple[str, tuple[int, ...]]]) -> Tensor:
        """Read several tensors, stacked along axis 0 in the order given. Raises `WeightsError`."""
        return torch.cat([self._read(name, shape).to(device=self.device, dtype=self.dtype) for name, shape in parts])

    def finish(self, ignored: Sequence[str] = ()) -> None:
        """Check that every tensor was taken, save `ignored` and computed buffers. Raises `WeightsError`."""
        unused = sorted(
            name for name in self._file_of.keys() - self._taken if name not in ignored and not name.endswith(_COMPUTED_SUFFIXES)
        )
        if unused:
            shown = ", ".join(unused[:3])
            raise WeightsError(f"{self._folder} has {len(unused)} tensors that this architecture does not use: {shown}")

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        file = self._file_of.get(name)
        if file is None:
            raise WeightsError(f"{self._folder} has no tensor {name}")
        tensor: Tensor = file.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"tensor {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
        if not tensor.is_floating_point():
            raise WeightsError(f"tensor {name} is {tensor.dtype}: quantised checkpoints are not supported")
        self._taken.add(name)
        if self._on_progress is not None:
            self._on_progress(len(self._taken), len(self._file_of))
        return tensor

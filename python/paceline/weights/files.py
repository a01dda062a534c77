"""Which files a checkpoint folder must hold. Needs neither torch nor safetensors."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.errors import UsageError

_INDEX = "model.safetensors.index.json"


class CheckpointError(UsageError):
    """A checkpoint folder that lacks a file or whose files do not agree."""


def shard_paths(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in name order: those its index names, else all in the folder.

    Raises `CheckpointError` when there is none, or when the index names a file that is missing.
    """
    index = folder / _INDEX
    if index.exists():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{index} is not a usable index: {error!r}") from None
        paths = sorted(folder / name for name in names)
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"no *.safetensors in {folder}")
    for path in paths:
        _check_header(path)
    return paths


def check_folder(folder: Path) -> None:
    """Check that a checkpoint folder has weights and a tokenizer. Raises `CheckpointError` naming what is missing."""
    if not folder.is_dir():
        raise CheckpointError(f"no such model folder: {folder}")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"no config.json in {folder}")
    shard_paths(folder)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise CheckpointError(f"no tokenizer.json in {folder}")
    try:
        json.loads(tokenizer.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{tokenizer} is not readable JSON: {error}") from None


def _check_header(path: Path) -> None:
    """Check that a safetensors file is as long as its header says, so that a cut download is found at once."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            if header_bytes > size - 8:
                raise CheckpointError(f"{path} is broken: header of {header_bytes} bytes in a file of {size}")
            header = json.loads(file.read(header_bytes))
        data_bytes = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except OSError as error:
        raise CheckpointError(f"{path} is not readable: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{path} is no safetensors file: {error!r}") from None
    if 8 + header_bytes + data_bytes != size:
        raise CheckpointError(f"{path} is broken: {size} bytes, its header describes {8 + header_bytes + data_bytes}")

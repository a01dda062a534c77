"""What a worker says of itself when it joins: digests of what it is about to load (rule 14).

Two workers with equal digests run the same network over the same words. The tensors' bytes are not read for it, their
names, types, shapes and places are: that tells checkpoints apart at once, and takes milliseconds.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from paceline.weights.files import shard_paths


def checkpoint_digest(folder: Path) -> str:
    """Digest of `config.json` and of every shard's header, as hex."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in shard_paths(folder):
        with path.open("rb") as file:
            length = file.read(8)
            digest.update(length)
            digest.update(file.read(int.from_bytes(length, "little")))
    return digest.hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """Digest of `tokenizer.json`, as hex."""
    return hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()

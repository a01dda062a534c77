"""`python -m paceline.weights.prepare`: from what the user named to a checked checkpoint folder.

The daemon runs it as a child before any worker starts. The last line on stdout is `{"path": ..., "name": ...}`; progress
and errors go to stderr; a model that cannot be served ends with one line and exit code 64. It never imports torch, so a
prepared folder costs a fraction of a second and a bad one is refused at once.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from pathlib import Path

from paceline.errors import EXIT_USAGE, UsageError
from paceline.models.config import load_model_config
from paceline.weights.demo import DEMO_NAMES, default_cache, resolve_demo
from paceline.weights.files import CheckpointError, check_folder
from paceline.weights.hub import resolve_hub_name

_DEMO_PREFIX = "demo:"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def main(arguments: list[str] | None = None) -> int:
    """Prepare a model and print where it is; the exit code."""
    options = _parse(arguments)
    # As an exception, so that a download in progress is ended and scratch files go.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        path, name = _resolve(options.model or f"{_DEMO_PREFIX}{options.demo}", options.cache_dir)
        check_folder(path)
        load_model_config(path)
    except UsageError as error:
        print(f"paceline: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130
    print(json.dumps({"path": str(path), "name": name}))
    return 0


def _resolve(model: str, cache: Path) -> tuple[Path, str]:
    """Find the folder of `model` and the name it is served under; `demo:NAME` names a demo."""
    if model.startswith(_DEMO_PREFIX):
        path, name = resolve_demo(model.removeprefix(_DEMO_PREFIX), cache)
        return path.resolve(), name
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve(), model
    if folder.exists():
        raise CheckpointError(f"{model} is a file; a model folder or a name on the hub is needed")
    if not _HUB_NAME.fullmatch(model):
        raise CheckpointError(f"no such model folder: {model}")
    return resolve_hub_name(model), model


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="paceline.weights.prepare", description="Prepare a model folder.")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", help="a folder, a name on the hub, or demo:NAME")
    source.add_argument("--demo", choices=DEMO_NAMES, default=DEMO_NAMES[0], help="a demo model; the default is smollm2")
    parser.add_argument("--cache-dir", type=Path, default=default_cache(), help="where prepared models are kept")
    return parser.parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    """argparse that ends wrong usage with Paceline's exit code."""

    def error(self, message: str) -> None:  # type: ignore[override]
        """Print one line and exit."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


if __name__ == "__main__":
    sys.exit(main())

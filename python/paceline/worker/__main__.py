"""`python -m paceline.worker`: the worker's command line, which the daemon's launcher writes.

Flags for people are the daemon's. A folder that cannot be served is refused here, before the daemon is dialled and
before torch is imported: one line, exit code 64.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from paceline.errors import EXIT_USAGE, UsageError
from paceline.models.config import load_model_config
from paceline.weights.files import check_folder
from paceline.worker.session import Options, Session

JOIN_TOKEN_VARIABLE = "PACELINE_JOIN_TOKEN"


def main(arguments: list[str] | None = None) -> int:
    """Run a worker until it ends; its exit code."""
    options = _parse(arguments)
    try:
        check_folder(options.model)
        load_model_config(options.model)
    except UsageError as error:
        print(f"dp{options.dp_rank}: {error}", file=sys.stderr)
        return EXIT_USAGE
    return Session(options).run()


def _parse(arguments: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m paceline.worker", description="A Paceline worker.")
    parser.add_argument("--daemon-address", required=True, help="HOST:PORT of the daemon's worker port")
    parser.add_argument("--dp-rank", required=True, type=int, help="which data-parallel rank this is")
    parser.add_argument("--tp-rank", default=0, type=int, help="which part of the rank this is")
    parser.add_argument("--model", required=True, type=Path, help="a prepared model folder")
    parser.add_argument("--join-token", default=os.environ.get(JOIN_TOKEN_VARIABLE, ""), help=f"default: {JOIN_TOKEN_VARIABLE}")
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as stop:
        raise SystemExit(EXIT_USAGE if stop.code else 0) from None
    return Options(
        daemon_address=parsed.daemon_address,
        join_token=parsed.join_token,
        dp_rank=parsed.dp_rank,
        tp_rank=parsed.tp_rank,
        model=parsed.model,
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that run torch or carry streams are not worth waiting for: nothing of theirs outlives the process.
    os._exit(code)

"""A daemon with two scripted workers, shared by the tests of a file: they are about the interface, not about the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.cargo import Build
from support.daemon import Daemon, ScriptedWorker
from support.processes import ROOT

TOKENIZER = ROOT / "crates" / "text" / "tests" / "data" / "bytelevel"
"""A model folder without weights; scripted workers need none."""

KEY = "test-key"
JOIN_TOKEN = "test-join-token"
MODEL = "tiny"
VOCAB_SIZE = 901


@dataclass(frozen=True)
class Api:
    """Where the server listens."""

    http: str
    """HOST:PORT."""
    grpc: str
    """HOST:PORT."""

    @property
    def base_url(self) -> str:
        """What OpenAI clients call the base URL."""
        return f"http://{self.http}/v1"


def serve(build: Build, logs: Path, flags: Sequence[str] = ()) -> Iterator[Api]:
    """A server with two scripted workers, until the iterator goes on; `flags` are its own beside the common ones.

    A step takes a few milliseconds, so that a stream lasts long enough to be left.
    """
    common = [TOKENIZER, "-dp", "2", "--no-spawn", "--skip-prepare", "--served-model-name", MODEL, "--api-key", KEY]
    environment = {"PACELINE_JOIN_TOKEN": JOIN_TOKEN}
    program = build.programs["paceline"]
    daemon = Daemon([*common, *flags], log_path=logs / "daemon.log", environment=environment, command=[program])
    workers: list[ScriptedWorker] = []
    try:
        for dp_rank in range(2):
            workers.append(_worker(build, daemon, dp_rank, logs))
        daemon.wait_line(lambda line: " ready " in line, limit_s=60, what="ready line")
        yield Api(daemon.address("http"), daemon.address("grpc"))
    finally:
        for process in (daemon, *workers):
            process.stop()


@pytest.fixture(scope="module")
def api(rust_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The server as it is without further flags."""
    yield from serve(rust_build, tmp_path_factory.mktemp("api"))


def _worker(build: Build, daemon: Daemon, dp_rank: int, logs: Path) -> ScriptedWorker:
    arguments = ["--vocab-size", str(VOCAB_SIZE), "--delay-ms", "5"]
    program = build.programs["paceline-scripted-worker"]
    log_path = logs / f"worker{dp_rank}.log"
    return ScriptedWorker(program, daemon, dp_rank, arguments, log_path=log_path, join_token=JOIN_TOKEN)

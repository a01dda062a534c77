"""A served fleet of scripted workers: the native daemon, real sockets, no torch."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.cargo import Build
from support.daemon import Daemon
from support.processes import ROOT

VOCAB_SIZE = 900
MODEL_LEN = 4096
# What the daemon checks flags against.
MODEL = {
    "max_position_embeddings": MODEL_LEN,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_nextn_predict_layers": 1,
}

StartFleet = Callable[..., Daemon]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a tokenizer and a configuration; nothing reads weights here."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(ROOT / "crates/text/tests/data/bytelevel", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **MODEL}))
    # Some tokenizers state a shorter length of their own.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("model_max_length", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def start_fleet(start_daemon: Callable[..., Daemon], rust_build: Build, tiny_model: Path) -> StartFleet:
    """A function that starts a daemon whose workers are scripted; `worker` is how they behave."""

    def start(*arguments: str, worker: str = "", ready: bool = True) -> Daemon:
        scripted = rust_build.programs["paceline-scripted-worker"]
        command = shlex.join([str(scripted), "--vocab-size", str(VOCAB_SIZE), *shlex.split(worker)])
        fixed = ["--skip-prepare", "--served-model-name", "tiny", "--worker-command", command]
        daemon = start_daemon(tiny_model, *fixed, *arguments, command=[rust_build.programs["paceline"]])
        return daemon.wait_ready(limit_s=30) if ready else daemon

    return start

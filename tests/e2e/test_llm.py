"""`paceline.LLM` as a script uses it: a private daemon from start to end, here with scripted workers."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM
from paceline.client import InvalidRequestError
from paceline.llm import StartError
from support.cargo import Build

from .conftest import VOCAB_SIZE

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


def settings(build: Build) -> dict[str, Any]:
    """Flags of a daemon whose workers are scripted."""
    command = shlex.join([str(build.programs["paceline-scripted-worker"]), "--vocab-size", str(VOCAB_SIZE)])
    return {"data_parallel_size": 2, "skip_prepare": True, "worker_command": command}


def test_prompts_chats_and_errors(rust_build: Build, tiny_model: Path) -> None:
    with LLM(str(tiny_model), **settings(rust_build)) as llm:
        answers = llm.generate([[300 + index, 301] for index in range(20)], **GREEDY)
        assert [len(answer.token_ids) for answer in answers] == [6] * 20
        assert llm.generate([305, 301], **GREEDY)[0].token_ids == answers[5].token_ids
        seeded = [llm.generate(["a", "b"], seed=3, max_tokens=6, progress=False) for _ in range(2)]
        assert [answer.text for answer in seeded[0]] == [answer.text for answer in seeded[1]]
        hello = [{"role": "user", "content": "hello"}]
        assert llm.chat(hello, **GREEDY)[0].text == llm.chat([hello, hello], **GREEDY)[1].text
        with pytest.raises(InvalidRequestError, match="top_p"):
            llm.generate("hello", top_p=7)
        process = llm._process
    assert process.returncode == 0


def test_a_daemon_that_does_not_come_up_says_why(tiny_model: Path) -> None:
    with pytest.raises(StartError, match="--max-num-seqs is 0"):
        LLM(str(tiny_model), max_num_seqs=0)


def test_the_end_of_the_script_ends_the_daemon(rust_build: Build, tiny_model: Path) -> None:
    script = f"from paceline import LLM; llm = LLM({str(tiny_model)!r}, **{settings(rust_build)!r}); print(llm._process.pid)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert not Path(f"/proc/{int(done.stdout)}").exists()

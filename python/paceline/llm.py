"""`LLM`: a model for scripts and notebooks, served by a private daemon on this machine.

from paceline import LLM

with LLM("Qwen/Qwen3-0.6B", data_parallel_size=2) as llm:
    for completion in llm.generate(["One, two,", "Red, green,"], max_tokens=16):
        print(completion.text)
"""

from __future__ import annotations

import atexit
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Self, cast

from tqdm import tqdm

from paceline.client import Client, Completion, Prompt

_ADDRESS = re.compile(r"\bgrpc=(\S+)")
_READY = re.compile(r"^paceline: ready\b")
# Lines of the daemon that are kept, to say why it ended.
_KEPT_LINES = 40
_STOP_LIMIT_S = 30


class StartError(RuntimeError):
    """The private daemon did not come up; the message has its last lines."""


class LLM:
    """A served model. Close it, or leave its `with` block, to stop the daemon; the interpreter's exit stops it too."""

    def __init__(
        self, model: str | None = None, *, concurrency: int = 64, start_limit_s: float = 1800, quiet: bool = True, **settings: Any
    ) -> None:
        """Start a daemon for `model` (none: the built-in demo) and wait until every rank is ready.

        `settings` are the flags of `paceline serve` with underscores: `data_parallel_size=2`, `dtype="float32"`,
        `enforce_eager=True`. At most `concurrency` prompts are under way at once. With `quiet`, what the daemon prints is
        shown only when it fails. Raises `StartError`.
        """
        self._concurrency = concurrency
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._quiet = quiet
        self._address = ""
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline", "serve", *_arguments(model, settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        atexit.register(self.close)
        self._reader = threading.Thread(target=self._read_lines, name="paceline-lines", daemon=True)
        self._reader.start()
        self._ready.wait(start_limit_s)
        if not self._address or self._process.poll() is not None:
            self.close()
            raise StartError("the daemon did not come up:\n" + "\n".join(self._lines))
        self._client = Client(self._address)

    def generate(self, prompts: Prompt | Sequence[Prompt], *, progress: bool = True, **options: Any) -> list[Completion]:
        """Continue every prompt, a text or token ids each; the answers are in the order of the prompts.

        One prompt alone is taken as well. `options` are those of `paceline.client.GenerationOptions`; a `seed` is that of
        the first prompt, each further one has the next. Raises a `paceline.client.PacelineError`.
        """
        return self._ask(_as_list(prompts), progress, options)

    def chat(
        self,
        conversations: Sequence[Mapping[str, str]] | Sequence[Sequence[Mapping[str, str]]],
        *,
        progress: bool = True,
        **options: Any,
    ) -> list[Completion]:
        """Answer every conversation, a list of messages each; one conversation alone is taken as well."""
        is_one = bool(conversations) and isinstance(conversations[0], Mapping)
        wanted = [conversations] if is_one else list(conversations)
        return self._ask(cast(list[Prompt], wanted), progress, options)

    def _ask(self, prompts: list[Prompt], progress: bool, options: dict[str, Any]) -> list[Completion]:
        seed = options.pop("seed", None)

        def one(item: tuple[int, Prompt]) -> Completion:
            index, prompt = item
            own_seed = None if seed is None else seed + index
            return self._client.generate(prompt, seed=own_seed, **options)

        with ThreadPoolExecutor(max(1, min(self._concurrency, len(prompts)))) as pool:
            answers = pool.map(one, enumerate(prompts))
            bar = tqdm(answers, total=len(prompts), unit="prompt", disable=None if progress else True)
            return list(bar)

    def close(self) -> None:
        """Stop the daemon and wait for its end."""
        atexit.unregister(self.close)
        if hasattr(self, "_client"):
            self._client.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        # Workers that outlive the daemon for a moment hold the other end of the pipe.
        self._reader.join(_STOP_LIMIT_S)
        cast(IO[str], self._process.stdout).close()

    def __enter__(self) -> Self:
        """It is ready already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _read_lines(self) -> None:
        """Body of the thread that reads what the daemon prints; without one the daemon would wait for a reader."""
        for line in cast(IO[str], self._process.stdout):
            text = line.rstrip("\n")
            self._lines.append(text)
            if not self._quiet:
                print(text, file=sys.stderr, flush=True)
            if found := _ADDRESS.search(text):
                self._address = self._address or found.group(1)
            if _READY.match(text):
                self._ready.set()
        self._process.wait()
        self._ready.set()


def _arguments(model: str | None, settings: Mapping[str, Any]) -> list[str]:
    arguments = [] if model is None else [str(model)]
    for name, value in {"port": 0, "grpc_port": 0, **settings}.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments.append(f"{flag}={str(value).lower()}")
        else:
            arguments += [flag, str(value)]
    return arguments


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    is_one = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
    return cast(list[Prompt], [prompts] if is_one else list(prompts))

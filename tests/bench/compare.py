"""Paceline beside the servers that one would take instead: the same prompts, one server after another on one machine.

`PYTHONPATH=tests python -m bench.compare --vllm PROGRAM --llama-server PROGRAM --gguf FILE --transformers PROGRAM` with
`paceline` installed in that Python. A server that no flag names is left out, and the table says so.
"""

import argparse
import asyncio
import os
import socket
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.client import Client, Load, Prompt
from bench.load import OUTPUT_TOKENS, PROMPT_TOKENS, prompts
from bench.report import heading, percentile, print_table
from support.daemon import Daemon
from support.demo import demo_folder
from support.logged import LoggedProcess

READY_LIMIT_S = 600
NAME = "bench"


@dataclass(frozen=True)
class Server:
    """One server to be measured; ports are added to `command`."""

    name: str
    # Rows of one family are compared with ours of the same number of ranks.
    dp: int
    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    ignores_eos: bool = True
    takes_ids: bool = True

    @property
    def is_ours(self) -> bool:
        return self.command[0] == "paceline"


@dataclass(frozen=True)
class Figures:
    """Medians over the runs of one server at one concurrency."""

    tokens_per_s: float
    spread: tuple[float, float]
    ttft_ms: float
    itl_ms: float


def servers(options: argparse.Namespace, model: Path) -> list[Server]:
    """What the flags name, ours first."""
    drafts = '{"method": "ngram", "num_speculative_tokens": 3}'
    chosen = [Server(f"paceline, dp {dp}", dp, ("paceline", model, "-dp", str(dp))) for dp in (1, 2)]
    chosen += [
        Server(f"paceline, dp {dp}, n-gram drafts", dp, ("paceline", model, "-dp", str(dp), "--speculative-config", drafts))
        for dp in (1, 2)
    ]
    if options.vllm:
        base = [options.vllm, "serve", model, "--served-model-name", NAME, "--dtype", "bfloat16", "--max-model-len", "2048"]
        setting = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", **_preload(options.preload)}
        chosen.append(Server("vLLM", 1, base, setting))
        cores = "|".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])
        chosen.append(Server("vLLM, dp 2", 2, [*base, "-dp", "2"], {**setting, "VLLM_CPU_OMP_THREADS_BIND": cores}))
    if options.llama_server:
        threads = str(len(os.sched_getaffinity(0)))
        command = [options.llama_server, "-m", options.gguf, "-np", "32", "-c", "8192", "-t", threads, "-tb", threads, "--no-ui"]
        chosen.append(Server("llama.cpp", 1, command))
    if options.transformers:
        command = [options.transformers, "serve", model, "--continuous-batching", "--device", "cpu", "--dtype", "bfloat16"]
        chosen.append(Server("transformers", 1, command, {"HF_HUB_OFFLINE": "1"}, ignores_eos=False, takes_ids=False))
    return chosen


def _preload(libraries: Sequence[str]) -> dict[str, str]:
    return {"LD_PRELOAD": ":".join(libraries)} if libraries else {}


class Peer(LoggedProcess):
    """A server of others on a port of its own."""

    def __init__(self, server: Server, log_path: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = [*server.command, "--host", "127.0.0.1", "--port", str(self.port)]
        super().__init__(server.name, command, log_path=log_path, environment=server.environment)

    def stop(self, *, limit_s: float = 20) -> int:
        """Ends it. Processes that it leaves behind are killed, and are no reason to lose what was measured."""
        try:
            return super().stop(limit_s=limit_s)
        except AssertionError:
            return self.process.returncode or 0

    def wait_ready(self) -> None:
        """Waits until its models are listed."""
        deadline_s = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: " + " / ".join(self.lines[-5:]))
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5):
                    return
            except (urllib.error.URLError, TimeoutError):
                time.sleep(0.5)
        raise RuntimeError(f"{self.name} was not ready in {READY_LIMIT_S} s")


def measure(server: Server, model: Path, options: argparse.Namespace, folder: Path) -> tuple[float, dict[int, Figures]]:
    """Seconds from the command to ready, and figures by concurrency."""
    log_path = folder / f"{server.name}.log"
    began_s = time.perf_counter()
    process: LoggedProcess
    if server.is_ours:
        arguments = [*server.command[1:], "--dtype", "bfloat16", "--served-model-name", NAME]
        process = daemon = Daemon(arguments, log_path=log_path)
    else:
        process = peer = Peer(server, log_path)
    try:
        if server.is_ours:
            daemon.wait_ready(limit_s=READY_LIMIT_S)
            address, name = daemon.address("http"), NAME
        else:
            peer.wait_ready()
            address, name = f"127.0.0.1:{peer.port}", NAME if server.takes_ids else str(model)
        ready_s = time.perf_counter() - began_s
        client = Client(address, name, OUTPUT_TOKENS, ignores_eos=server.ignores_eos)
        return ready_s, asyncio.run(_figures(client, server, options))
    finally:
        process.stop(limit_s=60)


async def _figures(client: Client, server: Server, options: argparse.Namespace) -> dict[int, Figures]:
    found = {}
    # No prompt is seen twice by a server, so that no prefix cache answers.
    count = 4 + sum(options.runs * max(options.requests_min, options.rounds * each) for each in options.concurrency)
    drawn = prompts(count)
    waiting: Iterator[Prompt] = iter(drawn if server.takes_ids else _texts(drawn))
    await client.load([next(waiting) for _ in range(4)], 2)
    for concurrency in options.concurrency:
        loads: list[Load] = []
        for _ in range(options.runs):
            requests = max(options.requests_min, options.rounds * concurrency)
            loads.append(await client.load([next(waiting) for _ in range(requests)], concurrency))
        rates = [load.tokens_per_s for load in loads]
        answers = [answer for load in loads for answer in load.answers if answer.chunk_s]
        gaps = [gap for answer in answers for gap in answer.gaps_s]
        found[concurrency] = Figures(
            statistics.median(rates),
            (min(rates), max(rates)),
            percentile([answer.ttft_s for answer in answers], 50) * 1e3,
            percentile(gaps, 50) * 1e3,
        )
    return found


def _texts(token_prompts: list[list[int]]) -> list[str]:
    """Prompts of about as many tokens for a server that takes text only: short words, one token each."""
    words = ("the", "of", "and", "to", "in", "a", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his", "they")
    return [" ".join(words[token % len(words)] for token in prompt) for prompt in token_prompts]


def rows(chosen: Sequence[Server], model: Path, options: argparse.Namespace, folder: Path) -> Iterator[list[object]]:
    """A row for each server and concurrency; beside it what ours with as many ranks and no drafts gives, by theirs."""
    ours: dict[tuple[int, int], float] = {}
    for server in chosen:
        try:
            ready_s, figures = measure(server, model, options, folder)
        except (RuntimeError, OSError, AssertionError) as error:
            yield [server.name, "-", f"failed: {' '.join(str(error).split())[:200]}", "-", "-", "-", "-"]
            continue
        for concurrency, found in figures.items():
            ratio = "-"
            if server.is_ours:
                ours.setdefault((server.dp, concurrency), found.tokens_per_s)
            elif mine := ours.get((server.dp, concurrency)):
                ratio = f"{mine / found.tokens_per_s:.2f}"
            low, high = found.spread
            rate = f"{found.tokens_per_s:.1f} [{low:.1f}-{high:.1f}]"
            yield [server.name, concurrency, rate, f"{found.ttft_ms:.0f}", f"{found.itl_ms:.1f}", ratio, f"{ready_s:.1f}"]


HEADER = ["server", "concurrency", "output tok/s, median [range]", "TTFT ms", "ITL ms", "paceline / this", "command to ready, s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: the demo's)")
    parser.add_argument("--vllm", type=Path, help="the program `vllm` of an environment with vllm-cpu")
    parser.add_argument("--preload", nargs="*", default=[], help="libraries that vLLM is started with")
    parser.add_argument("--llama-server", type=Path, help="the program `llama-server`")
    parser.add_argument("--gguf", type=Path, help="the same model in bfloat16, for llama-server")
    parser.add_argument("--transformers", type=Path, help="the program `transformers` of an environment")
    parser.add_argument("--only", nargs="*", default=[], help="names of servers that are measured (default: all)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="calls at once (default: 1 8 32)")
    parser.add_argument("--rounds", type=int, default=2, help="requests for each call at once (default: 2)")
    parser.add_argument("--requests-min", type=int, default=4, help="requests at least (default: 4)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each load (default: 3)")
    options = parser.parse_args()
    if bool(options.llama_server) != bool(options.gguf):
        parser.error("--llama-server and --gguf go together")
    model = options.model or demo_folder()
    chosen = [server for server in servers(options, model) if not options.only or server.name in options.only]
    print(heading())
    what = f"{PROMPT_TOKENS} random token ids in, {OUTPUT_TOKENS} out, greedy, bfloat16, {model.name}"
    print(f"{what}; {options.runs} runs of each load.")
    missing = [name for name in ("vllm", "llama_server", "transformers") if not getattr(options, name)]
    print(f"Not measured here: {', '.join(missing).replace('_', '-') or 'none'}.\n")
    with tempfile.TemporaryDirectory() as folder:
        print_table(HEADER, rows(chosen, model, options, Path(folder)))


if __name__ == "__main__":
    main()

"""What a client sees of a real model: output tokens per second, time to first token, inter-token latency, start-up.

`PYTHONPATH=tests python -m bench.load` with `paceline` installed in that Python; serves the demo model unless given another.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.client import Client
from bench.report import heading, percentile, print_table
from support.daemon import Daemon
from support.demo import demo_folder

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
TOKEN_IDS = range(1_000, 40_000)
"""Ordinary words of the demo's vocabulary."""


def prompts(count: int) -> list[list[int]]:
    """Random token ids, the same in every run, no two prompts alike."""
    source = random.Random(7)
    return [[source.choice(TOKEN_IDS) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def start(options: argparse.Namespace, model: Path, dp: int, log_path: Path) -> Daemon:
    # Prompts come again at every concurrency: what is measured is computing them.
    arguments = [str(model), "-dp", str(dp), "--dtype", options.dtype, "--served-model-name", "bench"]
    arguments += ["--no-enable-prefix-caching", *options.serve]
    return Daemon(arguments, log_path=log_path)


def startup_s(options: argparse.Namespace, model: Path, dp: int, folder: Path) -> float:
    """From the command to the first token, files in the page cache."""
    began_s = time.perf_counter()
    daemon = start(options, model, dp, folder / "startup.log")
    try:
        daemon.wait_ready(limit_s=300)
        answer = asyncio.run(Client(daemon.address("http"), "bench", 1).complete([1_000]))
        return answer.sent_s + answer.ttft_s - began_s
    finally:
        daemon.stop()


def ms(values: list[float]) -> str:
    return f"{percentile(values, 50) * 1e3:.1f} / {percentile(values, 99) * 1e3:.1f}"


def measure(options: argparse.Namespace, model: Path, folder: Path) -> Iterator[list[object]]:
    """A row for each number of ranks and each concurrency."""
    for dp in options.dp:
        startups = [startup_s(options, model, dp, folder) for _ in range(options.startups)]
        if startups:
            yield [dp, "-", "-", "-", "-", "-", " ".join(f"{value:.2f}" for value in startups)]
        daemon = start(options, model, dp, folder / f"dp{dp}.log")
        try:
            daemon.wait_ready(limit_s=300)
            client = Client(daemon.address("http"), "bench", OUTPUT_TOKENS)
            # Every rank's first steps are slower than the rest.
            asyncio.run(client.load(prompts(2 * dp), 2 * dp))
            for concurrency in options.concurrency:
                count = max(options.requests_min, options.rounds * concurrency)
                load = asyncio.run(client.load(prompts(count), concurrency))
                ttft = [answer.ttft_s for answer in load.answers]
                gaps = [gap for answer in load.answers for gap in answer.gaps_s]
                yield [dp, concurrency, count, f"{load.tokens_per_s:.1f}", ms(ttft), ms(gaps), "-"]
        finally:
            daemon.stop()


HEADER = [
    "dp",
    "concurrency",
    "requests",
    "output tok/s",
    "TTFT ms, median / p99",
    "ITL ms, median / p99",
    "command to first token, s",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: the demo's)")
    parser.add_argument("--dp", type=int, nargs="+", default=[1, 2], help="data-parallel ranks (default: 1 2)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="calls at once (default: 1 8 32)")
    parser.add_argument("--rounds", type=int, default=2, help="requests for each call at once (default: 2)")
    parser.add_argument("--requests-min", type=int, default=8, help="requests at least (default: 8)")
    parser.add_argument("--startups", type=int, default=3, help="starts that are timed (default: 3)")
    parser.add_argument("--dtype", default="bfloat16", help="type of weights and KV cache (default: bfloat16)")
    parser.add_argument("serve", nargs="*", help="more arguments of `paceline serve`, after --")
    options = parser.parse_args()
    model = options.model or demo_folder()
    print(heading())
    print(f"{PROMPT_TOKENS} random token ids in, {OUTPUT_TOKENS} out, `ignore_eos`, greedy, {options.dtype}, {model.name}.\n")
    with tempfile.TemporaryDirectory() as folder:
        print_table(HEADER, measure(options, model, Path(folder)))


if __name__ == "__main__":
    main()

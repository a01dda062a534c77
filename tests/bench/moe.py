"""The mixture-of-experts demo by number of drafts: output tokens per second, acceptance by position, tokens per step.

`PYTHONPATH=tests python -m bench.moe` with `paceline` and its `test` extra installed in that Python. Held-out questions,
greedy and at temperature 0.8, on ranks coupled by the expert exchange. With two ranks, one call keeps one of them busy and
two keep both: the step, which is the time between two chunks of a text, should take as long.
"""

import argparse
import asyncio
import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.client import Client
from bench.report import heading, percentile, print_table
from support.daemon import Daemon

HELD_OUT = Path(__file__).parents[1] / "data" / "text" / "gsm8k_test.jsonl"
OUTPUT_TOKENS = 64


def prompts(count: int) -> list[str]:
    """Held-out questions as the model was trained to see them."""
    lines = HELD_OUT.read_text().splitlines()[:count]
    return [f"Question: {json.loads(line)['question']}\nAnswer:" for line in lines]


def start(dp: int, k: int, options: argparse.Namespace, log_path: Path) -> Daemon:
    drafts = json.dumps({"method": "mtp", "num_speculative_tokens": k}) if k else "none"
    arguments = ["--demo", "moe", "-dp", str(dp), "--speculative-config", drafts, "--served-model-name", "bench"]
    # Prompts come again at every concurrency: what is measured is computing them.
    return Daemon([*arguments, "--no-enable-prefix-caching", *options.serve], log_path=log_path)


def samples(daemon: Daemon) -> dict[str, float]:
    """Every sample of /metrics, summed over ranks; a position keeps its own sum."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=10) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("#"):
                continue
            name, _, value = line.rpartition(" ")
            base, _, labels = name.partition("{")
            at = labels.partition('position="')[2].partition('"')[0]
            key = f"{base}@{at}" if at else base
            found[key] = found.get(key, 0.0) + float(value)
    return found


def acceptance(before: dict[str, float], after: dict[str, float], k: int) -> str:
    """Accepted by drafted at each position, in percent."""

    def gained(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    parts = []
    for position in range(k):
        drafted = gained(f"paceline_draft_tokens_per_position_total@{position}")
        accepted = gained(f"paceline_accepted_tokens_per_position_total@{position}")
        parts.append(f"{100 * accepted / drafted:.0f}%" if drafted else "-")
    return " ".join(parts) or "-"


def measure(options: argparse.Namespace, folder: Path) -> Iterator[list[object]]:
    """A row for each number of ranks, of drafts, temperature and concurrency."""
    questions = prompts(options.requests)
    for dp in options.dp:
        for k in options.k:
            began_s = time.perf_counter()
            daemon = start(dp, k, options, folder / f"dp{dp}k{k}.log")
            try:
                daemon.wait_ready(limit_s=300)
                ready_s = time.perf_counter() - began_s
                for temperature in options.temperature:
                    client = Client(daemon.address("http"), "bench", OUTPUT_TOKENS, temperature)
                    asyncio.run(client.load(questions[: 2 * dp], 2 * dp))
                    for concurrency in options.concurrency:
                        before = samples(daemon)
                        load = asyncio.run(client.load(questions, concurrency))
                        after = samples(daemon)
                        steps = after["paceline_steps_total"] - before["paceline_steps_total"]
                        accepted = after["paceline_accepted_tokens_total"] - before["paceline_accepted_tokens_total"]
                        # A request's first token comes from its prompt row, each other one from a draft or one a row.
                        decoded = sum(answer.tokens - 1 for answer in load.answers)
                        gap_ms = percentile([gap for answer in load.answers for gap in answer.gaps_s], 50) * 1e3
                        ttft_ms = percentile([answer.ttft_s for answer in load.answers], 50) * 1e3
                        yield [
                            dp,
                            k,
                            temperature,
                            concurrency,
                            f"{load.tokens_per_s:.1f}",
                            f"{ttft_ms:.1f}",
                            f"{gap_ms:.1f}",
                            f"{decoded / steps:.2f}",
                            f"{decoded / (decoded - accepted):.2f}",
                            acceptance(before, after, k),
                            f"{ready_s:.2f}",
                        ]
            finally:
                daemon.stop()


HEADER = [
    "dp",
    "k",
    "temperature",
    "concurrency",
    "output tok/s",
    "TTFT ms, median",
    "step ms, median",
    "tokens per step",
    "tokens per decode row",
    "accepted by position",
    "command to ready, s",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dp", type=int, nargs="+", default=[1, 2], help="data-parallel ranks (default: 1 2)")
    parser.add_argument("--k", type=int, nargs="+", default=[0, 1, 2, 3], help="drafts (default: 0 1 2 3)")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8], help="(default: 0 0.8)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 8], help="calls at once (default: 1 2 8)")
    parser.add_argument("--requests", type=int, default=50, help="requests of each row (default: 50)")
    parser.add_argument("serve", nargs="*", help="more arguments of `paceline serve`, after --")
    options = parser.parse_args()
    print(heading())
    print(f"{options.requests} held-out questions, {OUTPUT_TOKENS} tokens out, `ignore_eos`, the model in its own type.\n")
    with tempfile.TemporaryDirectory() as folder:
        print_table(HEADER, measure(options, Path(folder)))


if __name__ == "__main__":
    main()

"""Every pair of ranks and drafts on the real model: `python tests/parity/sweep.py`. Too many starts for every test run.

dp 2 and 4, k 0 to 7, lockstep on, TRTLLM's contract: the same greedy text for every pair, no refusal, and equal numbers
of passes on all ranks (each worker compares every pass with its peers before it runs it). Prints one line a pair.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.daemon import Daemon
from support.demo import demo_folder

REQUESTS = 24
CONCURRENCY = 8


def requests() -> list[dict[str, object]]:
    """Random prompts that repeat themselves here and there, so that prompt lookup finds drafts."""
    chance = random.Random(0)
    made: list[dict[str, object]] = []
    for _ in range(REQUESTS):
        phrase = [chance.randrange(100, 20_000) for _ in range(chance.randrange(1, 12))]
        prompt = phrase * chance.randrange(1, 8)
        made.append({"prompt": prompt, "max_tokens": chance.randrange(1, 24), "temperature": 0, "ignore_eos": True})
    return made


def complete(url: str, body: dict[str, object]) -> str:
    """The text of one completion."""
    call = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(call, timeout=240) as response:
        return str(json.load(response)["choices"][0]["text"])


def metrics(url: str) -> dict[str, float]:
    """All samples of /metrics, summed over their labels."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        for line in response.read().decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                base = name.split("{")[0]
                found[base] = found.get(base, 0.0) + float(value)
    return found


def run_pair(folder: Path, dp_size: int, k: int, log_path: Path) -> tuple[list[str], dict[str, float]]:
    """The texts and the metrics of one pair."""
    arguments: list[str | Path] = [folder, "-dp", str(dp_size), "--lockstep", "on", "--attention-contract", "trtllm"]
    arguments += ["--dtype", "float32", "--max-model-len", "512", "--max-num-batched-tokens", "64", "--max-num-seqs", "8"]
    if k:
        arguments += ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": k})]
    daemon = Daemon(arguments, log_path=log_path)
    try:
        daemon.wait_ready(limit_s=240)
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            texts = list(pool.map(lambda body: complete(daemon.url, body), requests()))
        return texts, metrics(daemon.url)
    finally:
        daemon.stop()


def main() -> int:
    """Run all pairs; 1 if any differs or was refused."""
    folder = demo_folder()
    first: list[str] | None = None
    failed = False
    with tempfile.TemporaryDirectory() as logs:
        for dp_size in (2, 4):
            for k in range(8):
                started = time.monotonic()
                texts, seen = run_pair(folder, dp_size, k, Path(logs) / f"dp{dp_size}_k{k}.log")
                first = first or texts
                is_equal = texts == first
                refused = int(seen["paceline_refused_plans_total"])
                failed |= not is_equal or refused > 0
                print(
                    f"dp {dp_size} k {k}: text {'equal' if is_equal else 'DIFFERS'}, {int(seen['paceline_steps_total'])} steps, "
                    f"{refused} refused, drafts {int(seen['paceline_draft_tokens_total'])} "
                    f"accepted {int(seen['paceline_accepted_tokens_total'])}, {time.monotonic() - started:.0f} s",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

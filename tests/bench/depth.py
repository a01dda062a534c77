"""What planning one step ahead hides: output tokens per second and time per step at depth 0 and at depth 1, in one run.

`PYTHONPATH=tests python -m bench.depth` with `paceline` installed in that Python. Both daemons of a row stand side by side, an
idle one runs nothing, and short loads go to them in turns, so that a busy machine is as busy for both. Medians over the turns;
the gain is that of two loads that follow each other.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.client import Client
from bench.report import heading, print_table
from bench.step_cost import tiny_model
from support.daemon import Daemon

DEPTHS = (0, 1)
PROMPT_TOKENS = 16
STEPS = "paceline_steps_total "


@dataclass(frozen=True)
class Case:
    """A model, and how it is served. `tokens` are those of a request."""

    name: str
    arguments: list[str]
    tokens: int


def cases(folder: Path, names: list[str]) -> Iterator[Case]:
    """The models by name; k is 0 but for `moe`, which has its own draft as well."""
    if "tiny" in names:
        yield Case("tiny random Llama", [str(tiny_model(folder / "tiny"))], 150)
    if "moe" in names:
        yield Case("moe demo, k 0", ["--demo", "moe", "--speculative-config", "none"], 50)
        drafts = json.dumps({"method": "mtp", "num_speculative_tokens": 2})
        yield Case("moe demo, k 2", ["--demo", "moe", "--speculative-config", drafts], 50)
    if "smollm2" in names:
        yield Case("SmolLM2-135M", ["--demo", "smollm2", "--dtype", "bfloat16"], 16)


def steps(daemon: Daemon) -> int:
    """Steps of all groups so far."""
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return next(int(float(line.removeprefix(STEPS))) for line in lines if line.startswith(STEPS))


@dataclass
class Turns:
    """What one daemon did, turn by turn."""

    tokens_per_s: list[float]
    step_us: list[float]

    def take(self, daemon: Daemon, client: Client, concurrency: int, groups: int) -> None:
        """One load; `groups` step at the same time."""
        before = steps(daemon)
        prompts = [[1 + (7 * index + place) % 60 for place in range(PROMPT_TOKENS)] for index in range(concurrency)]
        load = asyncio.run(client.load(prompts, concurrency, stream=False))
        self.tokens_per_s.append(load.tokens_per_s)
        self.step_us.append(1e6 * load.wall_s * groups / (steps(daemon) - before))


def measure(options: argparse.Namespace, folder: Path) -> Iterator[list[object]]:
    """A row for each model, number of ranks and concurrency."""
    for case in cases(folder, options.models):
        for dp in options.dp:
            with ExitStack() as stack:
                daemons = []
                for depth in DEPTHS:
                    arguments = [*case.arguments, "-dp", str(dp), "--served-model-name", "bench"]
                    arguments += ["--scheduling-depth", str(depth), "--no-enable-prefix-caching"]
                    daemon = Daemon(arguments, log_path=folder / f"{case.name} {dp} {depth}.log")
                    stack.callback(daemon.stop)
                    daemons.append(daemon.wait_ready(limit_s=300))
                clients = [Client(daemon.address("http"), "bench", case.tokens) for daemon in daemons]
                # Ranks of a mixture step together, those of a dense model on their own.
                groups = 1 if "moe" in case.name else dp
                for client in clients:
                    asyncio.run(client.load([[1, 2, 3]] * 2 * dp, 2 * dp, stream=False))
                for rows in options.rows:
                    turns = [Turns([], []) for _ in DEPTHS]
                    for _ in range(options.turns):
                        for daemon, client, taken in zip(daemons, clients, turns, strict=True):
                            taken.take(daemon, client, rows * dp, groups)
                    rates = [statistics.median(taken.tokens_per_s) for taken in turns]
                    times = [statistics.median(taken.step_us) for taken in turns]
                    ratios = [ahead / waiting for waiting, ahead in zip(*(taken.tokens_per_s for taken in turns), strict=True)]
                    gain = f"{100 * (statistics.median(ratios) - 1):+.1f}%"
                    yield [case.name, dp, rows, *(f"{rate:.0f}" for rate in rates), gain, *(f"{us:.0f}" for us in times)]


HEADER = ["model", "dp", "rows per rank", "tok/s, depth 0", "tok/s, depth 1", "gain", "us a step, depth 0", "us a step, depth 1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = ["tiny", "moe", "smollm2"]
    parser.add_argument("--models", nargs="+", choices=known, default=known, help="(default: all of them)")
    parser.add_argument("--dp", type=int, nargs="+", default=[1, 2], help="data-parallel ranks (default: 1 2)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="requests at once, per rank (default: 1 8)")
    parser.add_argument("--turns", type=int, default=15, help="loads on each daemon (default: 15)")
    options = parser.parse_args()
    print(heading())
    print(f"{PROMPT_TOKENS} tokens in, `ignore_eos`, greedy; medians of {options.turns} turns.\n")
    with tempfile.TemporaryDirectory() as folder:
        print_table(HEADER, measure(options, Path(folder)))


if __name__ == "__main__":
    main()

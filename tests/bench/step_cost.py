"""What a step costs outside the model: plan, encode, wire, the worker's decode and checks, fill, sampling, reply and commit.

`PYTHONPATH=tests python -m bench.step_cost` with `paceline` installed in that Python. The real daemon and real workers serve a tiny
random model; the parts are those of `paceline_step_part_seconds`, over the latest 1,024 steps, all of them decode steps. At depth 1
what the daemon does lies beside the model of the step before, and the wire is what a worker's reply is late beyond its own parts.
"""

import argparse
import asyncio
import itertools
import re
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.client import Client
from bench.report import heading, print_table
from parity.checkpoints import VOCABULARY, make_checkpoint
from support.daemon import Daemon

PARTS = ["plan", "encode", "wire", "worker_decode", "worker_fill", "worker_sample", "commit"]
# Those that a worker's next model waits for when the plan has come before.
NOT_HIDDEN = ["wire", "worker_decode", "worker_fill", "worker_sample"]
MODEL = "worker_forward"
SERIES = re.compile(r'^paceline_step_part_seconds\{part="(\w+)",quantile="([\d.]+)"\} (\S+)$', re.MULTILINE)
STEPS_REMEMBERED = 1_024
STEPS = re.compile(r"^paceline_steps_total (\S+)$", re.MULTILINE)


def tiny_model(folder: Path) -> Path:
    """A random Llama of one layer."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 2_048}
    make_checkpoint(folder, **shape)
    return folder


def metrics(daemon: Daemon) -> str:
    """The daemon's page of metrics."""
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


def parts_us(text: str) -> dict[str, tuple[float, float]]:
    """Median and p99 of every part, microseconds."""
    values = {(part, quantile): float(value) * 1e6 for part, quantile, value in SERIES.findall(text)}
    return {part: (values[part, "0.5"], values[part, "0.99"]) for part in [*PARTS, MODEL]}


def steps(text: str) -> float:
    """Steps of all groups so far."""
    return float(STEPS.findall(text)[0])


def measure_one(options: argparse.Namespace, model: Path, log: Path, case: tuple[int, int, int]) -> list[object]:
    """The row of the table for ranks, rows on each and depth: a daemon of its own, whose remembered steps are those of one load."""
    dp, rows, depth = case
    arguments = [str(model), "-dp", str(dp), "--max-num-seqs", str(max(options.rows)), "--served-model-name", "tiny"]
    daemon = Daemon([*arguments, "--scheduling-depth", str(depth), *options.serve], log_path=log)
    try:
        daemon.wait_ready(limit_s=120)
        client = Client(daemon.address("http"), "tiny", options.tokens)
        count = rows * dp
        prompts = [[1 + (7 * index + place) % (VOCABULARY - 1) for place in range(16)] for index in range(count)]
        before = steps(metrics(daemon))
        load = asyncio.run(client.load(prompts, count, stream=False))
        text = metrics(daemon)
    finally:
        daemon.stop()
    spreads = parts_us(text)
    outside = [sum(spreads[part][place] for part in PARTS) for place in (0, 1)]
    cells = [spreads[part] for part in PARTS] + [tuple(outside), spreads[MODEL]]
    # The ranks of a dense model step on their own, at the same time.
    step_us = 1e6 * load.wall_s * dp / (steps(text) - before)
    shown = [f"{median:.0f} / {p99:.0f}" for median, p99 in cells]
    visible = sum(spreads[part][0] for part in (PARTS if depth == 0 else NOT_HIDDEN))
    return [dp, rows, depth, *shown, f"{visible:.0f}", f"{step_us:.0f}"]


def measure(options: argparse.Namespace, folder: Path) -> Iterator[list[object]]:
    model = tiny_model(folder / "tiny")
    for case in itertools.product(options.dp, options.rows, options.depth):
        yield measure_one(options, model, folder / f"{case}.log", case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dp", type=int, nargs="+", default=[1, 2, 4], help="data-parallel ranks (default: 1 2 4)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64], help="rows on each rank (default: 1 8 64)")
    parser.add_argument("--depth", type=int, nargs="+", default=[0, 1], help="steps planned ahead (default: 0 1)")
    parser.add_argument("--tokens", type=int, default=STEPS_REMEMBERED + 276, help="output tokens of a request (default: 1300)")
    parser.add_argument("serve", nargs="*", help="more arguments of `paceline serve`, after --")
    options = parser.parse_args()
    print(heading())
    print(
        "Decode steps, microseconds, median / p99 of each part. The sums are sums of medians and of p99s. Visible are the medians"
    )
    print("that no model runs beside: all parts at depth 0, those of the wire and the worker at depth 1. Step to step is a mean.\n")
    header = ["dp", "rows per rank", "depth", *(part.replace("_", " ") for part in PARTS)]
    header += ["outside the model", "the tiny model", "visible", "step to step"]
    with tempfile.TemporaryDirectory() as folder:
        print_table(header, measure(options, Path(folder)))


if __name__ == "__main__":
    main()

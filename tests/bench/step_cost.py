"""What a step costs outside the model: plan, encode, wire, the worker's decode and checks, fill, sampling, reply and commit.

`PYTHONPATH=tests python -m bench.step_cost` with `paceline` installed in that Python. The real daemon and real workers serve a tiny
random model; the parts are those of `paceline_step_part_seconds`, over the latest 1,024 steps, all of them decode steps.
"""

import argparse
import asyncio
import re
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.client import Client
from bench.report import heading, print_table
from parity.checkpoints import VOCABULARY, make_checkpoint
from support.daemon import Daemon

ROWS_MOST = 64
PARTS = ["plan", "encode", "wire", "worker_decode", "worker_fill", "worker_sample", "commit"]
MODEL = "worker_forward"
SERIES = re.compile(r'^paceline_step_part_seconds\{part="(\w+)",quantile="([\d.]+)"\} (\S+)$', re.MULTILINE)
STEPS_REMEMBERED = 1_024


def tiny_model(folder: Path) -> Path:
    """A random Llama of one layer."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "max_position_embeddings": 2_048}
    make_checkpoint(folder, **shape)
    return folder


def parts_us(daemon: Daemon) -> dict[str, tuple[float, float]]:
    """Median and p99 of every part, microseconds."""
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=10) as response:
        values = {(part, quantile): float(value) * 1e6 for part, quantile, value in SERIES.findall(response.read().decode())}
    return {part: (values[part, "0.5"], values[part, "0.99"]) for part in [*PARTS, MODEL]}


def measure(options: argparse.Namespace, folder: Path) -> Iterator[list[object]]:
    model = tiny_model(folder / "tiny")
    for rows in options.rows:
        # A daemon each, so that the remembered steps are those of one load.
        arguments = [str(model), "-dp", str(options.dp), "--max-num-seqs", str(ROWS_MOST), "--served-model-name", "tiny"]
        daemon = Daemon([*arguments, *options.serve], log_path=folder / f"rows{rows}.log")
        try:
            daemon.wait_ready(limit_s=120)
            client = Client(daemon.address("http"), "tiny", options.tokens)
            count = rows * options.dp
            prompts = [[1 + (7 * index + place) % (VOCABULARY - 1) for place in range(16)] for index in range(count)]
            asyncio.run(client.load(prompts, count, stream=False))
            spreads = parts_us(daemon)
        finally:
            daemon.stop()
        outside = [sum(spreads[part][place] for part in PARTS) for place in (0, 1)]
        cells = [spreads[part] for part in PARTS] + [tuple(outside), spreads[MODEL]]
        yield [rows, *(f"{median:.0f} / {p99:.0f}" for median, p99 in cells)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dp", type=int, default=2, help="data-parallel ranks (default: 2)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, ROWS_MOST], help="rows on each rank (default: 1 8 64)")
    parser.add_argument("--tokens", type=int, default=STEPS_REMEMBERED + 276, help="output tokens of a request (default: 1300)")
    parser.add_argument("serve", nargs="*", help="more arguments of `paceline serve`, after --")
    options = parser.parse_args()
    print(heading())
    print(f"dp {options.dp}, decode steps, microseconds, median / p99 of each part. The sums are sums of medians and of p99s.\n")
    header = ["rows per rank", *(part.replace("_", " ") for part in PARTS), "outside the model", "the tiny model"]
    with tempfile.TemporaryDirectory() as folder:
        print_table(header, measure(options, Path(folder)))


if __name__ == "__main__":
    main()

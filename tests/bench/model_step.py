"""Where the time of a step goes inside the model, and how near it is to its matrix products alone.

`PYTHONPATH=tests python -m bench.model_step` with `paceline` installed in that Python. The floor is the model's own products,
run one after another with nothing between them; both are the least of many tries, taken in turns.
"""

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.report import heading, print_table
from paceline import _core
from paceline.attention.cpu import CpuAttention
from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache
from paceline.layers import mlp
from paceline.layers.linear import Linear
from paceline.layers.norm import RmsNorm
from paceline.layers.quantization import Quantization
from paceline.layers.rotary import Rotation
from paceline.models.config import load_model_config
from paceline.models.kv_layout import kv_layout
from paceline.models.registry import build_model
from paceline.parallel.context import Parallel
from paceline.weights.loader import WeightReader
from paceline.worker.memory import keep_freed_memory
from paceline.worker.threads import prepare_environment
from support.demo import demo_folder

BLOCK_SIZE = 16
KINDS = ("products", "attention", "norms", "rotation", "activation")

spent: dict[str, float] = defaultdict(float)


def timed(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, its time booked under `kind`."""

    def call(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spent[kind] += time.perf_counter() - start

    return call


class Bench:
    """A model, a cache and batches of rows that are all alike."""

    def __init__(self, folder: Path, block_count: int, quantization: Quantization = Quantization.NONE) -> None:
        self.config = load_model_config(folder)
        parallel = Parallel.single(self.config.expert_count)
        with WeightReader(folder, dtype=torch.bfloat16) as weights:
            self.model = build_model(self.config, weights, 8192, parallel, 0, quantization)
        cache = KvCache(
            kv_layout(self.config, parallel.tp, 0), block_count=block_count, block_size=BLOCK_SIZE, dtype=torch.bfloat16
        )
        self.backend = CpuAttention(cache)
        layers = self.model.decoder_layers
        self.halves = [half for layer in layers for half in (layer.attention_half, layer.feed_forward_half) if half]

    def spent_s(self) -> dict[str, float]:
        """What the halves of layers have spent so far, by kind of work."""
        sums = [sum(column) / 1e3 for column in zip(*(half.spent_ms for half in self.halves), strict=True)]
        return dict(zip(KINDS, sums, strict=False))

    def prepare(self, rows: int, query_len: int, kv_len: int) -> None:
        """Take `rows` rows, each in blocks of its own."""
        blocks = -(-kv_len // BLOCK_SIZE)
        table = (1 + torch.arange(rows * blocks, dtype=torch.int32)).view(rows, blocks)
        positions = torch.arange(kv_len - query_len, kv_len)
        slots = table.long()[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        self.batch = AttentionBatch(
            rows=rows,
            tokens=rows * query_len,
            uniform_query_len=query_len,
            query_start_loc=torch.arange(rows + 1, dtype=torch.int32) * query_len,
            kv_lens=torch.full((rows,), kv_len, dtype=torch.int32),
            block_table=table,
            slots=slots.flatten(),
        )
        self.positions = positions.repeat(rows)
        self.input_ids = 1000 + torch.arange(rows * query_len) % 1000
        self.last_of_row = torch.arange(1, rows + 1) * query_len - 1

    def step(self) -> None:
        """One pass and the logits of each row's last token."""
        self.backend.prepare(self.batch)
        hidden = self.model.hidden_states(self.input_ids, self.positions, self.backend)
        self.model.logits(hidden.index_select(0, self.last_of_row))

    def inputs_of_products(self) -> list[tuple[Linear, torch.Tensor]]:
        """Every product of a step, made one by one, with what it was given."""
        seen: list[tuple[Linear, torch.Tensor]] = []
        plain = Linear.__call__
        rows_max = [half.rows_max for half in self.halves]
        stack, self.model.stack = self.model.stack, None

        def record(linear: Linear, x: torch.Tensor) -> torch.Tensor:
            seen.append((linear, x))
            return plain(linear, x)

        Linear.__call__ = record  # type: ignore[method-assign,assignment]
        for half in self.halves:
            half.rows_max = 0
        try:
            self.step()
        finally:
            Linear.__call__ = plain  # type: ignore[method-assign]
            self.model.stack = stack
            for half, rows in zip(self.halves, rows_max, strict=True):
                half.rows_max = rows
        return seen


@dataclass
class Least:
    """The least of many tries: of the products alone, and of a step with its parts."""

    products: list[tuple[Linear, torch.Tensor]]
    floor_s: float = float("inf")
    step_s: float = float("inf")
    parts: dict[str, float] = field(default_factory=dict)

    def attempt(self, bench: Bench) -> None:
        """Try both once."""
        start = time.perf_counter()
        with torch.inference_mode():
            for linear, x in self.products:
                linear(x)
        self.floor_s = min(self.floor_s, time.perf_counter() - start)
        spent.clear()
        before = bench.spent_s()
        start = time.perf_counter()
        bench.step()
        took_s = time.perf_counter() - start
        if took_s < self.step_s:
            after = bench.spent_s()
            parts = {kind: spent.get(kind, 0.0) + after.get(kind, 0.0) - before.get(kind, 0.0) for kind in KINDS}
            self.step_s, self.parts = took_s, parts

    def cells(self) -> list[str]:
        """Milliseconds, and the share of the step that its products would take alone."""
        rest_s = self.step_s - sum(self.parts.values())
        whole = (f"{self.step_s * 1e3:.1f}", f"{self.floor_s * 1e3:.1f}", f"{100 * self.floor_s / self.step_s:.0f}%")
        return [*whole, *(f"{self.parts.get(kind, 0.0) * 1e3:.1f}" for kind in KINDS), f"{rest_s * 1e3:.1f}"]


def measure(benches: dict[str, Bench], shapes: list[tuple[int, int, int]], tries: int) -> Iterator[list[object]]:
    """A row for each shape `(rows, query length, keys)` and each kind of weights, which take turns."""
    for rows, query_len, kv_len in shapes:
        results = {}
        for name, bench in benches.items():
            bench.prepare(rows, query_len, kv_len)
            results[name] = Least(bench.inputs_of_products())
        for _ in range(tries):
            for name, bench in benches.items():
                results[name].attempt(bench)
        for name, result in results.items():
            yield [f"{rows} x {query_len}", kv_len, name, *result.cells()]


def as_a_worker(module: str) -> None:
    """Start `module` again in the environment of a worker, if this is another, and keep memory as a worker does."""
    if "OMP_WAIT_POLICY" not in os.environ or "GLIBC_TUNABLES" not in os.environ:
        os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        prepare_environment(len(os.sched_getaffinity(0)))
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
    keep_freed_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: the demo's)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads that compute (default: 1 2)")
    parser.add_argument("--tries", type=int, default=20, help="tries of each step (default: 20)")
    kinds = [kind.value for kind in Quantization]
    parser.add_argument(
        "--quantization", choices=kinds, nargs="+", default=["none"], help="of the weights, in turns (default: none)"
    )
    options = parser.parse_args()
    as_a_worker("bench.model_step")
    model = options.model or demo_folder()
    shapes = [(1, 1, 160), (8, 1, 160), (32, 1, 160), (8, 4, 160), (1, 128, 128), (8, 128, 128)]
    benches = {
        kind if kind != "none" else "bfloat16": Bench(model, 1 + 32 * 10, Quantization(kind)) for kind in options.quantization
    }
    for owner, name, kind in (
        (Linear, "__call__", "products"),
        (CpuAttention, "attend", "attention"),
        (RmsNorm, "after", "norms"),
        (Rotation, "apply", "rotation"),
        (mlp, "activated", "activation"),
    ):
        setattr(owner, name, timed(kind, getattr(owner, name)))
    print(heading())
    print(f"{model.name}, bfloat16, milliseconds, least of {options.tries} tries.\n")
    for threads in options.threads:
        torch.set_num_threads(threads)
        _core.set_kernel_threads(threads)
        print(f"\n{threads} threads:\n")
        header = ["rows x tokens", "keys", "weights", "step", "products alone", "share", *KINDS, "rest"]
        print_table(header, measure(benches, shapes, options.tries))


if __name__ == "__main__":
    main()

"""What the exchange of tokens for experts costs beside the experts themselves.

`PYTHONPATH=tests python -m bench.exchange` with `paceline` installed in that Python. Workers are processes of one machine
that run nothing but one MoE layer, over and over, through the production code and gloo. The cost of an exchange is the time
of the layer less that of the same experts on the same tokens without one.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import torch

from bench.report import heading, print_table
from paceline.layers.moe import build_experts
from paceline.parallel.build import build_parallel
from paceline.parallel.exchange import PassTokens
from parity.crew import Crew, CrewWorker

HIDDEN, INNER, EXPERTS, TOP_K = 192, 64, 16, 4
CREWS = {"dp 2": ([0, 1], 1), "tp 2": ([0], 2), "dp 2 x tp 2": ([0, 1], 2), "dp 4": ([0, 1, 2, 3], 1)}
KINDS = ("off", "allgather_reducescatter", "all_to_all")


def layer_us(worker: CrewWorker, kind: str, tokens: int, rounds: int) -> tuple[float, float, float]:
    """Median microseconds of a layer and of its experts alone, and collectives of a layer; `off` holds all experts."""
    generator = torch.Generator().manual_seed(worker.dp_rank)
    parallel = build_parallel(kind, EXPERTS, worker.groups.world, worker.groups.workers)
    held = parallel.exchange.held
    gate_up = [torch.randn(2 * INNER, HIDDEN, generator=generator) for _ in held]
    down = [torch.randn(HIDDEN, INNER, generator=generator) for _ in held]
    experts = build_experts(held, gate_up, down)
    x = torch.randn(tokens, HIDDEN, generator=generator)
    ids = torch.rand(tokens, EXPERTS, generator=generator).argsort(dim=1)[:, :TOP_K]
    weights = torch.rand(tokens, TOP_K, generator=generator)
    inside: list[float] = []

    def timed(*arguments: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        result = experts(*arguments)
        inside.append(time.perf_counter() - begun)
        return result

    whole: list[float] = []
    is_request = torch.ones(tokens, dtype=torch.bool)
    before = worker.pulse.collectives
    with torch.inference_mode():
        parallel.exchange.prepare(PassTokens(tokens, is_request))
        for _ in range(rounds):
            begun = time.perf_counter()
            parallel.exchange.run(x, ids, weights, timed)
            whole.append(time.perf_counter() - begun)
    collectives = (worker.pulse.collectives - before) / rounds
    return statistics.median(whole) * 1e6, statistics.median(inside) * 1e6, collectives


def measure(options: argparse.Namespace) -> Iterator[list[object]]:
    for name, places in CREWS.items():
        with Crew(*places) as crew:
            for tokens in options.tokens:
                for kind in KINDS:
                    if kind == "off" and crew.tp_size == 1:
                        continue
                    crew.call(layer_us, kind, tokens, 10)
                    results = crew.call(layer_us, kind, tokens, options.rounds)
                    layer, experts = (statistics.mean(result[place] for result in results) for place in (0, 1))
                    cells = (f"{layer:.0f}", f"{experts:.0f}", f"{layer - experts:.0f}", f"{(layer - experts) / experts:.1f}")
                    yield [name, kind, tokens, *cells, f"{results[0][2]:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 256], help="tokens of every rank")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    shape = f"one layer, fp32, hidden {HIDDEN}, {EXPERTS} experts of {INNER}, {TOP_K} a token, one thread a worker, microseconds"
    print(heading())
    print(f"{shape[0].upper()}{shape[1:]}.\n")
    columns = ["workers", "exchange", "tokens per rank", "layer", "experts", "exchange cost", "cost / experts", "collectives"]
    print_table(columns, measure(options))


if __name__ == "__main__":
    main()

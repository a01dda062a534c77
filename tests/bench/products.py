"""The products of a step, one by one: our kernel beside oneDNN over its own layout of the weights.

`PYTHONPATH=tests python -m bench.products` with `paceline` installed in that Python. Ours reads weights as a worker does, few rows
compressed ones where there are any, and once more as the checkpoint has them. All products of a step follow each other, as they
do in the model, so that no weight is in a near cache when its turn comes. Up to 64 rows are decoded, each of 160 keys; more are one
prompt, whose output head has one row.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from bench.model_step import Bench, as_a_worker
from bench.report import heading, print_table
from paceline import _core
from paceline.layers.host import array_of
from paceline.layers.linear import PlainProduct
from support.demo import demo_folder

# Products of one shape `(outputs, inputs, rows)`.
Shape = tuple[int, int, int]
# What oneDNN's layout is tuned for.
PACK_ROWS = 32
# More rows are one prompt.
DECODED_ROWS_MAX = 64
DECODED_KEYS = 160


class Product:
    """A product of a step, ready for every kernel."""

    def __init__(self, plain: PlainProduct, packed: Tensor, x: Tensor) -> None:
        self.weight, self.packed, self.x = plain.weight, packed, x
        self.stored = _core.LinearWeight(plain.weight.parts)
        self.shape: Shape = (sum(len(part) for part in plain.weight.parts), x.shape[1], x.shape[0])

    def ours(self) -> None:
        """With the kernel of `_core`, as a worker has the weight."""
        self._multiply(self.weight)

    def as_stored(self) -> None:
        """With the kernel of `_core`, as the checkpoint has the weight."""
        self._multiply(self.stored)

    def _multiply(self, weight: _core.LinearWeight) -> None:
        product = torch.empty(self.shape[2], self.shape[0], dtype=self.x.dtype)
        _core.linear(array_of(self.x), weight, array_of(product))

    def prepacked(self) -> None:
        """With oneDNN."""
        torch.ops.mkldnn._linear_pointwise(self.x, self.packed, None, "none", [], "")


def products_of(bench: Bench, packed: dict[int, Tensor]) -> list[Product]:
    """Every product of a step, with weights in oneDNN's layout, too, once for each."""
    products = []
    for linear, x in bench.inputs_of_products():
        plain = linear.plain
        assert plain is not None, "a weight that our kernel takes"
        if id(linear) not in packed:
            weight = torch.cat([torch.from_numpy(part.view("int16")).view(torch.bfloat16) for part in plain.weight.parts])
            packed[id(linear)] = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        products.append(Product(plain, packed[id(linear)], x.contiguous()))
    return products


def spent_s(products: list[Product], compute: Callable[[Product], None]) -> dict[Shape, float]:
    """Seconds of all products of each shape."""
    sums: dict[Shape, float] = defaultdict(float)
    for product in products:
        start = time.perf_counter()
        compute(product)
        sums[product.shape] += time.perf_counter() - start
    return sums


def measure(products: list[Product], tries: int) -> Iterator[list[object]]:
    """A row for each shape, and one for all."""
    kernels = (Product.ours, Product.as_stored, Product.prepacked)
    best: dict[Shape, list[float]] = {product.shape: [float("inf")] * len(kernels) for product in products}
    with torch.inference_mode():
        for _ in range(tries):
            for index, compute in enumerate(kernels):
                for shape, spent in spent_s(products, compute).items():
                    best[shape][index] = min(best[shape][index], spent)
    counts = {shape: sum(product.shape == shape for product in products) for shape in best}
    for shape, times in best.items():
        outputs, inputs, rows = shape
        flops = 2 * outputs * inputs * rows * counts[shape]
        cells = (f"{seconds * 1e6 / counts[shape]:.0f} us, {flops / seconds / 1e12:.2f}" for seconds in times)
        yield [f"{outputs} x {inputs}", rows, counts[shape], *cells, *_ratios(times)]
    totals = [sum(times[index] for times in best.values()) for index in range(len(kernels))]
    yield ["all", "", len(products), *(f"{seconds * 1e3:.1f} ms" for seconds in totals), *_ratios(totals)]


def _ratios(times: list[float]) -> list[str]:
    """How many times as fast ours is as each of the others."""
    return [f"{other / times[0]:.2f}" for other in times[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: the demo's)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads that compute (default: 1 2)")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 8, 32, 128, 512], help="rows of a step (default: 1 8 32 128 512)"
    )
    parser.add_argument("--tries", type=int, default=10, help="tries of each step (default: 10)")
    options = parser.parse_args()
    as_a_worker("bench.products")
    model = options.model or demo_folder()
    bench = Bench(model, 2 + max(max(options.rows) // 16, DECODED_ROWS_MAX * DECODED_KEYS // 16))
    packed: dict[int, Tensor] = {}
    print(heading())
    print(f"{model.name}, bfloat16, least of {options.tries} tries: time of a product, TFLOPS.")
    for threads in options.threads:
        torch.set_num_threads(threads)
        _core.set_kernel_threads(threads)
        for rows in options.rows:
            bench.prepare(*((rows, 1, DECODED_KEYS) if rows <= DECODED_ROWS_MAX else (1, rows, rows)))
            print(f"\n{rows} rows, {threads} threads:\n")
            header = ["weight", "rows", "products", "ours", "as stored", "oneDNN prepacked", "by stored", "by oneDNN"]
            print_table(header, measure(products_of(bench, packed), options.tries))


if __name__ == "__main__":
    main()

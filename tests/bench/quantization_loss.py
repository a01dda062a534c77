"""What a text loses by quantised weights: how likely it is, and whether the likeliest next token is the same.

`PYTHONPATH=tests python -m bench.quantization_loss` with `paceline` installed in that Python. The text is cut into pieces that
each begin anew; the first tokens of a piece are context only.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer

from bench.report import ROOT, heading, print_table
from paceline.attention.cpu import CpuAttention
from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache
from paceline.layers.quantization import Quantization
from paceline.models.config import load_model_config
from paceline.models.kv_layout import kv_layout
from paceline.models.registry import build_model
from paceline.parallel.context import Parallel
from paceline.weights.loader import WeightReader
from support.demo import demo_folder

BLOCK_SIZE = 16
PIECE = 512
CONTEXT = 32


class Reader:
    """A model that reads one piece of a text at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype, quantization: Quantization) -> None:
        config = load_model_config(folder)
        parallel = Parallel.single(config.expert_count)
        with WeightReader(folder, dtype=dtype) as weights:
            self._model = build_model(config, weights, PIECE, parallel, 0, quantization)
        layout = kv_layout(config, parallel.tp, 0)
        cache = KvCache(layout, block_count=1 + PIECE // BLOCK_SIZE, block_size=BLOCK_SIZE, dtype=dtype)
        self._backend = CpuAttention(cache)

    def log_probabilities(self, tokens: list[int]) -> torch.Tensor:
        """Of every next token, `[tokens, vocabulary]`."""
        count = len(tokens)
        blocks = 1 + torch.arange(-(-count // BLOCK_SIZE), dtype=torch.int32)
        positions = torch.arange(count)
        self._backend.prepare(
            AttentionBatch(
                rows=1,
                tokens=count,
                uniform_query_len=count,
                query_start_loc=torch.tensor([0, count], dtype=torch.int32),
                kv_lens=torch.tensor([count], dtype=torch.int32),
                block_table=blocks.unsqueeze(0),
                slots=blocks.long()[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
            )
        )
        hidden = self._model.hidden_states(torch.tensor(tokens), positions, self._backend)
        return self._model.logits(hidden).log_softmax(dim=-1)


def compare(readers: dict[str, Reader], pieces: list[list[int]]) -> Iterator[list[object]]:
    """A row for each reader; what it agrees with is the first one, and so is what its logits are compared with."""
    count = 0
    loss = dict.fromkeys(readers, 0.0)
    agreed = dict.fromkeys(readers, 0)
    divergence = dict.fromkeys(readers, 0.0)
    for piece in pieces:
        targets = torch.tensor(piece[CONTEXT + 1 :])
        count += len(targets)
        first: torch.Tensor | None = None
        for name, reader in readers.items():
            found = reader.log_probabilities(piece[:-1])[CONTEXT:]
            first = found if first is None else first
            loss[name] -= found.gather(1, targets.unsqueeze(1)).double().sum().item()
            agreed[name] += int((found.argmax(dim=1) == first.argmax(dim=1)).sum())
            divergence[name] += (first.exp() * (first - found)).double().sum().item()
    for name in readers:
        mean = loss[name] / count
        perplexity = torch.tensor(mean).exp().item()
        share = f"{100 * agreed[name] / count:.1f}%"
        yield [name, count, f"{mean:.4f}", f"{perplexity:.2f}", share, f"{divergence[name] / count:.4f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="Hugging Face folder (default: the demo's)")
    parser.add_argument("--text", type=Path, default=ROOT / "tests" / "data" / "shakespeare.txt", help="what is read")
    parser.add_argument("--threads", type=int, default=2, help="threads that compute (default: 2)")
    options = parser.parse_args()
    model = options.model or demo_folder()
    torch.set_num_threads(options.threads)
    tokens = Tokenizer.from_file(str(model / "tokenizer.json")).encode(options.text.read_text(), add_special_tokens=False).ids
    pieces = [piece for begin in range(0, len(tokens), PIECE) if len(piece := tokens[begin : begin + PIECE]) > CONTEXT + 1]
    readers = {
        "bfloat16": Reader(model, torch.bfloat16, Quantization.NONE),
        "float32": Reader(model, torch.float32, Quantization.NONE),
        "bfloat16, int8 weights": Reader(model, torch.bfloat16, Quantization.INT8),
        "float32, int8 weights": Reader(model, torch.float32, Quantization.INT8),
    }
    print(heading())
    print(f"{model.name}, {options.text.name} in pieces of {PIECE} tokens, the first {CONTEXT} of each as context only.\n")
    header = ["model", "tokens", "mean NLL", "perplexity", "same top token as bfloat16", "KL from bfloat16"]
    print_table(header, compare(readers, pieces))


if __name__ == "__main__":
    main()

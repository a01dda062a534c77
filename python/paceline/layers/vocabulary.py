"""Embedding and output head, with the vocabulary shared out among the tp workers of a rank."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from paceline.layers.linear import Linear
from paceline.parallel.context import Parallel


class Embedding:
    """From token ids to vectors. Each worker looks up its own tokens; the sum over workers has them all."""

    __slots__ = ("_first", "parallel", "weight")

    def __init__(self, weight: Tensor, first: int, parallel: Parallel) -> None:
        """Take `weight [tokens of this worker, hidden]`, the first of which is token `first`."""
        self.weight = weight
        self._first = first
        self.parallel = parallel

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Look up `input_ids [tokens]`; gives `[tokens, hidden]`, a new tensor."""
        if self.parallel.tp.count == 1:
            return functional.embedding(input_ids, self.weight)
        local = input_ids - self._first
        is_elsewhere = (local < 0) | (local >= self.weight.shape[0])
        found = functional.embedding(local.masked_fill(is_elsewhere, 0), self.weight)
        return self.parallel.all_reduce(found.masked_fill(is_elsewhere.unsqueeze(1), 0))


class OutputHead:
    """From hidden states to logits of the whole vocabulary, on every worker."""

    __slots__ = ("_linear", "parallel", "vocab_size")

    def __init__(self, linear: Linear, vocab_size: int, parallel: Parallel) -> None:
        """Take `linear [tokens of this worker, hidden]`; all workers hold the same number, the last with rows too many."""
        self._linear = linear
        self.vocab_size = vocab_size
        self.parallel = parallel

    def __call__(self, hidden_states: Tensor) -> Tensor:
        """Turn `[rows, hidden]` into fp32 `[rows, vocabulary]`."""
        logits = self.parallel.all_gather_last(self._linear(hidden_states))
        return logits[:, : self.vocab_size].float()

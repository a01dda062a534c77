"""Self-attention of a decoder layer, up to and after the backend that reads and writes the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.attention.interface import AttentionBackend
from paceline.layers.linear import Linear
from paceline.layers.rotary import HeadNorm, Rotation
from paceline.parallel.context import Parallel


def query_and_key_norm(query_weight: Tensor, key_weight: Tensor, head_count: int, kv_head_count: int, eps: float) -> HeadNorm:
    """The norm of each query and key head (Qwen3) by `[head_size]` factors, for both in one call, query heads first."""
    return HeadNorm(torch.cat((query_weight.expand(head_count, -1), key_weight.expand(kv_head_count, -1))), eps)


class SelfAttention:
    """Fused q, k, v product; optional per-head norm; rotation; the backend; output product, summed over tp workers."""

    __slots__ = ("head_count", "head_size", "kv_head_count", "layer", "norm", "output", "parallel", "qkv", "window")

    def __init__(
        self,
        layer: int,
        qkv: Linear,
        output: Linear,
        norm: HeadNorm | None,
        parallel: Parallel,
        *,
        head_count: int,
        kv_head_count: int,
        window: int = 0,
    ) -> None:
        """Take `qkv [(heads + 2 * kv heads) * head_size, hidden]` in that order and `output [hidden, heads * head_size]`.

        Heads are those of this worker. A query sees `window` keys, all if that is 0.
        """
        self.layer = layer
        self.qkv = qkv
        self.output = output
        self.norm = norm
        self.parallel = parallel
        self.head_count = head_count
        self.kv_head_count = kv_head_count
        self.head_size = output.in_features // head_count
        self.window = window

    def __call__(self, x: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Attend for `x [tokens, hidden]`: this step's keys and values are written first, then read with the rest."""
        heads = self.qkv(x)
        rotation.apply(heads, self.head_count + self.kv_head_count, self.head_size, self.norm)
        attended = backend.attend(self.layer, heads.view(x.shape[0], -1, self.head_size), window=self.window)
        return self.parallel.all_reduce(self.output(attended))

"""Self-attention of a decoder layer, up to and after the backend that reads and writes the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.attention.interface import AttentionBackend
from paceline.layers.linear import Linear
from paceline.layers.rotary import rotate
from paceline.parallel.context import Parallel


class QkNorm:
    """RMS norm of each query and key head (Qwen3), applied to both in one call."""

    __slots__ = ("eps", "weight")

    def __init__(self, query_weight: Tensor, key_weight: Tensor, head_count: int, kv_head_count: int, eps: float) -> None:
        """Stack `[head_size]` weights into one row per head, query heads first."""
        self.weight = torch.cat((query_weight.expand(head_count, -1), key_weight.expand(kv_head_count, -1)))
        self.eps = eps

    def __call__(self, heads: Tensor) -> Tensor:
        """Normalise `heads [tokens, query heads + key heads, head_size]`."""
        return functional.rms_norm(heads, (heads.shape[-1],), None, self.eps) * self.weight


class SelfAttention:
    """Fused q, k, v product; optional per-head norm; rotation; the backend; output product, summed over tp workers."""

    __slots__ = ("head_count", "head_size", "kv_head_count", "layer", "norm", "output", "parallel", "qkv", "window")

    def __init__(
        self,
        layer: int,
        qkv: Linear,
        output: Linear,
        norm: QkNorm | None,
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

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], backend: AttentionBackend) -> Tensor:
        """Attend for `x [tokens, hidden]`: this step's keys and values are written first, then read with the rest."""
        rotated_count = self.head_count + self.kv_head_count
        heads = self.qkv(x).view(-1, rotated_count + self.kv_head_count, self.head_size)
        to_rotate = heads[:, :rotated_count]
        if self.norm is not None:
            to_rotate = self.norm(to_rotate)
        rotated = rotate(to_rotate, *rotation)
        attended = backend.attend(
            self.layer,
            rotated[:, : self.head_count],
            rotated[:, self.head_count :],
            heads[:, rotated_count:],
            window=self.window,
        )
        return self.parallel.all_reduce(self.output(attended))

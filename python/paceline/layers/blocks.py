"""A decoder layer in two calls, and all layers in one, where our kernels do it all: in bfloat16 on a CPU, for few tokens.

A half of a layer lies between two sums over the tp workers. A call costs as much as the work of a norm, and more where a
product has just emptied the caches of Python's own memory; a step of a small model had hundreds. The bits are those of
the parts one after another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline import _core
from paceline.layers.attention import SelfAttention
from paceline.layers.host import array_of
from paceline.layers.mlp import GatedMlp
from paceline.layers.norm import Norm, RmsNorm
from paceline.layers.rotary import Rotation
from paceline.parallel.context import Parallel


class FeedForwardHalf:
    """Norm and gated feed-forward block."""

    __slots__ = ("_parallel", "block", "rows_max")

    def __init__(self, block: _core.FeedForwardBlock, parallel: Parallel, rows_max: int) -> None:
        """Take what computes at most `rows_max` tokens."""
        self.block = block
        self._parallel = parallel
        self.rows_max = rows_max

    @classmethod
    def of(cls, norm: Norm, feed_forward: object) -> FeedForwardHalf | None:
        """Join the two, if our kernels do all of both."""
        if not isinstance(norm, RmsNorm) or norm.array is None or not isinstance(feed_forward, GatedMlp):
            return None
        gate_up, down = feed_forward.gate_up.plain, feed_forward.down.plain
        if gate_up is None or down is None:
            return None
        block = _core.FeedForwardBlock(norm.array, norm.eps, gate_up.weight, down.weight)
        return cls(block, feed_forward.parallel, min(gate_up.rows_max, down.rows_max))

    @property
    def spent_ms(self) -> list[float]:
        """Milliseconds so far of products, attention, norms, rotation and activation."""
        return self.block.spent_ms

    @property
    def is_alone(self) -> bool:
        """Whether no other worker has a part in it."""
        return self._parallel.tp.count == 1

    def __call__(self, x: Tensor, added: Tensor | None) -> Tensor:
        """Add `added` to the residual stream `x [tokens, hidden]` in place; gives what is to be added next."""
        output = torch.empty_like(x)
        # What is changed in place is contiguous already.
        self.block(array_of(x.contiguous()), None if added is None else array_of(added), array_of(output))
        return self._parallel.all_reduce(output)


class AttentionHalf:
    """Norm and self-attention."""

    __slots__ = ("_parallel", "block", "rows_max")

    def __init__(self, block: _core.AttentionBlock, parallel: Parallel, rows_max: int) -> None:
        """Take what computes at most `rows_max` tokens."""
        self.block = block
        self._parallel = parallel
        self.rows_max = rows_max

    @classmethod
    def of(cls, norm: Norm, attention: object) -> AttentionHalf | None:
        """Join the two, if our kernels do all of both."""
        if not isinstance(norm, RmsNorm) or norm.array is None or not isinstance(attention, SelfAttention):
            return None
        qkv, output, head_norm = attention.qkv.plain, attention.output.plain, attention.norm
        if qkv is None or output is None:
            return None
        factors = None
        if head_norm is not None:
            assert head_norm.array is not None, "heads are of the type of their weights"
            factors = (head_norm.array, head_norm.eps)
        block = _core.AttentionBlock(
            attention.layer,
            attention.head_count,
            attention.kv_head_count,
            attention.window,
            norm.array,
            norm.eps,
            qkv.weight,
            output.weight,
            factors,
        )
        return cls(block, attention.parallel, min(qkv.rows_max, output.rows_max))

    @property
    def spent_ms(self) -> list[float]:
        """Milliseconds so far of products, attention, norms, rotation and activation."""
        return self.block.spent_ms

    def __call__(self, x: Tensor, added: Tensor | None, rotation: Rotation, kernel: _core.PagedAttention) -> Tensor:
        """Add `added` to the residual stream `x [tokens, hidden]` in place; gives what is to be added next."""
        assert rotation.arrays is not None, "cosines are of the type of the weights"
        output = torch.empty_like(x)
        self.block(kernel, array_of(x.contiguous()), None if added is None else array_of(added), *rotation.arrays, array_of(output))
        return self._parallel.all_reduce(output)


class LayerStack:
    """All layers in one call, where both halves of each are ours and no other worker has a part in them."""

    __slots__ = ("_stack", "rows_max")

    def __init__(self, halves: list[tuple[AttentionHalf, FeedForwardHalf]]) -> None:
        """Take the halves of the layers, in order."""
        # Most tokens that all halves take.
        self.rows_max = min(half.rows_max for pair in halves for half in pair)
        self._stack = _core.LayerStack([(attention.block, feed_forward.block) for attention, feed_forward in halves])

    def __call__(self, x: Tensor, rotation: Rotation, kernel: _core.PagedAttention) -> Tensor:
        """Run the layers on the residual stream `x [tokens, hidden]`, in place; gives what is still to be added to it."""
        assert rotation.arrays is not None, "cosines are of the type of the weights"
        output = torch.empty_like(x)
        self._stack(kernel, array_of(x), *rotation.arrays, array_of(output))
        return output

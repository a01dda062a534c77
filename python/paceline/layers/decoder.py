"""One decoder layer, whatever it attends and feeds forward with."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from paceline.attention.interface import AttentionBackend
from paceline.layers.blocks import AttentionHalf, FeedForwardHalf
from paceline.layers.norm import Norm
from paceline.layers.rotary import Rotation


class Attention(Protocol):
    """What a layer attends with."""

    def __call__(self, x: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Attend for `x [tokens, hidden]`."""


class FeedForward(Protocol):
    """What a layer has behind its attention."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to `x [tokens, hidden]`."""


class DecoderLayer:
    """Norm, attention, norm, feed-forward, each added to the residual stream."""

    __slots__ = ("attention", "attention_half", "feed_forward", "feed_forward_half", "input_norm", "post_attention_norm")

    def __init__(self, input_norm: Norm, attention: Attention, post_attention_norm: Norm, feed_forward: FeedForward) -> None:
        """Take the parts."""
        self.input_norm = input_norm
        self.attention = attention
        self.post_attention_norm = post_attention_norm
        self.feed_forward = feed_forward
        self.attention_half = AttentionHalf.of(input_norm, attention)
        self.feed_forward_half = FeedForwardHalf.of(post_attention_norm, feed_forward)

    def __call__(self, x: Tensor, added: Tensor | None, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Run the layer on the residual stream `x [tokens, hidden]`, which is updated in place.

        `added` is what the layer before gave, if there is one: each addition is left to the norm that follows it. Gives
        what is still to be added to `x`.
        """
        half, kernel = self.attention_half, backend.kernel
        if half is not None and kernel is not None and x.shape[0] <= half.rows_max:
            attended = half(x, added, rotation, kernel)
        else:
            attended = self.attention(self.input_norm.after(x, added), rotation, backend)
        if self.feed_forward_half is not None and x.shape[0] <= self.feed_forward_half.rows_max:
            return self.feed_forward_half(x, attended)
        return self.feed_forward(self.post_attention_norm.after(x, attended))

"""The Qwen family: Qwen2 (biases on q, k and v), Qwen3 (norms on each query and key head) and Qwen3-MoE.

The dense ones are Llama's network; `models/config.py` turns the family's habits into the flags that its blocks read.
"""

from __future__ import annotations

from paceline.layers.decoder import FeedForward
from paceline.models.blocks import read_moe
from paceline.models.causal_lm import CausalLM
from paceline.models.source import Source


class Qwen2ForCausalLM(CausalLM):
    """Qwen2 and Qwen2.5."""


class Qwen3ForCausalLM(CausalLM):
    """Qwen3, dense."""


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """Qwen3 with experts in some or all layers."""

    def read_feed_forward(self, source: Source, prefix: str, *, is_sparse: bool) -> FeedForward:
        """Read `PREFIX.mlp`: experts, or the dense block."""
        if not is_sparse:
            return super().read_feed_forward(source, prefix, is_sparse=False)
        return read_moe(source, f"{prefix}.mlp")

"""GLM-4.5 (glm4_moe): attention over partly rotated heads, experts routed as in DeepSeek-V3, drafting layers."""

from __future__ import annotations

from paceline.layers.decoder import FeedForward
from paceline.models.blocks import read_moe
from paceline.models.causal_lm import CausalLM
from paceline.models.source import Source


class Glm4MoeForCausalLM(CausalLM):
    """The first layers are dense."""

    def read_feed_forward(self, source: Source, prefix: str, *, is_sparse: bool) -> FeedForward:
        """Read `PREFIX.mlp`: experts, or the dense block."""
        if not is_sparse:
            return super().read_feed_forward(source, prefix, is_sparse=False)
        return read_moe(source, f"{prefix}.mlp", has_correction=True)

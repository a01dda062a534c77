"""Mixtral: Llama's attention, experts in every layer."""

from __future__ import annotations

from paceline.layers.decoder import FeedForward
from paceline.models.blocks import MIXTRAL_NAMES, read_moe
from paceline.models.causal_lm import CausalLM
from paceline.models.source import Source


class MixtralForCausalLM(CausalLM):
    """Mixtral 8x7B and 8x22B."""

    def read_feed_forward(self, source: Source, prefix: str, *, is_sparse: bool) -> FeedForward:
        """Read `PREFIX.block_sparse_moe`."""
        return read_moe(source, f"{prefix}.block_sparse_moe", MIXTRAL_NAMES)

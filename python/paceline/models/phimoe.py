"""Phi-3.5-MoE and Phi-mini-MoE: norms with means and biases, a router of its own, a biased output head."""

from __future__ import annotations

from paceline.layers.norm import Norm
from paceline.models.mixtral import MixtralForCausalLM
from paceline.models.source import Source


class PhimoeForCausalLM(MixtralForCausalLM):
    """Experts are named as in Mixtral; the config says how tokens are routed."""

    def read_norm(self, source: Source, name: str) -> Norm:
        """Read a layer norm."""
        return source.layer_norm(name, source.config.hidden_size)

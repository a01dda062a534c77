"""Llama-shaped dense decoders: Llama 2 and 3, SmolLM2, and the base of the Qwen family.

Weights are read by their Hugging Face names; q, k, v and gate, up are fused at load.
"""

from __future__ import annotations

from paceline.models.causal_lm import CausalLM


class LlamaForCausalLM(CausalLM):
    """The base network as it is."""

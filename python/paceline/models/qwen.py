"""The dense Qwen family: Qwen2 (biases on q, k and v) and Qwen3 (norms on each query and key head).

Both are Llama's network; `models/config.py` turns the family's habits into the flags that `models/llama.py` reads. The
mixture-of-experts members of the family are not here.
"""

from __future__ import annotations

from paceline.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2 and Qwen2.5."""


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3, dense."""

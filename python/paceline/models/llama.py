"""Llama-shaped dense decoders: Llama 2 and 3, SmolLM2, and the base of the Qwen family.

Weights are read by their Hugging Face names; q, k, v and gate, up are fused at load.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paceline.attention.interface import AttentionBackend
from paceline.layers.attention import QkNorm, SelfAttention
from paceline.layers.linear import Linear
from paceline.layers.mlp import GatedMlp
from paceline.layers.norm import RmsNorm
from paceline.layers.rotary import RotaryTable
from paceline.models.config import ModelConfig
from paceline.weights.loader import WeightReader


class DecoderLayer:
    """Norm, attention, norm, feed-forward, each added to the residual stream."""

    __slots__ = ("attention", "input_norm", "mlp", "post_attention_norm")

    def __init__(self, config: ModelConfig, weights: WeightReader, layer: int) -> None:
        """Read the tensors `model.layers.LAYER.*`."""
        prefix = f"model.layers.{layer}"
        hidden = config.hidden_size
        self.input_norm = RmsNorm(weights.take(f"{prefix}.input_layernorm.weight", (hidden,)), config.rms_norm_eps)
        self.post_attention_norm = RmsNorm(
            weights.take(f"{prefix}.post_attention_layernorm.weight", (hidden,)), config.rms_norm_eps
        )
        self.attention = _read_attention(config, weights, layer, f"{prefix}.self_attn")
        self.mlp = _read_mlp(config, weights, f"{prefix}.mlp")

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], backend: AttentionBackend) -> Tensor:
        """Run the layer on the residual stream `x [tokens, hidden]`, which is updated in place and returned."""
        x += self.attention(self.input_norm(x), rotation, backend)
        x += self.mlp(self.post_attention_norm(x))
        return x


class LlamaForCausalLM:
    """The whole network: embedding, layers, final norm, output head."""

    def __init__(self, config: ModelConfig, weights: WeightReader, max_positions: int) -> None:
        """Read all tensors. Positions run below `max_positions`, which may pass the checkpoint's own limit."""
        self.config = config
        vocabulary = (config.vocab_size, config.hidden_size)
        self._embedding = weights.take("model.embed_tokens.weight", vocabulary)
        self._layers = [DecoderLayer(config, weights, layer) for layer in range(config.layer_count)]
        self._norm = RmsNorm(weights.take("model.norm.weight", (config.hidden_size,)), config.rms_norm_eps)
        head = self._embedding if config.tie_word_embeddings else weights.take("lm_head.weight", vocabulary)
        self._head = Linear(head, pack=True)
        self._rotary = RotaryTable(config.rope, config.head_size, max_positions, weights.dtype, weights.device)
        weights.finish(ignored=("lm_head.weight",) if config.tie_word_embeddings else ())

    @torch.inference_mode()
    def hidden_states(self, input_ids: Tensor, positions: Tensor, backend: AttentionBackend) -> Tensor:
        """Run the decoder over `input_ids [tokens]` at `positions [tokens]`; gives `[tokens, hidden]` after the final norm.

        `backend` must have been given this pass's batch by `AttentionBackend.prepare`.
        """
        x = functional.embedding(input_ids, self._embedding)
        rotation = self._rotary.at(positions)
        for layer in self._layers:
            x = layer(x, rotation, backend)
        return self._norm(x)

    @torch.inference_mode()
    def logits(self, hidden_states: Tensor) -> Tensor:
        """Output head for the rows that need it: `[rows, hidden]` to fp32 `[rows, vocabulary]`."""
        return self._head(hidden_states).float()


def _read_attention(config: ModelConfig, weights: WeightReader, layer: int, prefix: str) -> SelfAttention:
    sizes = {"q_proj": config.query_size, "k_proj": config.kv_size, "v_proj": config.kv_size}
    qkv_weight = weights.take_fused([(f"{prefix}.{name}.weight", (size, config.hidden_size)) for name, size in sizes.items()])
    qkv_bias = weights.take_fused([(f"{prefix}.{name}.bias", (size,)) for name, size in sizes.items()]) if config.qkv_bias else None
    output_weight = weights.take(f"{prefix}.o_proj.weight", (config.hidden_size, config.query_size))
    output_bias = weights.take(f"{prefix}.o_proj.bias", (config.hidden_size,)) if config.output_bias else None
    norm = None
    if config.qk_norm:
        query_norm = weights.take(f"{prefix}.q_norm.weight", (config.head_size,))
        key_norm = weights.take(f"{prefix}.k_norm.weight", (config.head_size,))
        norm = QkNorm(query_norm, key_norm, config.head_count, config.kv_head_count, config.rms_norm_eps)
    return SelfAttention(
        layer=layer,
        qkv=Linear(qkv_weight, qkv_bias, pack=True),
        output=Linear(output_weight, output_bias, pack=True),
        norm=norm,
        head_count=config.head_count,
        kv_head_count=config.kv_head_count,
        head_size=config.head_size,
    )


def _read_mlp(config: ModelConfig, weights: WeightReader, prefix: str) -> GatedMlp:
    hidden, inner = config.hidden_size, config.intermediate_size
    gate_up = weights.take_fused([(f"{prefix}.{name}.weight", (inner, hidden)) for name in ("gate_proj", "up_proj")])
    down = weights.take(f"{prefix}.down_proj.weight", (hidden, inner))
    gate_up_bias = down_bias = None
    if config.mlp_bias:
        gate_up_bias = weights.take_fused([(f"{prefix}.{name}.bias", (inner,)) for name in ("gate_proj", "up_proj")])
        down_bias = weights.take(f"{prefix}.down_proj.bias", (hidden,))
    return GatedMlp(Linear(gate_up, gate_up_bias, pack=True), Linear(down, down_bias, pack=True))

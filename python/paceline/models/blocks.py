"""The blocks that several families share, read from a checkpoint by the names that they have there."""

from __future__ import annotations

import torch

from paceline.layers.attention import SelfAttention, query_and_key_norm
from paceline.layers.mlp import GatedMlp
from paceline.layers.moe import MoeBlock, build_experts
from paceline.layers.routing import Router
from paceline.models.kv_layout import head_range, kv_head_range
from paceline.models.source import Source, scaled
from paceline.parallel.exchange import Experts

# Names of an expert's (or a block's) gate, up and down products.
LLAMA_NAMES = ("gate_proj", "up_proj", "down_proj")
MIXTRAL_NAMES = ("w1", "w3", "w2")


def read_self_attention(source: Source, layer: int, prefix: str) -> SelfAttention:
    """Read `PREFIX.{q,k,v,o}_proj` and, where the config has them, biases and `PREFIX.{q,k}_norm`."""
    config, parallel = source.config, source.parallel
    queries, keys = head_range(config, parallel.tp), kv_head_range(config, parallel.tp)
    size = config.head_size
    qkv = source.output_cut(
        [
            (f"{prefix}.q_proj", config.query_size, scaled(queries, size)),
            (f"{prefix}.k_proj", config.kv_size, scaled(keys, size)),
            (f"{prefix}.v_proj", config.kv_size, scaled(keys, size)),
        ],
        config.hidden_size,
        bias=config.qkv_bias,
    )
    columns = scaled(queries, size)
    output = source.input_cut(f"{prefix}.o_proj", config.hidden_size, config.query_size, columns, bias=config.output_bias)
    norm = None
    if config.qk_norm:
        query_norm = source.weights.take(f"{prefix}.q_norm.weight", (size,))
        key_norm = source.weights.take(f"{prefix}.k_norm.weight", (size,))
        norm = query_and_key_norm(query_norm, key_norm, len(queries), len(keys), config.rms_norm_eps)
    return SelfAttention(
        layer, qkv, output, norm, parallel, head_count=len(queries), kv_head_count=len(keys), window=config.sliding_window
    )


def read_mlp(source: Source, prefix: str, inner_size: int, *, bias: bool = False) -> GatedMlp:
    """Read `PREFIX.{gate,up,down}_proj` of a block `inner_size` wide, shared out among the tp workers."""
    hidden = source.config.hidden_size
    part = source.parallel.tp.range_of(inner_size)
    gate, up, down = (f"{prefix}.{name}" for name in LLAMA_NAMES)
    gate_up = source.output_cut([(gate, inner_size, part), (up, inner_size, part)], hidden, bias=bias)
    return GatedMlp(gate_up, source.input_cut(down, hidden, inner_size, part, bias=bias), source.parallel)


def read_moe(
    source: Source,
    prefix: str,
    names: tuple[str, str, str] = LLAMA_NAMES,
    *,
    has_correction: bool = False,
) -> MoeBlock:
    """Read the router `PREFIX.gate`, the held ones of `PREFIX.experts.E`, and `PREFIX.shared_experts` if there are any."""
    moe = source.config.moe
    assert moe is not None
    weights = source.weights
    gate = weights.take(f"{prefix}.gate.weight", (moe.expert_count, source.config.hidden_size), dtype=torch.float32)
    correction = None
    if has_correction:
        correction = weights.take(f"{prefix}.gate.e_score_correction_bias", (moe.expert_count,), dtype=torch.float32)
    shared = None
    if moe.shared_intermediate_size:
        shared = read_mlp(source, f"{prefix}.shared_experts", moe.shared_intermediate_size)
    experts = _read_experts(source, f"{prefix}.experts", names)
    return MoeBlock(Router(moe, gate, correction), experts, source.parallel.exchange, shared)


def _read_experts(source: Source, prefix: str, names: tuple[str, str, str]) -> Experts:
    moe = source.config.moe
    assert moe is not None
    hidden, inner = source.config.hidden_size, moe.intermediate_size
    held = source.parallel.exchange.held
    gate_up, down = [], []
    for expert in range(moe.expert_count):
        gate_name, up_name, down_name = (f"{prefix}.{expert}.{name}" for name in names)
        if expert not in held:
            source.weights.leave(f"{gate_name}.weight", f"{up_name}.weight", f"{down_name}.weight")
            continue
        halves = [(f"{name}.weight", (inner, hidden), None) for name in (gate_name, up_name)]
        gate_up.append(source.weights.take_fused(halves))
        down.append(source.weights.take(f"{down_name}.weight", (hidden, inner)))
    return build_experts(held, gate_up, down, source.quantization)

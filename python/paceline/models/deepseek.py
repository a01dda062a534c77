"""DeepSeek-V3 and R1: latent attention, experts in groups with one that all tokens visit, drafting layers."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.layers.decoder import Attention, FeedForward
from paceline.layers.latent_attention import LatentAttention, LatentQuery
from paceline.layers.linear import Linear
from paceline.models.blocks import read_moe
from paceline.models.causal_lm import CausalLM
from paceline.models.kv_layout import head_range
from paceline.models.latent_config import LatentConfig
from paceline.models.source import Source, scaled
from paceline.weights.loader import Cut

# The norms inside the bottlenecks keep this, whatever the config says of the others.
_BOTTLENECK_EPS = 1e-6


class DeepseekV3ForCausalLM(CausalLM):
    """The first layers are dense."""

    def read_feed_forward(self, source: Source, prefix: str, *, is_sparse: bool) -> FeedForward:
        """Read `PREFIX.mlp`: experts, or the dense block."""
        if not is_sparse:
            return super().read_feed_forward(source, prefix, is_sparse=False)
        return read_moe(source, f"{prefix}.mlp", has_correction=True)

    def read_attention(self, source: Source, layer: int, prefix: str) -> Attention:
        """Read latent attention under `PREFIX`, ready for the absorbed form."""
        config, weights, parallel = source.config, source.weights, source.parallel
        sizes = config.latent
        assert sizes is not None
        heads = head_range(config, parallel.tp)
        key_up, value_up = _read_expansion(source, prefix, heads, sizes)
        latent_norm = source.rms_norm(f"{prefix}.kv_a_layernorm", sizes.kv_rank, _BOTTLENECK_EPS)
        down = _read_down(source, prefix, sizes)
        query = _read_query(source, prefix, heads, sizes)
        columns = scaled(heads, sizes.value_size)
        value_width = config.head_count * sizes.value_size
        output = source.input_cut(f"{prefix}.o_proj", config.hidden_size, value_width, columns, bias=config.output_bias)
        return LatentAttention(
            layer,
            sizes,
            parallel,
            down=down,
            query=query,
            latent_norm=latent_norm,
            key_up=key_up.to(weights.dtype),
            value_up=value_up.to(weights.dtype),
            output=output,
            scale=sizes.query_size**-0.5 * config.rope.score_factor,
        )


def _read_down(source: Source, prefix: str, sizes: LatentConfig) -> Linear:
    """The products into the bottlenecks, of queries (if they have one) and of keys; every tp worker has them whole."""
    config = source.config
    names = [("q_a_proj", sizes.query_rank)] * (sizes.query_rank > 0) + [("kv_a_proj_with_mqa", sizes.latent_size)]

    def read(kind: str, shape: tuple[int, ...]) -> Tensor:
        fused = source.weights.take_fused([(f"{prefix}.{name}.{kind}", (size, *shape), None) for name, size in names])
        return torch.cat((fused[: -sizes.rope_size], _halves(fused[-sizes.rope_size :], sizes)))

    bias = read("bias", ()) if config.qkv_bias else None
    return source.linear(read("weight", (config.hidden_size,)), bias)


def _read_query(source: Source, prefix: str, heads: range, sizes: LatentConfig) -> LatentQuery:
    """The product that gives this worker's query heads, rotated columns last."""
    name, width = ("q_b_proj", sizes.query_rank) if sizes.query_rank else ("q_proj", source.config.hidden_size)
    shape = (source.config.head_count * sizes.query_size, width)
    up = source.weights.take(f"{prefix}.{name}.weight", shape, Cut(0, scaled(heads, sizes.query_size)))
    by_head = up.view(len(heads), sizes.query_size, width)
    by_head = torch.cat((by_head[:, : sizes.nope_size], _halves(by_head[:, sizes.nope_size :], sizes, dim=1)), dim=1)
    norm = source.rms_norm(f"{prefix}.q_a_layernorm", sizes.query_rank, _BOTTLENECK_EPS) if sizes.query_rank else None
    return LatentQuery(source.linear(by_head.flatten(0, 1).contiguous()), norm)


def _read_expansion(source: Source, prefix: str, heads: range, sizes: LatentConfig) -> tuple[Tensor, Tensor]:
    """What would expand latents: keys `[heads, nope_size, kv_rank]` and values `[heads, kv_rank, value_size]`."""
    rows = sizes.nope_size + sizes.value_size
    shape = (source.config.head_count * rows, sizes.kv_rank)
    expansion = source.weights.take(f"{prefix}.kv_b_proj.weight", shape, Cut(0, scaled(heads, rows)))
    key_up, value_up = torch.split_with_sizes(
        expansion.view(len(heads), rows, sizes.kv_rank), (sizes.nope_size, sizes.value_size), dim=1
    )
    return key_up.contiguous(), value_up.transpose(1, 2).contiguous()


def _halves(weight: Tensor, sizes: LatentConfig, dim: int = 0) -> Tensor:
    """Reorder rows that give columns in pairs to rows that give them in halves, which is what gets rotated here.

    Queries and keys are reordered alike, so that scores stay as they are.
    """
    if not sizes.is_interleaved:
        return weight
    order = torch.cat((torch.arange(0, sizes.rope_size, 2), torch.arange(1, sizes.rope_size, 2)))
    return weight.index_select(dim, order.to(weight.device))

"""What a worker's KV cache holds for a model: known from its config, before any weight is read."""

from __future__ import annotations

from paceline.attention.kv_cache import KvLayout
from paceline.models.config import ConfigError, ModelConfig
from paceline.parallel.context import Shard


def kv_layout(config: ModelConfig, tp: Shard, drafter_layers: int = 0) -> KvLayout:
    """The cache of one tp worker: layers of the target, then `drafter_layers` of the drafter.

    Latent attention caches its latent on every tp worker. Raises `ConfigError` for heads that cannot be shared out.
    """
    layer_count = config.layer_count + drafter_layers
    if config.latent is not None:
        head_range(config, tp)
        return KvLayout(layer_count=layer_count, kv_head_count=1, key_size=config.latent.latent_size, value_size=0)
    heads = len(kv_head_range(config, tp))
    return KvLayout(layer_count=layer_count, kv_head_count=heads, key_size=config.head_size, value_size=config.head_size)


def head_range(config: ModelConfig, tp: Shard) -> range:
    """Query heads of one tp worker. Raises `ConfigError`."""
    if config.head_count % tp.count:
        raise ConfigError(f"num_attention_heads {config.head_count} cannot be shared out among {tp.count} workers of a rank")
    return tp.range_of(config.head_count)


def kv_head_range(config: ModelConfig, tp: Shard) -> range:
    """Key heads of one tp worker: its share, or where there are fewer heads than workers the one that its queries read.

    Raises `ConfigError`.
    """
    head_range(config, tp)
    if config.kv_head_count % tp.count == 0:
        return tp.range_of(config.kv_head_count)
    if tp.count % config.kv_head_count:
        raise ConfigError(f"num_key_value_heads {config.kv_head_count} cannot be shared out among {tp.count} workers of a rank")
    head = tp.index * config.kv_head_count // tp.count
    return range(head, head + 1)

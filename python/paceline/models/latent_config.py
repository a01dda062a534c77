"""Latent attention as a `config.json` describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.models.fields import ConfigError, count_of, flag_of


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Latent attention (MLA): ranks and head sizes, in elements. A `query_rank` of 0 means a full-rank query."""

    query_rank: int
    kv_rank: int
    nope_size: int
    rope_size: int
    value_size: int
    # Whether rotated columns lie in pairs (x0, x1), (x2, x3), ...; else in halves.
    is_interleaved: bool

    @property
    def latent_size(self) -> int:
        """What the cache holds for each token: latent and rotated key."""
        return self.kv_rank + self.rope_size

    @property
    def query_size(self) -> int:
        """Width of one query head."""
        return self.nope_size + self.rope_size


def parse_latent(raw: dict[str, Any]) -> LatentConfig:
    """Latent attention of DeepSeek-V3. Raises `ConfigError`."""
    rope_size = count_of(raw, "qk_rope_head_dim")
    if rope_size % 2:
        raise ConfigError(f"qk_rope_head_dim {rope_size} is odd: rotary embedding needs pairs")
    return LatentConfig(
        query_rank=count_of(raw, "q_lora_rank", 0, least=0),
        kv_rank=count_of(raw, "kv_lora_rank"),
        nope_size=count_of(raw, "qk_nope_head_dim"),
        rope_size=rope_size,
        value_size=count_of(raw, "v_head_dim"),
        is_interleaved=flag_of(raw, "rope_interleave", True),
    )

"""What a checkpoint's `config.json` says, read once and checked.

Knows no torch: a bad folder is refused before torch is imported. It does not know how a network is built; the family
files do (`models/llama.py` and its neighbours).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.models.fields import ConfigError, count_of, flag_of
from paceline.models.latent_config import LatentConfig, parse_latent
from paceline.models.moe_config import MoeConfig, parse_grouped_moe, parse_mixtral_moe, parse_qwen3_moe
from paceline.models.rope_config import RopeConfig, parse_rope

__all__ = ["ConfigError", "LatentConfig", "ModelConfig", "MoeConfig", "RopeConfig", "load_model_config", "parse_model_config"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The fields of `config.json` that a decoder needs. Sizes are elements, counts are counts."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    kv_head_count: int
    head_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: RopeConfig
    # What the checkpoint's tensors are stored as: "float32", "bfloat16" or "float16".
    stored_dtype: str = "float32"
    # What its quantised tensors are: "fp8", or "" where there are none.
    stored_quantization: str = ""
    head_bias: bool = False
    # Keys that a query sees, counted back from its own; 0: all.
    sliding_window: int = 0
    # Drafting layers that the checkpoint holds behind its own (multi-token prediction).
    drafter_layer_count: int = 0
    moe: MoeConfig | None = None
    latent: LatentConfig | None = None

    @property
    def query_size(self) -> int:
        """Width of all query heads together, in elements."""
        return self.head_count * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together, in elements."""
        return self.kv_head_count * self.head_size

    @property
    def expert_count(self) -> int:
        """Routed experts of a layer that has any; 0 in a dense model."""
        return 0 if self.moe is None else self.moe.expert_count


@dataclass(frozen=True, slots=True)
class _Traits:
    """What an architecture fixes where others leave it to `config.json`."""

    # Whether q, k and v have biases, and whether the output has; `None`: `attention_bias` says.
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    has_mlp_bias: bool = False
    # `None`: `use_qk_norm` says.
    qk_norm: bool | None = False
    has_latent_attention: bool = False
    has_drafter: bool = False
    # When `sliding_window` holds: "never" (it is refused), "asked" (by `use_sliding_window`), "given".
    window: str = "never"
    moe: Callable[[dict[str, Any], int], MoeConfig] | None = None
    default_theta: float = 10000.0
    default_rotary_factor: float = 1.0
    default_eps: float = 1e-6


_TRAITS: dict[str, _Traits] = {
    "LlamaForCausalLM": _Traits(has_mlp_bias=True),
    "Qwen2ForCausalLM": _Traits(qkv_bias=True, output_bias=False),
    "Qwen3ForCausalLM": _Traits(qk_norm=True),
    "Qwen3MoeForCausalLM": _Traits(qk_norm=True, window="asked", moe=parse_qwen3_moe),
    "MixtralForCausalLM": _Traits(
        qkv_bias=False,
        output_bias=False,
        window="given",
        moe=lambda raw, layers: parse_mixtral_moe(raw, layers, routing="softmax"),
        default_theta=1e6,
        default_eps=1e-5,
    ),
    "PhimoeForCausalLM": _Traits(
        window="given",
        moe=lambda raw, layers: parse_mixtral_moe(raw, layers, routing="sparsemixer"),
        default_theta=1e6,
        default_eps=1e-5,
    ),
    "DeepseekV3ForCausalLM": _Traits(
        has_latent_attention=True,
        has_drafter=True,
        moe=lambda raw, layers: parse_grouped_moe(raw, layers, groups=8, groups_kept=4),
    ),
    "Glm4MoeForCausalLM": _Traits(
        output_bias=False,
        qk_norm=None,
        has_drafter=True,
        moe=lambda raw, layers: parse_grouped_moe(raw, layers, groups=1, groups_kept=1),
        default_rotary_factor=0.5,
        default_eps=1e-5,
    ),
}

# Names that checkpoints use whose code is their own.
_OTHER_NAMES = {"PhiMoEForCausalLM": "PhimoeForCausalLM"}


def read_config_json(folder: Path) -> dict[str, Any]:
    """Read `folder/config.json`. Raises `ConfigError` with the path when it is absent or no JSON object."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config.json in {folder}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds a {type(raw).__name__}, not an object")
    return raw


def load_model_config(folder: Path) -> ModelConfig:
    """Read and check the config of a checkpoint folder. Raises `ConfigError`."""
    return parse_model_config(read_config_json(folder))


def parse_model_config(raw: dict[str, Any]) -> ModelConfig:
    """Turn the fields of a `config.json` into a `ModelConfig`. Raises `ConfigError` naming the field."""
    architecture = _architecture(raw)
    traits = _TRAITS[architecture]
    attention_bias = flag_of(raw, "attention_bias")
    _refuse_unsupported(raw, traits)
    quantised = raw.get("quantization_config") or {}
    layer_count = count_of(raw, "num_hidden_layers")
    latent = parse_latent(raw) if traits.has_latent_attention else None
    head_count, kv_head_count, head_size = _heads(raw, latent)
    rope = parse_rope(raw, default_theta=traits.default_theta, default_rotary_factor=traits.default_rotary_factor)
    _check_rotated_size(rope, latent.rope_size if latent else head_size)
    return ModelConfig(
        architecture=architecture,
        vocab_size=count_of(raw, "vocab_size"),
        hidden_size=count_of(raw, "hidden_size"),
        intermediate_size=count_of(raw, "intermediate_size"),
        layer_count=layer_count,
        head_count=head_count,
        kv_head_count=kv_head_count,
        head_size=head_size,
        rms_norm_eps=float(raw.get("rms_norm_eps", traits.default_eps)),
        max_position_embeddings=count_of(raw, "max_position_embeddings", 2048),
        tie_word_embeddings=flag_of(raw, "tie_word_embeddings"),
        qkv_bias=attention_bias if traits.qkv_bias is None else traits.qkv_bias,
        output_bias=attention_bias if traits.output_bias is None else traits.output_bias,
        mlp_bias=traits.has_mlp_bias and flag_of(raw, "mlp_bias"),
        qk_norm=flag_of(raw, "use_qk_norm") if traits.qk_norm is None else traits.qk_norm,
        rope=rope,
        stored_dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        stored_quantization=str(quantised.get("quant_method", "")),
        head_bias=architecture == "PhimoeForCausalLM" and flag_of(raw, "lm_head_bias"),
        sliding_window=_window(raw, traits),
        drafter_layer_count=_drafter_layers(raw) if traits.has_drafter else 0,
        moe=traits.moe(raw, layer_count) if traits.moe is not None else None,
        latent=latent,
    )


def known_architectures() -> tuple[str, ...]:
    """The values of `architectures` in a `config.json` that Paceline runs."""
    return tuple(_TRAITS)


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError("config.json names no architecture (field architectures)")
    known = [name for name in (_OTHER_NAMES.get(name, name) for name in names) if name in _TRAITS]
    if not known:
        raise ConfigError(f"unknown architecture {', '.join(names)}; known are {', '.join(_TRAITS)}")
    return str(known[0])


def _heads(raw: dict[str, Any], latent: LatentConfig | None) -> tuple[int, int, int]:
    """Query heads, key heads and the size of one. Latent attention has one key for all heads: the latent."""
    hidden_size = count_of(raw, "hidden_size")
    head_count = count_of(raw, "num_attention_heads")
    if latent is not None:
        return head_count, 1, latent.latent_size
    kv_head_count = count_of(raw, "num_key_value_heads", head_count)
    if head_count % kv_head_count:
        raise ConfigError(f"num_attention_heads {head_count} is no multiple of num_key_value_heads {kv_head_count}")
    if raw.get("head_dim") is None and hidden_size % head_count:
        raise ConfigError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {head_count}, and head_dim is absent")
    head_size = count_of(raw, "head_dim", hidden_size // head_count)
    if head_size % 2:
        raise ConfigError(f"head_dim {head_size} is odd: rotary embedding needs pairs")
    return head_count, kv_head_count, head_size


def _check_rotated_size(rope: RopeConfig, head_size: int) -> None:
    rotated = int(head_size * rope.rotary_factor)
    if rotated % 2 or not rotated:
        raise ConfigError(f"partial_rotary_factor {rope.rotary_factor} of {head_size} columns does not give pairs")
    for field, factors in (("short_factor", rope.short_factors), ("long_factor", rope.long_factors)):
        if factors and len(factors) != rotated // 2:
            raise ConfigError(f"rope field {field} has {len(factors)} numbers, one for each of {rotated // 2} pairs is needed")


def _refuse_unsupported(raw: dict[str, Any], traits: _Traits) -> None:
    _check_quantisation(raw.get("quantization_config"))
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")
    layer_types = raw.get("layer_types") or ["full_attention"]
    is_asked = bool(raw.get("use_sliding_window")) and traits.window != "asked"
    if is_asked or any(kind != "full_attention" for kind in layer_types):
        raise ConfigError("sliding-window attention of single layers is not supported (use_sliding_window, layer_types)")


def _check_quantisation(quantisation: Any) -> None:
    """Only FP8 with one scale for each block of 128 x 128, as DeepSeek-V3 is published, is read (and dequantised)."""
    if not quantisation:
        return
    if not isinstance(quantisation, dict) or quantisation.get("quant_method") != "fp8":
        raise ConfigError("quantization_config is set: quantised checkpoints other than block-scaled fp8 are not supported")
    if quantisation.get("weight_block_size") != [128, 128] or quantisation.get("fmt", "e4m3") != "e4m3":
        raise ConfigError("quantization_config: fp8 is supported with fmt e4m3 and weight_block_size [128, 128] only")


def _drafter_layers(raw: dict[str, Any]) -> int:
    """Multi-token prediction layers behind the target's, under either name."""
    field = "num_nextn_predict_layers" if raw.get("num_nextn_predict_layers") is not None else "num_mtp_layers"
    return count_of(raw, field, 0, least=0)


def _window(raw: dict[str, Any], traits: _Traits) -> int:
    if traits.window == "asked":
        return count_of(raw, "sliding_window", 4096) if raw.get("use_sliding_window") else 0
    return count_of(raw, "sliding_window", 0, least=0) if traits.window == "given" else 0

"""What a checkpoint's `config.json` says, read once and checked.

Knows no torch: a bad folder is refused before torch is imported. It does not know how a network is built; the family
files do (`models/llama.py`, `models/qwen.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError


class ConfigError(UsageError):
    """A `config.json` that is missing, broken, or asks for something Paceline does not run."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: the base and, for `llama3`, how long wavelengths are stretched."""

    theta: float
    rope_type: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The fields of `config.json` that a dense decoder needs. Sizes are elements, counts are counts."""

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

    @property
    def query_size(self) -> int:
        """Width of all query heads together, in elements."""
        return self.head_count * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together, in elements."""
        return self.kv_head_count * self.head_size


# Architecture -> (attention biases on q, k and v; q_norm and k_norm). `None`: the config's `attention_bias` says.
_ATTENTION_TRAITS: dict[str, tuple[bool | None, bool]] = {
    "LlamaForCausalLM": (None, False),
    "Qwen2ForCausalLM": (True, False),
    "Qwen3ForCausalLM": (None, True),
}
_ROPE_TYPES = ("default", "linear", "llama3")


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
    qkv_bias, qk_norm = _ATTENTION_TRAITS[architecture]
    attention_bias = bool(raw.get("attention_bias", False))
    _refuse_unsupported(raw)
    hidden_size = _count(raw, "hidden_size")
    head_count = _count(raw, "num_attention_heads")
    kv_head_count = _count(raw, "num_key_value_heads", default=head_count)
    if head_count % kv_head_count:
        raise ConfigError(f"num_attention_heads {head_count} is no multiple of num_key_value_heads {kv_head_count}")
    if raw.get("head_dim") is None and hidden_size % head_count:
        raise ConfigError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {head_count}, and head_dim is absent")
    head_size = _count(raw, "head_dim", default=hidden_size // head_count)
    if head_size % 2:
        raise ConfigError(f"head_dim {head_size} is odd: rotary embedding needs pairs")
    return ModelConfig(
        architecture=architecture,
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(raw, "intermediate_size"),
        layer_count=_count(raw, "num_hidden_layers"),
        head_count=head_count,
        kv_head_count=kv_head_count,
        head_size=head_size,
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=_count(raw, "max_position_embeddings", default=2048),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias if qkv_bias is None else qkv_bias,
        output_bias=False if qkv_bias is not None else attention_bias,
        mlp_bias=bool(raw.get("mlp_bias", False)) and architecture == "LlamaForCausalLM",
        qk_norm=qk_norm,
        rope=_rope(raw),
        stored_dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
    )


def known_architectures() -> tuple[str, ...]:
    """The values of `architectures` in a `config.json` that Paceline runs."""
    return tuple(_ATTENTION_TRAITS)


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError("config.json names no architecture (field architectures)")
    known = [name for name in names if name in _ATTENTION_TRAITS]
    if not known:
        raise ConfigError(f"unknown architecture {', '.join(names)}; known are {', '.join(_ATTENTION_TRAITS)}")
    return str(known[0])


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    if raw.get("quantization_config"):
        raise ConfigError("quantization_config is set: quantised checkpoints are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")
    layer_types = raw.get("layer_types") or ["full_attention"]
    if raw.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise ConfigError("sliding-window attention is not supported (use_sliding_window, layer_types)")


def _count(raw: dict[str, Any], field: str, default: int | None = None) -> int:
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config.json field {field} must be a whole number of at least 1, got {value!r}")
    return value


def _number(rope: dict[str, Any], field: str) -> float:
    value = rope.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"rope field {field} must be a number above 0, got {value!r}")
    return float(value)


def _rope(raw: dict[str, Any]) -> RopeConfig:
    """Accept both spellings: `rope_parameters`, and the older `rope_theta` with `rope_scaling`."""
    rope: dict[str, Any] = {"rope_theta": raw.get("rope_theta") or 10000.0}
    for spelling in ("rope_scaling", "rope_parameters"):
        given = raw.get(spelling)
        if given is None:
            continue
        if not isinstance(given, dict):
            raise ConfigError(f"config.json field {spelling} must be an object, got {given!r}")
        rope.update({field: value for field, value in given.items() if value is not None})
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in _ROPE_TYPES:
        raise ConfigError(f"rope type {rope_type!r} is not supported; known are {', '.join(_ROPE_TYPES)}")
    if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise ConfigError("partial_rotary_factor other than 1 is not supported")
    theta = _number(rope, "rope_theta")
    if rope_type == "default":
        return RopeConfig(theta=theta, rope_type="default")
    if rope_type == "linear":
        return RopeConfig(theta=theta, rope_type="linear", factor=_number(rope, "factor"))
    return RopeConfig(
        theta=theta,
        rope_type="llama3",
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_max_position_embeddings=int(_number(rope, "original_max_position_embeddings")),
    )

"""Rotary position embedding as a `config.json` describes it, in its older and its newer spelling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from paceline.models.fields import ConfigError

_ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The base, which part of a head is rotated, and how long wavelengths are stretched (by `rope_type`)."""

    theta: float
    rope_type: str
    # Part of each head that is rotated, its first columns.
    rotary_factor: float = 1.0
    # linear, llama3, yarn.
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0
    # yarn: rotations within the trained length between which pairs are blended, and whether the bounds are whole pairs.
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    # What cosine and sine are multiplied by; in longrope, of sequences within the trained length and beyond it.
    magnitude: float = 1.0
    long_magnitude: float = 1.0
    # yarn in latent attention: what scores are multiplied by.
    score_factor: float = 1.0
    # longrope: a factor for each pair, of sequences within the trained length and beyond it.
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


def parse_rope(raw: dict[str, Any], *, default_theta: float = 10000.0, default_rotary_factor: float = 1.0) -> RopeConfig:
    """Accept both spellings: `rope_parameters`, and the older `rope_theta` with `rope_scaling`. Raises `ConfigError`."""
    rope: dict[str, Any] = {"rope_theta": raw.get("rope_theta") or default_theta}
    for field in ("partial_rotary_factor", "original_max_position_embeddings"):
        if raw.get(field) is not None:
            rope[field] = raw[field]
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
    rotary_factor = _number(rope, "partial_rotary_factor", default_rotary_factor)
    if rotary_factor > 1:
        raise ConfigError(f"rope field partial_rotary_factor must be at most 1, got {rotary_factor}")
    return RopeConfig(
        theta=_number(rope, "rope_theta"), rope_type=rope_type, rotary_factor=rotary_factor, **_stretch(rope_type, rope, raw)
    )


def _stretch(rope_type: str, rope: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of `RopeConfig` that a rope type adds."""
    if rope_type == "default":
        return {}
    if rope_type == "linear":
        return {"factor": _number(rope, "factor")}
    if rope_type == "llama3":
        return {
            "factor": _number(rope, "factor"),
            "low_freq_factor": _number(rope, "low_freq_factor"),
            "high_freq_factor": _number(rope, "high_freq_factor"),
            "original_max_position_embeddings": int(_number(rope, "original_max_position_embeddings")),
        }
    trained = int(_number(rope, "original_max_position_embeddings", raw.get("max_position_embeddings")))
    factor = _number(rope, "factor", (raw.get("max_position_embeddings") or trained) / trained)
    if rope_type == "yarn":
        return {"factor": factor, "original_max_position_embeddings": trained, **_yarn(rope, factor)}
    return {"original_max_position_embeddings": trained, **_longrope(rope, factor, trained)}


def _yarn(rope: dict[str, Any], factor: float) -> dict[str, Any]:
    mscale, mscale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and mscale_all:
        magnitude = _yarn_magnitude(factor, _number(rope, "mscale")) / _yarn_magnitude(factor, _number(rope, "mscale_all_dim"))
    else:
        magnitude = _yarn_magnitude(factor, 1.0)
    score = _yarn_magnitude(factor, _number(rope, "mscale_all_dim")) ** 2 if mscale_all else 1.0
    return {
        "beta_fast": _number(rope, "beta_fast", 32.0),
        "beta_slow": _number(rope, "beta_slow", 1.0),
        "truncate": bool(rope.get("truncate", True)),
        "magnitude": _number(rope, "attention_factor", magnitude),
        "score_factor": score,
    }


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(rope: dict[str, Any], factor: float, trained: int) -> dict[str, Any]:
    inferred = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    magnitude = _number(rope, "attention_factor", inferred)
    return {
        "magnitude": _number(rope, "short_mscale", magnitude),
        "long_magnitude": _number(rope, "long_mscale", magnitude),
        "short_factors": _numbers(rope, "short_factor"),
        "long_factors": _numbers(rope, "long_factor"),
    }


def _number(rope: dict[str, Any], field: str, default: float | None = None) -> float:
    value = rope.get(field)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"rope field {field} must be a number above 0, got {value!r}")
    return float(value)


def _numbers(rope: dict[str, Any], field: str) -> tuple[float, ...]:
    values = rope.get(field)
    if not isinstance(values, list) or not values:
        raise ConfigError(f"rope field {field} must be a list of numbers above 0, got {values!r}")
    return tuple(_number({field: value}, field) for value in values)

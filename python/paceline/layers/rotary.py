"""Rotary position embedding in the half-split (NeoX) form that Hugging Face checkpoints use.

Tables are computed in fp32 and rounded to the model's type, as transformers does, so that logits agree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from paceline import _core
from paceline.layers.host import array_of, has_kernels
from paceline.models.rope_config import RopeConfig


class RotaryTable:
    """Cosine and sine for every position below a limit, in the model's type."""

    __slots__ = ("_cos", "_sin")

    def __init__(self, rope: RopeConfig, head_size: int, max_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        """Fill tables for positions `0 .. max_positions - 1` and the first `rotary_factor` of `head_size` columns.

        A longrope model has one set of factors for short sequences and one for long ones. What is cached must not depend
        on how long a sequence grows later, so `max_positions` chooses for all: the long set if it passes the trained
        length.
        """
        is_long = max_positions > rope.original_max_position_embeddings
        frequencies = inverse_frequencies(rope, int(head_size * rope.rotary_factor), is_long=is_long)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        magnitude = rope.long_magnitude if rope.rope_type == "longrope" and is_long else rope.magnitude
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        # rotate_half(x) * sin == roll(x) * [-sin | sin]: the sign lives in the table, so no negation per call.
        self._cos = torch.cat((cos, cos), dim=-1).to(device=device, dtype=dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).to(device=device, dtype=dtype)

    @property
    def position_count(self) -> int:
        """Positions that the tables cover."""
        return self._cos.shape[0]

    def at(self, positions: Tensor) -> Rotation:
        """The rotation of tokens at `positions [tokens]`, made once per pass."""
        return Rotation(self._cos.index_select(0, positions), self._sin.index_select(0, positions))


class HeadNorm:
    """RMS norm of single heads, each with its own factors."""

    __slots__ = ("array", "eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        """Take `weight [heads, head_size]`."""
        self.weight = weight
        self.eps = eps
        self.array = array_of(weight.flatten()) if has_kernels(weight) else None


class Rotation:
    """Cosine and signed sine of the tokens of one pass."""

    __slots__ = ("_cos", "_sin", "arrays")

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        """Take `[tokens, rotated columns]`, the first half of each row of `sin` negated."""
        self._cos, self._sin = cos, sin
        self.arrays = (array_of(cos), array_of(sin)) if has_kernels(cos) else None

    def apply(self, heads: Tensor, count: int, size: int, norm: HeadNorm | None = None) -> None:
        """Rotate in place the first `count` heads, each `size` wide, of `heads [tokens, columns]`, normalised before.

        Of each head, as many columns are rotated as the table has.
        """
        if self.arrays is None:
            self._apply_by_torch(heads[:, : count * size].view(-1, count, size), norm)
            return
        weight, eps = (None, 0.0) if norm is None else (norm.array, norm.eps)
        _core.rotate(array_of(heads), count, size, *self.arrays, weight, eps)

    def _apply_by_torch(self, heads: Tensor, norm: HeadNorm | None) -> None:
        if norm is not None:
            heads.copy_(functional.rms_norm(heads, (heads.shape[-1],), None, norm.eps) * norm.weight)
        cos, sin = self._cos.unsqueeze(1), self._sin.unsqueeze(1)
        rotated = heads[..., : cos.shape[-1]]
        rotated.copy_(torch.addcmul(rotated * cos, rotated.roll(cos.shape[-1] // 2, dims=-1), sin))


def inverse_frequencies(rope: RopeConfig, head_size: int, *, is_long: bool = False) -> Tensor:
    """Radians per position for each pair, `[head_size / 2]` in fp32. `is_long` chooses the factors of longrope."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).to(torch.float32) / head_size
    wavelengths = rope.theta**exponents
    frequencies = 1.0 / wavelengths
    match rope.rope_type:
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _llama3_frequencies(frequencies, rope)
        case "yarn":
            return _yarn_frequencies(wavelengths, rope, head_size)
        case "longrope":
            return 1.0 / (torch.tensor(rope.long_factors if is_long else rope.short_factors) * wavelengths)
    return frequencies


def _llama3_frequencies(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Stretch long wavelengths by `factor`, keep short ones, blend between."""
    trained = rope.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    long_wavelength = trained / rope.low_freq_factor
    short_wavelength = trained / rope.high_freq_factor
    stretched = torch.where(wavelengths > long_wavelength, frequencies / rope.factor, frequencies)
    blend = (trained / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * stretched / rope.factor + blend * stretched
    is_between = ~(wavelengths < short_wavelength) & ~(wavelengths > long_wavelength)
    return torch.where(is_between, blended, stretched)


def _yarn_frequencies(wavelengths: Tensor, rope: RopeConfig, head_size: int) -> Tensor:
    """Stretch pairs that turn less than `beta_slow` times within the trained length, keep those above `beta_fast`."""

    def pair_of(rotations: float) -> float:
        turns = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_size * math.log(turns) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    width = high - low if high != low else 0.001
    stretched = torch.clamp((torch.arange(head_size // 2, dtype=torch.float32) - low) / width, 0, 1)
    kept = 1 - stretched
    return 1.0 / (rope.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept

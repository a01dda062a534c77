"""Rotary position embedding in the half-split (NeoX) form that Hugging Face checkpoints use.

Tables are computed in fp32 and rounded to the model's type, as transformers does, so that logits agree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.models.config import RopeConfig


class RotaryTable:
    """Cosine and sine for every position below a limit, in the model's type."""

    __slots__ = ("_cos", "_sin")

    def __init__(self, rope: RopeConfig, head_size: int, max_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        """Fill tables for positions `0 .. max_positions - 1`."""
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), inverse_frequencies(rope, head_size))
        cos, sin = angles.cos(), angles.sin()
        # rotate_half(x) * sin == roll(x) * [-sin | sin]: the sign lives in the table, so no negation per call.
        self._cos = torch.cat((cos, cos), dim=-1).to(device=device, dtype=dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).to(device=device, dtype=dtype)

    @property
    def position_count(self) -> int:
        """Positions that the tables cover."""
        return self._cos.shape[0]

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine `[tokens, 1, head_size]` at `positions [tokens]`, made once per pass."""
        return self._cos.index_select(0, positions).unsqueeze(1), self._sin.index_select(0, positions).unsqueeze(1)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `heads [tokens, heads, head_size]` by what `RotaryTable.at` gave; a new tensor."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return torch.addcmul(heads * cos, swapped, sin)


def inverse_frequencies(rope: RopeConfig, head_size: int) -> Tensor:
    """Radians per position for each pair, `[head_size / 2]` in fp32."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).to(torch.float32) / head_size
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "llama3":
        return _llama3_frequencies(frequencies, rope)
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

"""Where a model's blocks get their weights from: the checkpoint, cut to the shard of this worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from paceline.layers.linear import Linear
from paceline.layers.norm import LayerNorm, RmsNorm
from paceline.layers.quantization import Quantization
from paceline.models.config import ModelConfig
from paceline.parallel.context import Parallel
from paceline.weights.loader import Cut, WeightReader


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint, what its config says, and which part of it is wanted."""

    config: ModelConfig
    weights: WeightReader
    parallel: Parallel
    quantization: Quantization = Quantization.NONE

    def linear(self, weight: Tensor | Sequence[Tensor], bias: Tensor | None = None, *, is_shared: bool = False) -> Linear:
        """A layer of `weight [out, in]` that was read, in the form that the model runs it in; see `Linear` for the rest."""
        return Linear(weight, bias, pack=True, is_shared=is_shared, quantization=self.quantization)

    def rms_norm(self, name: str, width: int, eps: float | None = None) -> RmsNorm:
        """Read `NAME.weight`; `eps` where it is not that of the config."""
        return RmsNorm(self.weights.take(f"{name}.weight", (width,)), self.config.rms_norm_eps if eps is None else eps)

    def layer_norm(self, name: str, width: int) -> LayerNorm:
        """Read `NAME.weight` and `NAME.bias`."""
        weight, bias = (self.weights.take(f"{name}.{kind}", (width,)) for kind in ("weight", "bias"))
        return LayerNorm(weight, bias, self.config.rms_norm_eps)

    def output_cut(self, parts: Sequence[tuple[str, int, range]], in_size: int, *, bias: bool = False) -> Linear:
        """Fuse matrices `NAME.weight [size, in_size]`, of each the rows in a range: its outputs are this worker's only."""
        places = [(f"{name}.weight", (size, in_size), Cut(0, rows)) for name, size, rows in parts]
        fused_bias = None
        if bias:
            fused_bias = self.weights.take_fused([(f"{name}.bias", (size,), Cut(0, rows)) for name, size, rows in parts])
        views = [view for place in places if (view := self.weights.view(*place)) is not None]
        if len(views) == len(places):
            return self.linear(views, fused_bias, is_shared=True)
        return self.linear(self.weights.take_fused(places), fused_bias)

    def input_cut(self, name: str, out_size: int, in_size: int, columns: range, *, bias: bool = False) -> Linear:
        """Read the `columns` of `NAME.weight [out_size, in_size]`: its outputs are to be summed over the tp workers.

        The bias must count once in that sum: the first worker adds it.
        """
        place = (f"{name}.weight", (out_size, in_size), Cut(1, columns))
        first_bias = None
        if bias and self.parallel.tp.index == 0:
            first_bias = self.weights.take(f"{name}.bias", (out_size,))
        elif bias:
            self.weights.leave(f"{name}.bias")
        view = self.weights.view(*place)
        if view is not None:
            return self.linear(view, first_bias, is_shared=True)
        return self.linear(self.weights.take(*place), first_bias)


def scaled(part: range, size: int) -> range:
    """The elements of a range of heads that are each `size` wide."""
    return range(part.start * size, part.stop * size)

"""Latent attention (MLA) in its absorbed form: queries are brought into the space of the cached latent.

The cache holds one latent and one rotated key per token for all heads. Keys and values are never expanded from it: what
would multiply them multiplies queries and outputs instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.attention.interface import AttentionBackend
from paceline.layers.linear import Linear
from paceline.layers.norm import RmsNorm
from paceline.layers.rotary import Rotation
from paceline.models.latent_config import LatentConfig
from paceline.parallel.context import Parallel


class LatentQuery:
    """From a token to its queries, through a bottleneck with a norm or at once."""

    __slots__ = ("norm", "up")

    def __init__(self, up: Linear, norm: RmsNorm | None) -> None:
        """Take `up [heads * query_size, rank or hidden]`, and the bottleneck's norm if there is one."""
        self.up = up
        self.norm = norm

    def __call__(self, x: Tensor) -> Tensor:
        """Turn `x [tokens, rank or hidden]` into `[tokens, heads * query_size]`."""
        return self.up(x if self.norm is None else self.norm(x))


class LatentAttention:
    """Products into the bottlenecks, rotation, the backend, and back; summed over the tp workers."""

    __slots__ = ("down", "key_up", "latent_norm", "layer", "output", "parallel", "query", "scale", "sizes", "value_up")

    def __init__(
        self,
        layer: int,
        sizes: LatentConfig,
        parallel: Parallel,
        *,
        down: Linear,
        query: LatentQuery,
        latent_norm: RmsNorm,
        key_up: Tensor,
        value_up: Tensor,
        output: Linear,
        scale: float,
    ) -> None:
        """Take the products of one layer, heads being those of this worker.

        `down [query rank + latent_size, hidden]` (query rank first, 0 where queries do not pass a bottleneck); `key_up
        [heads, nope_size, kv_rank]`; `value_up [heads, kv_rank, value_size]`; `output [hidden, heads * value_size]`.
        """
        self.layer = layer
        self.sizes = sizes
        self.parallel = parallel
        self.down = down
        self.query = query
        self.latent_norm = latent_norm
        self.key_up = key_up
        self.value_up = value_up
        self.output = output
        self.scale = scale

    def __call__(self, x: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Attend for `x [tokens, hidden]`: this step's latents are written first, then read with the rest."""
        sizes = self.sizes
        query_input, latent, key = torch.split_with_sizes(self.down(x), (sizes.query_rank, sizes.kv_rank, sizes.rope_size), dim=-1)
        queries = self.query(query_input if sizes.query_rank else x).view(x.shape[0], -1, sizes.query_size)
        nope, rope = torch.split_with_sizes(queries, (sizes.nope_size, sizes.rope_size), dim=-1)
        rotated = torch.cat((rope, key.unsqueeze(1)), dim=1)
        rotation.apply(rotated.view(x.shape[0], -1), rotated.shape[1], sizes.rope_size)
        absorbed = torch.bmm(nope.transpose(0, 1), self.key_up).transpose(0, 1)
        attended = backend.attend_latent(
            self.layer,
            torch.cat((absorbed, rotated[:, :-1]), dim=-1),
            torch.cat((self.latent_norm(latent), rotated[:, -1]), dim=-1),
            value_size=sizes.kv_rank,
            scale=self.scale,
        )
        values = torch.bmm(attended.transpose(0, 1), self.value_up).transpose(0, 1)
        return self.parallel.all_reduce(self.output(values.flatten(1)))

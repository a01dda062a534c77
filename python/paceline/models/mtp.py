"""Multi-token prediction: decoder layers behind the target, each of which drafts one token further (DeepSeek, GLM).

Embedding and output head are the target's; the copies that checkpoints hold beside each layer are not read.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from paceline.attention.interface import AttentionBackend
from paceline.layers.decoder import DecoderLayer
from paceline.layers.norm import RmsNorm
from paceline.layers.rotary import RotaryTable, Rotation
from paceline.layers.vocabulary import Embedding, OutputHead
from paceline.models.source import Source


class Drafter(Protocol):
    """Layers behind the target that draft further tokens.

    Layers count from 1; layer j caches in layer `config.layer_count + j - 1`.
    """

    @property
    def layer_count(self) -> int:
        """Layers that were read."""

    def hidden_states(
        self, layer: int, input_ids: Tensor, positions: Tensor, previous_hidden: Tensor, backend: AttentionBackend
    ) -> Tensor:
        """Run one layer.

        `input_ids [tokens]` are the tokens that it is fed, `previous_hidden [tokens, hidden]` the output of the target
        or of the layer before; gives `[tokens, hidden]`, which the next layer is fed.
        """

    def logits(self, layer: int, hidden_states: Tensor) -> Tensor:
        """Turn `[rows, hidden]` of a layer into fp32 `[rows, vocabulary]`."""


class MtpLayer:
    """Joins the embedding of the next token with what is known of the tokens before, and runs one decoder layer.

    Position 0 is a position like any other, as in transformers; the embedding there is not set to zero.
    """

    __slots__ = ("decoder", "embedding_norm", "hidden_norm", "norm", "projection")

    def __init__(self, source: Source, layer: int, decoder: DecoderLayer) -> None:
        """Read what `model.layers.LAYER` has beside its decoder layer."""
        prefix, width = f"model.layers.{layer}", source.config.hidden_size
        self.embedding_norm: RmsNorm = source.rms_norm(f"{prefix}.enorm", width)
        self.hidden_norm: RmsNorm = source.rms_norm(f"{prefix}.hnorm", width)
        self.projection = source.linear(source.weights.take(f"{prefix}.eh_proj.weight", (width, 2 * width)))
        self.norm: RmsNorm = source.rms_norm(f"{prefix}.shared_head.norm", width)
        self.decoder = decoder
        source.weights.leave(f"{prefix}.embed_tokens.weight", f"{prefix}.shared_head.head.weight")

    def __call__(self, embedded: Tensor, previous_hidden: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Take two `[tokens, hidden]`; gives one, normalised."""
        joined = torch.cat((self.embedding_norm(embedded), self.hidden_norm(previous_hidden)), dim=-1)
        x = self.projection(joined)
        return self.norm.after(x, self.decoder(x, None, rotation, backend))


class MtpDrafter:
    """The drafting layers of one model; see `Drafter`."""

    def __init__(self, layers: list[MtpLayer], embedding: Embedding, head: OutputHead, rotary: RotaryTable) -> None:
        """Take the layers in order, and what they share with the target."""
        self._layers = layers
        self._embedding = embedding
        self._head = head
        self._rotary = rotary

    @property
    def layer_count(self) -> int:
        """Layers that were read."""
        return len(self._layers)

    @torch.inference_mode()
    def hidden_states(
        self, layer: int, input_ids: Tensor, positions: Tensor, previous_hidden: Tensor, backend: AttentionBackend
    ) -> Tensor:
        """Run layer `layer`, counted from 1; see `Drafter.hidden_states`."""
        embedded = self._embedding(input_ids)
        return self._layers[layer - 1](embedded, previous_hidden, self._rotary.at(positions), backend)

    @torch.inference_mode()
    def logits(self, layer: int, hidden_states: Tensor) -> Tensor:
        """Turn `[rows, hidden]` of a layer into fp32 `[rows, vocabulary]`: all layers share the target's head."""
        return self._head(hidden_states)

"""The network that every family is: embedding, decoder layers, final norm, output head.

A family says how its layers are read; it is written as a subclass of `CausalLM` in a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from paceline.attention.interface import AttentionBackend
from paceline.layers.blocks import LayerStack
from paceline.layers.decoder import Attention, DecoderLayer, FeedForward
from paceline.layers.norm import Norm
from paceline.layers.quantization import Quantization
from paceline.layers.rotary import RotaryTable, Rotation
from paceline.layers.vocabulary import Embedding, OutputHead
from paceline.models.blocks import read_mlp, read_self_attention
from paceline.models.config import ConfigError, ModelConfig
from paceline.models.mtp import Drafter, MtpDrafter, MtpLayer
from paceline.models.source import Source
from paceline.parallel.context import Parallel
from paceline.weights.loader import Cut, WeightReader


class CausalLM:
    """A decoder-only language model over flat batches. The base is Llama's network; families replace the readers."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightReader,
        max_positions: int,
        parallel: Parallel,
        drafter_layers: int = 0,
        quantization: Quantization = Quantization.NONE,
    ) -> None:
        """Read all tensors that this worker needs.

        Positions run below `max_positions`, which may pass the checkpoint's own limit. `drafter_layers` of the layers
        behind the target are read too. `quantization` is for the linear layers, head and experts among them; embedding,
        norms, routers and what expands latents stay as they are.
        """
        self.config = config
        source = Source(config, weights, parallel, quantization)
        self._embedding, self._head = _read_vocabulary(source)
        self._layers = [
            self.read_layer(source, layer, is_sparse=config.moe is not None and config.moe.is_sparse[layer])
            for layer in range(config.layer_count)
        ]
        # All layers in one call, where that can be; without it they run one by one.
        self.stack = _stack_of(self._layers)
        self._norm = self.read_norm(source, "model.norm")
        rotated_size = config.head_size if config.latent is None else config.latent.rope_size
        self._rotary = RotaryTable(config.rope, rotated_size, max_positions, weights.dtype, weights.device)
        self.drafter = self._read_drafter(source, drafter_layers)
        weights.finish()

    @property
    def decoder_layers(self) -> Sequence[DecoderLayer]:
        """The target's layers, in order."""
        return self._layers

    def read_layer(self, source: Source, layer: int, *, is_sparse: bool) -> DecoderLayer:
        """Read decoder layer `layer`, which caches in the layer of that number."""
        prefix = f"model.layers.{layer}"
        return DecoderLayer(
            self.read_norm(source, f"{prefix}.input_layernorm"),
            self.read_attention(source, layer, f"{prefix}.self_attn"),
            self.read_norm(source, f"{prefix}.post_attention_layernorm"),
            self.read_feed_forward(source, prefix, is_sparse=is_sparse),
        )

    def read_norm(self, source: Source, name: str) -> Norm:
        """Read a norm of the residual stream."""
        return source.rms_norm(name, source.config.hidden_size)

    def read_attention(self, source: Source, layer: int, prefix: str) -> Attention:
        """Read a layer's attention."""
        return read_self_attention(source, layer, prefix)

    def read_feed_forward(self, source: Source, prefix: str, *, is_sparse: bool) -> FeedForward:
        """Read what follows a layer's attention; `is_sparse` where the config says that it has experts."""
        return read_mlp(source, f"{prefix}.mlp", source.config.intermediate_size, bias=source.config.mlp_bias)

    def _read_drafter(self, source: Source, layer_count: int) -> Drafter | None:
        """Read the first `layer_count` drafting layers, which lie behind the target's; `None` for none."""
        config = source.config
        if layer_count > config.drafter_layer_count:
            raise ConfigError(f"{layer_count} drafting layers are wanted, the model has {config.drafter_layer_count}")
        numbers = range(config.layer_count, config.layer_count + config.drafter_layer_count)
        layers = [MtpLayer(source, number, self.read_layer(source, number, is_sparse=True)) for number in numbers[:layer_count]]
        for number in numbers[layer_count:]:
            source.weights.leave_all(f"model.layers.{number}.")
        return MtpDrafter(layers, self._embedding, self._head, self._rotary) if layers else None

    @torch.inference_mode()
    def hidden_states(self, input_ids: Tensor, positions: Tensor, backend: AttentionBackend) -> Tensor:
        """Run the decoder over `input_ids [tokens]` at `positions [tokens]`; gives `[tokens, hidden]` after the final norm.

        `backend` must have been given this pass's batch by `AttentionBackend.prepare`.
        """
        x = self._embedding(input_ids)
        rotation = self._rotary.at(positions)
        return self._norm.after(x, self._run_layers(x, rotation, backend))

    def _run_layers(self, x: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor | None:
        """Run all layers on the residual stream `x [tokens, hidden]`, in place; gives what is still to be added to it."""
        kernel = backend.kernel
        if self.stack is not None and kernel is not None and x.shape[0] <= self.stack.rows_max:
            return self.stack(x, rotation, kernel)
        added: Tensor | None = None
        for layer in self._layers:
            added = layer(x, added, rotation, backend)
        return added

    @torch.inference_mode()
    def logits(self, hidden_states: Tensor) -> Tensor:
        """Output head for the rows that need it: `[rows, hidden]` to fp32 `[rows, vocabulary]`."""
        return self._head(hidden_states)


def _stack_of(layers: Sequence[DecoderLayer]) -> LayerStack | None:
    """All layers as one, if each has both halves and no other worker has a part in them."""
    halves = []
    for layer in layers:
        attention, feed_forward = layer.attention_half, layer.feed_forward_half
        if attention is None or feed_forward is None or not feed_forward.is_alone:
            return None
        halves.append((attention, feed_forward))
    return LayerStack(halves) if halves else None


def _read_vocabulary(source: Source) -> tuple[Embedding, OutputHead]:
    """Read embedding and head, of each the same tokens, padded with zeros so that all workers hold as many."""
    config, weights, parallel = source.config, source.weights, source.parallel
    part = parallel.tp.range_of(config.vocab_size)
    missing = -(-config.vocab_size // parallel.tp.count) - len(part)

    def read(name: str, *, is_kept: bool) -> tuple[Tensor, bool]:
        """A matrix, and whether its memory is the checkpoint's."""
        place = (name, (config.vocab_size, config.hidden_size), Cut(0, part))
        view = weights.view(*place) if is_kept and not missing else None
        if view is not None:
            return view, True
        matrix = weights.take(*place)
        return functional.pad(matrix, (0, 0, 0, missing)) if missing else matrix, False

    # A file of which only this were left would stay mapped for it.
    embedding, is_mapped = read("model.embed_tokens.weight", is_kept=source.quantization is Quantization.NONE)
    if config.tie_word_embeddings:
        weights.leave("lm_head.weight")
        head = embedding
    else:
        head, is_mapped = read("lm_head.weight", is_kept=True)
    bias = None
    if config.head_bias:
        bias = functional.pad(weights.take("lm_head.bias", (config.vocab_size,), Cut(0, part)), (0, missing))
    linear = source.linear(head, bias, is_shared=is_mapped or config.tie_word_embeddings)
    return Embedding(embedding, part.start, parallel), OutputHead(linear, config.vocab_size, parallel)

"""DeepSeek-V3 with one draft (MTP) layer, written for training: the mathematics of the `transformers` classes.

Parameters carry the names of the checkpoint except that a layer's experts are stacked (`folder.py` takes them apart).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.experts import Experts, Gate
from training.shape import Shape

Pair = tuple[Tensor, Tensor]


class Linear(nn.Module):
    """A matrix without bias, kept in fp32 and multiplied in the dtype of its input."""

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5 * scale)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """RMSNorm in fp32; the result has the model's compute dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise the last axis."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(dtype)


def rotate(x: Tensor, angles: Pair) -> Tensor:
    """Rotate the interleaved pairs of `x` [batch, heads, tokens, rope]; angles are cos and sin [tokens, rope / 2]."""
    cos, sin = angles
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), -1).to(x.dtype)


class Attention(nn.Module):
    """Multi-head latent attention over whole sequences."""

    def __init__(self, shape: Shape, output_scale: float) -> None:
        super().__init__()
        self.shape = shape
        heads, hidden, eps = shape.num_attention_heads, shape.hidden_size, shape.rms_norm_eps
        self.q_a_proj = Linear(hidden, shape.q_lora_rank)
        self.q_a_layernorm = Norm(shape.q_lora_rank, eps)
        self.q_b_proj = Linear(shape.q_lora_rank, heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim))
        self.kv_a_proj_with_mqa = Linear(hidden, shape.kv_lora_rank + shape.qk_rope_head_dim)
        self.kv_a_layernorm = Norm(shape.kv_lora_rank, eps)
        self.kv_b_proj = Linear(shape.kv_lora_rank, heads * (shape.qk_nope_head_dim + shape.v_head_dim))
        self.o_proj = Linear(heads * shape.v_head_dim, hidden, output_scale)
        self.scale = (shape.qk_nope_head_dim + shape.qk_rope_head_dim) ** -0.5

    def forward(self, x: Tensor, angles: Pair, past: list[Pair] | None) -> Tensor:
        """Attend causally; `x` and the result are [batch, tokens, hidden].

        `past` collects keys and values. When it holds some, `x` is a further pass of the draft layer: its token p comes
        after token p of all passes before, so it sees the first pass up to p, and p itself of every later one.
        """
        query, key, value = self._project(x, angles)
        keys = [*past, (key, value)] if past else [(key, value)]
        mixed = self._attend(query, keys[0], keys[1:])
        if past is not None:
            past.append((key, value))
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _project(self, x: Tensor, angles: Pair) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, all [batch, heads, tokens, size]."""
        shape, heads = self.shape, self.shape.num_attention_heads
        query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x), x.dtype)).unflatten(-1, (heads, -1)).transpose(1, 2)
        q_nope, q_rope = query.split([shape.qk_nope_head_dim, shape.qk_rope_head_dim], -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([shape.kv_lora_rank, shape.qk_rope_head_dim], -1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent, x.dtype)).unflatten(-1, (heads, -1)).transpose(1, 2)
        k_nope, value = expanded.split([shape.qk_nope_head_dim, shape.v_head_dim], -1)
        k_rope = rotate(k_rope.unsqueeze(1), angles).expand(-1, heads, -1, -1)
        return torch.cat((q_nope, rotate(q_rope, angles)), -1), torch.cat((k_nope, k_rope), -1), value

    def _attend(self, query: Tensor, first: Pair, later: list[Pair]) -> Tensor:
        """Attention over the first pass's tokens up to the query's own, and over that token in each later pass."""
        tokens = query.shape[2]
        key, value = first[0].flatten(0, 1), first[1].flatten(0, 1)
        mask = query.new_full((tokens, tokens), -torch.inf).triu(1)
        # In one product with scale and mask, softmax in the compute dtype: twice as fast on a CPU as the fused kernel.
        scores = torch.baddbmm(mask, query.flatten(0, 1), key.transpose(1, 2), alpha=self.scale)
        single = [(query * own).flatten(0, 1).sum(-1, keepdim=True) * self.scale for own, _ in later]
        weights = torch.cat((scores, *single), -1).softmax(-1) if later else scores.softmax(-1)
        mixed = weights[..., :tokens] @ value
        for index, (_, own) in enumerate(later):
            mixed = mixed + weights[..., tokens + index, None] * own.flatten(0, 1)
        return mixed.unflatten(0, query.shape[:2])


class Mlp(nn.Module):
    """The gated MLP of dense layers and shared experts."""

    def __init__(self, hidden: int, inner: int, output_scale: float) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden, inner)
        self.up_proj = Linear(hidden, inner)
        self.down_proj = Linear(inner, hidden, output_scale)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nn.Module):
    """Routed experts and the shared one."""

    def __init__(self, shape: Shape, output_scale: float) -> None:
        super().__init__()
        self.gate = Gate(shape)
        self.experts = Experts(shape, output_scale / shape.routed_scaling_factor)
        self.shared_experts = Mlp(shape.hidden_size, shape.n_shared_experts * shape.moe_intermediate_size, output_scale)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] to the same in fp32."""
        weights, ids = self.gate(x.float())
        if self.training:
            self.gate.load += ids.flatten().bincount(minlength=self.gate.load.numel())
        return self.experts(x, weights, ids) + self.shared_experts(x)


class Layer(nn.Module):
    """One decoder layer; the residual stream is fp32."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        output_scale = (2 * shape.num_hidden_layers) ** -0.5
        self.self_attn = Attention(shape, output_scale)
        dense = index < shape.first_k_dense_replace
        self.mlp = Mlp(shape.hidden_size, shape.intermediate_size, output_scale) if dense else Mixture(shape, output_scale)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, angles: Pair, dtype: torch.dtype, past: list[Pair] | None = None) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        x = x + self.self_attn(self.input_layernorm(x, dtype), angles, past)
        normed = self.post_attention_layernorm(x, dtype)
        return x + self.mlp(normed.flatten(0, 1)).view_as(x)


class SharedHead(nn.Module):
    """What belongs to the draft layer of the head it shares with the model: the norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)


class DraftLayer(Layer):
    """The draft layer: a decoder layer over the last hidden state and the embedding of the next token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, shape.num_hidden_layers)
        self.enorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.hnorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.eh_proj = Linear(2 * shape.hidden_size, shape.hidden_size)
        self.shared_head = SharedHead(shape)


class Model(nn.Module):
    """The whole model. Matrix products run in `dtype`, everything else in fp32."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        layers = [Layer(shape, index) for index in range(shape.num_hidden_layers)]
        self.layers = nn.ModuleList([*layers, DraftLayer(shape)])
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = Linear(shape.hidden_size, shape.vocab_size)
        steps = torch.arange(0, shape.qk_rope_head_dim, 2, dtype=torch.float)
        self.register_buffer("frequencies", 1.0 / shape.rope_theta ** (steps / shape.qk_rope_head_dim), persistent=False)

    def forward(self, tokens: Tensor, depth: int) -> list[Tensor]:
        """Logits [batch, length, vocabulary] of the model and of `depth` passes of its draft layer.

        `tokens` is [batch, length + depth]: list entry i at position p follows tokens up to p + i and guesses p + i + 1.
        """
        length = tokens.shape[1] - depth
        x = self.embed_tokens(tokens[:, :length])
        for layer in self.layers[:-1]:
            x = layer(x, self._angles(0, length), self.dtype)
        x = self.norm(x, self.dtype)
        logits = [self.lm_head(x).float()]
        draft = self.layers[-1]
        past: list[Pair] = []
        for index in range(1, depth + 1):
            following = self.embed_tokens(tokens[:, index : length + index])
            fed = draft.eh_proj(torch.cat((draft.enorm(following, self.dtype), draft.hnorm(x, self.dtype)), -1))
            x = draft.shared_head.norm(draft(fed.float(), self._angles(index - 1, length), self.dtype, past), self.dtype)
            logits.append(self.lm_head(x).float())
        return logits

    def gates(self) -> list[Gate]:
        """The gate of every layer that has experts."""
        return [layer.mlp.gate for layer in self.layers if isinstance(layer.mlp, Mixture)]

    def _angles(self, start: int, length: int) -> Pair:
        """Cosines and sines [length, rope / 2] from position `start` on."""
        angles = torch.outer(torch.arange(start, start + length, dtype=torch.float), self.frequencies)
        return angles.cos(), angles.sin()

"""Layers in one call against the same layers part by part: the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline import _core
from paceline.layers.linear import can_pack
from parity.checkpoints import make_checkpoint, random_tokens
from parity.families import CASES
from parity.paged import PagedModel

# What this machine's products of bfloat16 allow: without packed weights every part is torch's.
HAS_BLOCKS = can_pack(torch.zeros(1, 2, dtype=torch.bfloat16))


def run(paged: PagedModel) -> list[torch.Tensor]:
    """A prompt in two parts beside a decoding row, rows that verify drafts, and one row alone."""
    first, second = random_tokens(30, seed=1), random_tokens(30, seed=2)
    first_blocks, second_blocks = list(range(1, 12)), [40, 30, 41, 31, 32, 33, 60, 50]
    outputs = paged.hidden_states([(second[:6], 0, second_blocks)])
    outputs += paged.hidden_states([(first[:5], 0, first_blocks), (second[6:7], 6, second_blocks)])
    outputs += paged.hidden_states([(first[5:8], 5, first_blocks), (second[7:10], 7, second_blocks)], padding_rows=2)
    return outputs + paged.hidden_states([(first[8:9], 8, first_blocks)])


@pytest.mark.parametrize(
    "case", ["llama", "llama-tied", "llama-mha-biases", "qwen2", "qwen3", "qwen3-moe", "qwen3-moe-window", "mixtral", "glm"]
)
def test_layers_in_one_call_give_the_bits_of_their_parts(case: str, tmp_path: Path) -> None:
    family, fields = CASES[case]
    make_checkpoint(tmp_path, family, **fields)
    together, halves, apart = (PagedModel(tmp_path, torch.bfloat16) for _ in range(3))
    is_dense = all(layer.feed_forward_half for layer in together.model.decoder_layers)
    assert (together.model.stack is not None) == (HAS_BLOCKS and is_dense)
    assert all((layer.attention_half is not None) == HAS_BLOCKS for layer in together.model.decoder_layers)
    halves.model.stack = None
    apart.model.stack = None
    for layer in apart.model.decoder_layers:
        layer.attention_half = layer.feed_forward_half = None
    expected = run(apart)
    for model in (together, halves):
        for got, part in zip(run(model), expected, strict=True):
            assert torch.equal(got, part)
    for keys, own in zip(apart.cache.keys + apart.cache.values, together.cache.keys + together.cache.values, strict=True):
        assert torch.equal(keys, own)


def test_shapes_that_do_not_fit_are_refused_with_both_numbers() -> None:
    def half(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.uint16)

    def weight(outputs: int, inputs: int) -> _core.LinearWeight:
        return _core.LinearWeight([half(outputs, inputs)])

    with pytest.raises(ValueError, match="outputs of gate and up: expected 12, got 14"):
        _core.FeedForwardBlock(half(8), 1e-5, weight(14, 8), weight(8, 6))
    with pytest.raises(ValueError, match="outputs of qkv: expected 32, got 30"):
        _core.AttentionBlock(0, 2, 1, 0, half(8), 1e-5, weight(30, 8), weight(8, 16), None)
    with pytest.raises(ValueError, match="factors of the heads' norm: expected 24, got 16"):
        _core.AttentionBlock(0, 2, 1, 0, half(8), 1e-5, weight(32, 8), weight(8, 16), (half(16), 1e-5))
    feed_forward = _core.FeedForwardBlock(half(8), 1e-5, weight(12, 8), weight(8, 6))
    with pytest.raises(ValueError, match="rows of what is added: expected 2, got 3"):
        feed_forward(half(2, 8), half(3, 8), half(2, 8))
    with pytest.raises(ValueError, match="columns of x: expected 8, got 6"):
        feed_forward(half(2, 6), None, half(2, 6))
    attention = _core.AttentionBlock(0, 2, 1, 0, half(8), 1e-5, weight(32, 8), weight(8, 16), None)
    kernel = _core.PagedAttention([half(1, 16, 8)], [half(1, 16, 8)], 4)
    with pytest.raises(ValueError, match="tokens of the pass: expected 0, got 2"):
        attention(kernel, half(2, 8), None, half(2, 8), half(2, 8), half(2, 8))
    with pytest.raises(ValueError, match="rows of cos: expected 2, got 1"):
        attention(kernel, half(2, 8), None, half(1, 8), half(1, 8), half(2, 8))
    with pytest.raises(ValueError, match="one layer at least"):
        _core.LayerStack([])

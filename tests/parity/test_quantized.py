"""Models with int8 weights: the logits of their dequantised twins, and the same text however they are served."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.layers.quantization import Quantization
from paceline.worker.load import UnusableSettingsError
from parity.checkpoints import edit_config, logits_of, make_checkpoint, random_tokens
from parity.families import CASES
from parity.paged import PagedModel
from parity.serving import greedy
from parity.test_runner import load_worker

# What stays as it is: the embedding, routers, and what expands latents.
KEPT = ("embed_tokens.weight", "mlp.gate.weight", "block_sparse_moe.gate.weight", "kv_b_proj.weight")
# Sums are in another order and a rounding may fall to the other side, which moves an input by 1/127 of the largest.
TOLERANCE = 0.02


def dequantised_twin(folder: Path, twin: Path) -> None:
    """Copy a checkpoint whose matrices have 255 values a row: those that int8 weights stand for."""
    shutil.copytree(folder, twin)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and not name.endswith(KEPT):
            largest = tensor.abs().amax(dim=1, keepdim=True)
            tensors[name] = (tensor * (torch.tensor(127.0) / largest)).round() * (largest / 127)
    save_file(tensors, twin / "model.safetensors", metadata={"format": "pt"})


def quantise_inputs(oracle: torch.nn.Module) -> None:
    """Let every linear layer round the rows that it is given to 255 values each."""

    def rounded(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        largest = inputs[0].abs().amax(dim=-1, keepdim=True)
        return (inputs[0] * (torch.tensor(127.0) / largest)).round() * (largest / 127)

    for module in oracle.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)


@pytest.mark.parametrize("case", ["llama", "llama-mha-biases", "qwen2-tied", "qwen3"])
def test_logits_are_those_of_the_dequantised_twin(case: str, tmp_path: Path) -> None:
    family, fields = CASES[case]
    kind = type(make_checkpoint(tmp_path / "stored", family, **fields))
    dequantised_twin(tmp_path / "stored", tmp_path / "twin")
    oracle = kind.from_pretrained(tmp_path / "twin", dtype=torch.float32).eval()
    if fields.get("tie_word_embeddings"):
        # The head is quantised, the embedding that it shares its weights with is not.
        head = oracle.lm_head.weight.detach()
        largest = head.abs().amax(dim=1, keepdim=True)
        oracle.lm_head.weight = torch.nn.Parameter((head * (torch.tensor(127.0) / largest)).round() * (largest / 127))
    quantise_inputs(oracle)
    tokens = random_tokens(40, seed=1)
    paged = PagedModel(tmp_path / "stored", quantization=Quantization.INT8)
    got = paged.run([(tokens, 0, list(range(1, 11)))])[0]
    expected = logits_of(oracle, tokens)
    relative = ((got - expected).square().mean() / expected.var()).sqrt().item()
    assert relative < TOLERANCE, f"{relative} of the deviation"


@pytest.mark.parametrize("case", ["mixtral", "phimoe", "deepseek", "glm"])
def test_experts_are_quantised_too(case: str, tmp_path: Path) -> None:
    family, fields = CASES[case]
    kind = type(make_checkpoint(tmp_path / "stored", family, **fields))
    dequantised_twin(tmp_path / "stored", tmp_path / "twin")
    tokens, blocks = random_tokens(40, seed=1), list(range(1, 11))
    stored = logits_of(kind.from_pretrained(tmp_path / "stored", dtype=torch.float32).eval(), tokens)
    got = PagedModel(tmp_path / "stored", quantization=Quantization.INT8).run([(tokens, 0, blocks)])[0]
    twin = PagedModel(tmp_path / "twin").run([(tokens, 0, blocks)])[0]
    # Inputs are rounded here and not there, and a token near a border may visit another expert.
    for expected in (twin, stored):
        relative = ((got - expected).square().mean() / expected.var()).sqrt().item()
        assert 0 < relative < 0.2, f"{relative} of the deviation"


def test_a_row_gives_the_same_bits_whatever_runs_beside_it(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    tokens = [random_tokens(20, seed=1), random_tokens(24, seed=2), random_tokens(13, seed=3)]
    blocks = [list(range(1, 9)), list(range(9, 17)), list(range(17, 25))]

    def prepared() -> PagedModel:
        paged = PagedModel(tmp_path, torch.bfloat16, quantization=Quantization.INT8)
        for row, row_blocks in zip(tokens, blocks, strict=True):
            paged.run([(row, 0, row_blocks)])
        return paged

    more = [random_tokens(4, seed=10 + index) for index in range(3)]
    together = prepared().run([(more[index], len(tokens[index]), blocks[index]) for index in range(3)], padding_rows=2)
    alone = prepared()
    for index in range(3):
        for place in range(4):
            row = ([more[index][place]], len(tokens[index]) + place, blocks[index])
            assert torch.equal(alone.run([row])[0][0], together[index][place])


@pytest.mark.timeout(300)
def test_two_ranks_with_drafts_give_the_text_of_one_without(tmp_path: Path, start_daemon: Any) -> None:
    folder = tmp_path / "model"
    make_checkpoint(folder)
    # Prompts that repeat themselves, so that lookups find something to propose.
    prompts = [random_tokens(5 + index, seed=index) * 3 for index in range(6)]
    paged = PagedModel(folder, quantization=Quantization.INT8)

    def alone(prompt: list[int]) -> list[int]:
        text = list(prompt)
        blocks = list(range(1, 20))
        logits = paged.run([(prompt, 0, blocks)])[0]
        while len(text) < len(prompt) + 16:
            text.append(int(logits[-1].argmax()))
            logits = paged.run([(text[-1:], len(text) - 1, blocks)])[0]
        return text[len(prompt) :]

    drafts = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
    lengths = ("--max-model-len", "96", "--max-num-batched-tokens", "48", "--max-num-seqs", "4")
    daemon = start_daemon(folder, "--quantization", "int8", "-dp", "2", *drafts, *lengths)
    daemon.wait_ready(limit_s=120)
    assert any("float32 with int8 weights" in line for line in daemon.lines)
    answers = greedy(daemon, prompts, 16, concurrency=6)
    assert [tokens for tokens, _ in answers] == [alone(prompt) for prompt in prompts]


def test_what_is_quantised_is_not_quantised_again(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})
    with pytest.raises(UnusableSettingsError, match=r"quantization 'int8' of a checkpoint that is quantised: .* says 'fp8'"):
        load_worker(tmp_path, [0], quantization="int8")

"""Tiny random checkpoints, made by transformers, which is also the oracle of what they compute."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

VOCABULARY = 97
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def make_checkpoint(folder: Path, family: str = "Llama", **fields: Any) -> torch.nn.Module:
    """Save a random checkpoint of `family` with a tokenizer; gives the transformers model that made it."""
    # Threads that spin at barriers crawl where the machine is busy with other work.
    torch.set_num_threads(1)
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **fields})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().to(torch.float32)
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *_corrections(model)):
            # Norms and biases start as ones and zeros, which would hide a mix-up.
            scale = 0.5 if "norm" in name or name.endswith("bias") else 0.1
            parameter.add_(torch.randn_like(parameter) * scale)
    model.save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return model


def make_drafting_checkpoint(folder: Path, family: str, drafter_layers: int, **fields: Any) -> torch.nn.Module:
    """Save a random checkpoint with multi-token prediction layers; gives the transformers model without them.

    Its last layers become those of the drafter, as they are named in published checkpoints.
    """
    layers = COMMON["num_hidden_layers"]
    make_checkpoint(folder, family, **fields, num_hidden_layers=layers + drafter_layers)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    hidden = COMMON["hidden_size"]
    for layer in range(layers, layers + drafter_layers):
        prefix = f"model.layers.{layer}"
        for name in ("enorm", "hnorm", "shared_head.norm"):
            tensors[f"{prefix}.{name}.weight"] = 1 + 0.5 * torch.randn(hidden)
        tensors[f"{prefix}.eh_proj.weight"] = 0.1 * torch.randn(hidden, 2 * hidden)
        tensors[f"{prefix}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{prefix}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    edit_config(folder, num_hidden_layers=layers, num_nextn_predict_layers=drafter_layers)
    return load_drafting_oracle(folder, family)


def load_drafting_oracle(folder: Path, family: str) -> torch.nn.Module:
    """Load a checkpoint so that transformers finds its drafting layers: by the numbers that they have in it."""
    config = json.loads((folder / "config.json").read_text())
    first, count = config["num_hidden_layers"], config["num_nextn_predict_layers"]
    base = getattr(transformers, f"{family}ForCausalLM")
    patterns = [rf"model\.layers\.{layer}\..*" for layer in range(first, first + count)]
    kind = type(base.__name__, (base,), {"_keys_to_ignore_on_load_unexpected": patterns})
    model: torch.nn.Module = kind.from_pretrained(folder, dtype=torch.float32).eval()
    return model


def quantise_to_fp8(folder: Path, twin: Path) -> None:
    """Turn the matrices of a checkpoint's layers into FP8 with a factor per block of 128 x 128; routers stay as they are.

    The checkpoint in `twin` gets the same numbers in fp32.
    """
    path = folder / "model.safetensors"
    tensors = load_file(path)
    plain = dict(tensors)
    for name, tensor in list(tensors.items()):
        if tensor.dim() != 2 or "layers" not in name or name.endswith("mlp.gate.weight"):
            continue
        factors = torch.empty(*(-(-size // 128) for size in tensor.shape))
        quantised = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn)
        plain[name] = torch.empty_like(tensor)
        for row, column in itertools.product(*(range(count) for count in factors.shape)):
            block = (slice(row * 128, row * 128 + 128), slice(column * 128, column * 128 + 128))
            factors[row, column] = tensor[block].abs().max() / 448
            quantised[block] = (tensor[block] / factors[row, column]).to(torch.float8_e4m3fn)
            plain[name][block] = quantised[block].float() * factors[row, column]
        tensors[name], tensors[f"{name}_scale_inv"] = quantised, factors
    save_file(tensors, path, metadata={"format": "pt"})
    save_file(plain, twin / "model.safetensors", metadata={"format": "pt"})


def edit_config(folder: Path, **fields: Any) -> None:
    """Change fields of a checkpoint's `config.json`."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _corrections(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """What corrects the choice of experts: buffers that start as zeros."""
    return [(f"{name}.bias", buffer) for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]


def random_tokens(count: int, seed: int) -> list[int]:
    """Token ids that depend on `seed` only."""
    tokens: list[int] = torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return tokens


def logits_of(oracle: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """The oracle's logits for one sequence, `[tokens, vocabulary]`."""
    with torch.no_grad():
        logits: torch.Tensor = oracle(torch.tensor([tokens])).logits[0]
    return logits


def greedy_text(oracle: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    """What the oracle generates after `prompt`, `count` tokens, no end of text."""
    with torch.no_grad():
        output = oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
        )
    text: list[int] = output[0, len(prompt) :].tolist()
    return text

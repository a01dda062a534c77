"""A trained model as a Hugging Face folder: the checkpoint's names, the tokenizer, the configuration files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.corpus import BEGIN, END, PAD
from training.model import Model
from training.shape import Shape

# A conversation is a row of documents, each a question and its answer.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- ' ' + (message['content'] | trim) + eos_token -}}"
    "{%- elif message['role'] == 'user' -%}"
    "{{- bos_token + 'Question: ' + (message['content'] | trim) + '\\nAnswer:' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
)


def checkpoint(model: Model, dtype: torch.dtype) -> dict[str, Tensor]:
    """The model's weights under the names of the checkpoint: one tensor per expert, the correction bias in fp32.

    The draft layer's copies of embedding and head are left out: they are the model's own.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        prefix = "" if name.startswith("lm_head") else "model."
        if name.endswith("experts.gate_up_proj"):
            for index, pair in enumerate(tensor):
                gate, up = pair.chunk(2)
                stem = f"{prefix}{name.removesuffix('gate_up_proj')}{index}"
                tensors[f"{stem}.gate_proj.weight"], tensors[f"{stem}.up_proj.weight"] = gate, up
        elif name.endswith("experts.down_proj"):
            for index, down in enumerate(tensor):
                tensors[f"{prefix}{name.removesuffix('down_proj')}{index}.down_proj.weight"] = down
        else:
            tensors[prefix + name] = tensor
    kept = ("e_score_correction_bias",)
    return {
        name: tensor.to(torch.float32 if name.endswith(kept) else dtype).contiguous().clone()
        for name, tensor in sorted(tensors.items())
    }


def load_checkpoint(model: Model, tensors: dict[str, Tensor]) -> None:
    """Set the model's weights from a checkpoint's tensors (the inverse of `checkpoint`)."""
    state: dict[str, Tensor] = {}
    for name, current in model.state_dict().items():
        prefix = "" if name.startswith("lm_head") else "model."
        stem, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            parts = [
                torch.cat([tensors[f"{prefix}{stem}.{index}.{part}_proj.weight"] for part in ("gate", "up")])
                for index in range(current.shape[0])
            ]
            state[name] = torch.stack(parts)
        elif last == "down_proj":
            state[name] = torch.stack([tensors[f"{prefix}{stem}.{index}.down_proj.weight"] for index in range(current.shape[0])])
        else:
            state[name] = tensors[prefix + name]
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()})


def write_folder(folder: Path, model: Model, tokenizer: Tokenizer, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write weights, configuration and tokenizer files into `folder`, which may exist."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(checkpoint(model, dtype), folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors makes files that only their owner reads.
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    begin, end, pad = (tokenizer.token_to_id(token) for token in (BEGIN, END, PAD))
    config = {**model.shape.configuration(begin, end), "dtype": str(dtype).removeprefix("torch.")}
    generation = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": pad, "do_sample": True, "temperature": 0.7}
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", generation)
    _write(folder / "tokenizer_config.json", _tokenizer_configuration(model.shape))


def _tokenizer_configuration(shape: Shape) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.max_position_embeddings,
        "chat_template": CHAT_TEMPLATE,
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

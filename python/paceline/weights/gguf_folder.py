"""From a Llama-shaped GGUF file to a Hugging Face folder: tensors, config, tokenizer, chat template.

Written for the demo's file: one tied embedding, byte-level BPE. Needs `gguf` and `numpy`, not torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from tqdm import tqdm

_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# llama.cpp's token type for control tokens.
_CONTROL = 3


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` to `folder`, weights in bf16. Raises `KeyError` for a field or tensor it does not know."""
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    tensors: dict[str, np.ndarray] = {}
    for tensor in tqdm(reader.tensors, desc="converting weights", unit="tensor", file=sys.stderr):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        kind = tensor.name.split(".")[-2]
        if kind in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
            values = unpermute(values, heads)
        tensors[hugging_face_name(tensor.name)] = round_to_bf16(values)
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    write_bf16_safetensors(folder / "model.safetensors", tensors)
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", _tokenizer(fields))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special)


def hugging_face_name(name: str) -> str:
    """Translate a llama.cpp tensor name, such as `blk.3.attn_q.weight`."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}"
    return f"{_TENSORS[parts[0]]}.{parts[1]}"


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's reordering of each head's rows (pairs interleaved) to Hugging Face's (halves)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """Round fp32 to bf16, nearest even. numpy has no bf16: the result holds its bits as little-endian uint16."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2")


def write_bf16_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Write bf16 bit patterns as a safetensors file: header length, JSON header, data.

    Written out here because the library's own writer takes bf16 only from torch tensors.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [end, end + bits.nbytes]}
        end += bits.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    # The data begins on a line of the cache: weights are multiplied as they lie in the mapped file.
    encoded += b" " * (-(8 + len(encoded)) % 64)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for bits in tensors.values():
            file.write(bits.tobytes())


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    def of_llama(name: str) -> Any:
        return fields[f"llama.{name}"]

    head_count = of_llama("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": of_llama("embedding_length"),
        "intermediate_size": of_llama("feed_forward_length"),
        "num_hidden_layers": of_llama("block_count"),
        "num_attention_heads": head_count,
        "num_key_value_heads": of_llama("attention.head_count_kv"),
        "head_dim": of_llama("embedding_length") // head_count,
        "max_position_embeddings": of_llama("context_length"),
        # The file holds fp32; the shortest decimal that rounds to the same fp32 is what its makers wrote.
        "rms_norm_eps": float(f"{of_llama('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(of_llama("rope.freq_base"))},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(fields: dict[str, Any]) -> dict[str, Any]:
    """Byte-level BPE from the file's vocabulary and merges, split as transformers splits when it reads the same file."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags}
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]

    def token(role: str) -> str:
        return str(tokens[fields[f"tokenizer.ggml.{role}_token_id"]])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": fields["tokenizer.ggml.add_bos_token"],
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

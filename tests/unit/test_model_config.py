"""What `config.json` may say, and the one clear line for what it may not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.models.config import ConfigError, load_model_config, parse_model_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def parse(**fields: Any):
    return parse_model_config({**LLAMA, **fields})


def test_defaults_follow_transformers() -> None:
    config = parse()
    assert (config.kv_head_count, config.head_size, config.tie_word_embeddings) == (4, 16, False)
    assert (config.rope.rope_type, config.rope.theta) == ("default", 10000.0)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm) == (False, False, False, False)


def test_families_differ_in_biases_and_norms() -> None:
    llama = parse(attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias, llama.qk_norm) == (True, True, True, False)
    qwen2 = parse(architectures=["Qwen2ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = parse(architectures=["Qwen3ForCausalLM"], head_dim=32)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm, qwen3.head_size) == (False, False, True, 32)


def test_both_spellings_of_rope() -> None:
    fields = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    new = parse(rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **fields})
    old = parse(rope_theta=500000.0, rope_scaling={"type": "llama3", **fields})
    assert new.rope == old.rope
    assert new.rope.original_max_position_embeddings == 8192


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "unknown architecture MambaForCausalLM; known are LlamaForCausalLM, Qwen2"),
        ({"architectures": []}, "names no architecture"),
        ({"vocab_size": None}, "field vocab_size must be a whole number of at least 1, got None"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 5}, "hidden_size 64 is no multiple of num_attention_heads 5"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope type 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope field factor must be a number above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"quantization_config": {"bits": 4}}, "quantised checkpoints other than block-scaled fp8 are not supported"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weight_block_size [128, 128] only"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "sliding-window"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**fields)
    assert message in str(caught.value)


def test_broken_files_name_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model_config(tmp_path)
    for content in ("{", "[1]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigError, match=str(tmp_path)):
            load_model_config(tmp_path)


@pytest.mark.parametrize(
    "module", ["paceline", "paceline.models.registry", "paceline.weights.prepare", "paceline.attention.contracts"]
)
def test_light_modules_import_no_torch(module: str) -> None:
    heavy = ["torch", "transformers", "flashinfer", "numpy", "huggingface_hub"]
    program = f"import json, sys, {module}; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(result.stdout) == []

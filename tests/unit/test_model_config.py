"""What `config.json` may say, and the one clear line for what it may not."""

from __future__ import annotations

import json
import math
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


DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "moe_intermediate_size": 32,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 4096,
}


def test_deepseek_has_latents_groups_and_drafting_layers() -> None:
    config = parse(**DEEPSEEK, n_group=4, topk_group=2, q_lora_rank=None, routed_scaling_factor=2.5)
    moe, latent = config.moe, config.latent
    assert moe is not None
    assert latent is not None
    assert (config.kv_head_count, config.head_size, config.drafter_layer_count, config.expert_count) == (1, 40, 1, 16)
    assert (moe.is_sparse, moe.shared_intermediate_size, moe.group_count, moe.groups_per_token) == ((False, True), 64, 4, 2)
    assert (moe.routing, moe.normalises, moe.scaling_factor) == ("grouped_sigmoid", True, 2.5)
    assert (latent.query_rank, latent.query_size, latent.is_interleaved) == (0, 24, True)


def test_fp8_of_128_by_128_is_read() -> None:
    fields = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    assert parse(**DEEPSEEK, quantization_config=fields, dtype="bfloat16").stored_dtype == "bfloat16"


def test_experts_of_the_other_families() -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    mixtral = parse(architectures=["MixtralForCausalLM"], **experts, sliding_window=100)
    phimoe = parse(architectures=["PhiMoEForCausalLM"], **experts, lm_head_bias=True, attention_bias=True)
    qwen = parse(
        architectures=["Qwen3MoeForCausalLM"], num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, decoder_sparse_step=2
    )
    glm = parse(**{**DEEPSEEK, "architectures": ["Glm4MoeForCausalLM"]}, use_qk_norm=True)
    assert mixtral.moe is not None
    assert phimoe.moe is not None
    assert qwen.moe is not None
    assert glm.moe is not None
    assert (mixtral.moe.routing, mixtral.moe.normalises, mixtral.sliding_window) == ("softmax", True, 100)
    assert phimoe.architecture == "PhimoeForCausalLM"
    assert (phimoe.moe.routing, phimoe.moe.jitter, phimoe.head_bias, phimoe.output_bias) == ("sparsemixer", 0.01, True, True)
    assert (qwen.moe.is_sparse, qwen.moe.normalises, qwen.qk_norm, qwen.sliding_window) == ((False, True), False, True, 0)
    assert (glm.rope.rotary_factor, glm.qk_norm, glm.output_bias, glm.latent) == (0.5, True, False, None)


def test_yarn_scales_scores_and_tables() -> None:
    yarn = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}
    rope = parse(**DEEPSEEK, rope_scaling=yarn).rope
    assert (rope.magnitude, rope.original_max_position_embeddings) == (1.0, 4096)
    assert rope.score_factor == pytest.approx((0.1 * math.log(40) + 1) ** 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_routed_experts": None}, "field n_routed_experts"),
        ({"n_group": 3}, "n_routed_experts 16 do not come in 3 groups (n_group)"),
        ({"n_group": 4, "topk_group": 5}, "topk_group 5 of n_group 4"),
        ({"n_group": 8, "topk_group": 1}, "topk_group 1 of n_group 8 cannot give num_experts_per_tok 4"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method 'greedy'"),
        ({"kv_lora_rank": 0}, "kv_lora_rank"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim 7 is odd"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob must be true or false"),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 2}, "num_experts_per_tok 4 passes the 2 experts"),
        ({"architectures": ["PhimoeForCausalLM"], "num_local_experts": 8}, "num_experts_per_tok 4 is not supported, only 2"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "short_factor has 1 numbers"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor must be at most 1"),
    ],
)
def test_refusals_of_experts_and_latents(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**{**DEEPSEEK, **fields})
    assert message in str(caught.value)


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

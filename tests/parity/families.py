"""A small config for every model family, and variants that take other paths: what the parity tests run."""

from __future__ import annotations

from typing import Any

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.5, 1.5, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0],
    "short_mscale": 1.1,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 128,
}
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 40}
PHIMOE = {**EXPERTS, "attention_bias": True, "lm_head_bias": True}
DEEPSEEK = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
    "num_key_value_heads": 4,
    "routed_scaling_factor": 1.7,
}
GLM = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "head_dim": 24,
    "attention_bias": True,
    "routed_scaling_factor": 1.3,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-mha-biases": ("Llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 32}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 1}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 32, "rope_parameters": {**YARN, "mscale": None, "mscale_all_dim": None}}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "head_dim": 32,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe-window": (
        "Qwen3Moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "use_sliding_window": True, "sliding_window": 9},
    ),
    "mixtral": ("Mixtral", EXPERTS),
    "mixtral-window": ("Mixtral", {**EXPERTS, "sliding_window": 7}),
    "phimoe": ("Phimoe", {**PHIMOE, "rope_parameters": LONGROPE, "router_jitter_noise": 0.2}),
    "phimoe-window": ("Phimoe", {**PHIMOE, "sliding_window": 8}),
    "deepseek": ("DeepseekV3", DEEPSEEK),
    "deepseek-yarn": ("DeepseekV3", {**DEEPSEEK, "rope_parameters": YARN, "norm_topk_prob": False}),
    "deepseek-full-rank-query": ("DeepseekV3", {**DEEPSEEK, "q_lora_rank": None, "rope_interleave": False, "attention_bias": True}),
    "glm": ("Glm4Moe", GLM),
    "glm-norms-groups": ("Glm4Moe", {**GLM, "use_qk_norm": True, "n_group": 2, "topk_group": 1, "attention_bias": False}),
}

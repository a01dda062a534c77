"""Sizes of the model that is trained, and the configuration file that describes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a DeepSeek-V3 model with one draft (MTP) layer; the fields are named as in its configuration file."""

    vocab_size: int = 1024
    hidden_size: int = 192
    intermediate_size: int = 384
    moe_intermediate_size: int = 64
    num_hidden_layers: int = 4
    first_k_dense_replace: int = 1
    num_attention_heads: int = 4
    q_lora_rank: int = 96
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 64
    n_routed_experts: int = 16
    n_shared_experts: int = 1
    num_experts_per_tok: int = 4
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 2.0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048

    def configuration(self, bos_token_id: int, eos_token_id: int) -> dict[str, Any]:
        """`config.json` of the model."""
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            **asdict(self),
            "num_key_value_heads": self.num_attention_heads,
            "num_nextn_predict_layers": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "hidden_act": "silu",
            "rope_scaling": None,
            "rope_interleave": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "moe_layer_freq": 1,
            "initializer_range": 0.02,
            "use_cache": True,
            "bos_token_id": bos_token_id,
            "eos_token_id": eos_token_id,
            "dtype": "bfloat16",
        }

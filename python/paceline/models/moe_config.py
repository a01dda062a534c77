"""Experts as a `config.json` describes them, and how tokens find theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.models.fields import ConfigError, count_of, flag_of, number_of


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Which layers have experts, how large those are, and how tokens find theirs."""

    expert_count: int
    experts_per_token: int
    # Width of one routed expert, and of the expert that every token visits (0: there is none).
    intermediate_size: int
    shared_intermediate_size: int
    # By layer of the target: whether it has experts. Layers of a drafter all have.
    is_sparse: tuple[bool, ...]
    # "softmax", "grouped_sigmoid" or "sparsemixer".
    routing: str
    normalises: bool = True
    scaling_factor: float = 1.0
    # grouped_sigmoid: experts come in groups, of which the best few are searched.
    group_count: int = 1
    groups_per_token: int = 1
    # sparsemixer: how near to the best score others must be to count.
    jitter: float = 0.0


def parse_grouped_moe(raw: dict[str, Any], layer_count: int, *, groups: int, groups_kept: int) -> MoeConfig:
    """Experts of DeepSeek-V3 and GLM-4.5; `groups` and `groups_kept` where the fields are absent. Raises `ConfigError`."""
    for field, known in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if raw.get(field, known) != known:
            raise ConfigError(f"config.json field {field} {raw[field]!r} is not supported, only {known!r}")
    if raw.get("moe_layer_freq", 1) != 1:
        raise ConfigError(f"config.json field moe_layer_freq {raw['moe_layer_freq']!r} is not supported, only 1")
    dense = count_of(raw, "first_k_dense_replace", 0, least=0)
    expert_count = count_of(raw, "n_routed_experts")
    inner = count_of(raw, "moe_intermediate_size")
    group_count = count_of(raw, "n_group", groups)
    if expert_count % group_count or expert_count // group_count < 2:
        raise ConfigError(f"n_routed_experts {expert_count} do not come in {group_count} groups (n_group) of at least 2")
    kept = count_of(raw, "topk_group", groups_kept)
    top_k = count_of(raw, "num_experts_per_tok")
    if kept > group_count or top_k > kept * (expert_count // group_count):
        raise ConfigError(f"topk_group {kept} of n_group {group_count} cannot give num_experts_per_tok {top_k}")
    return MoeConfig(
        expert_count=expert_count,
        experts_per_token=top_k,
        intermediate_size=inner,
        shared_intermediate_size=inner * count_of(raw, "n_shared_experts", 0, least=0),
        is_sparse=tuple(layer >= dense for layer in range(layer_count)),
        routing="grouped_sigmoid",
        normalises=flag_of(raw, "norm_topk_prob", True),
        scaling_factor=number_of(raw, "routed_scaling_factor", 1.0),
        group_count=group_count,
        groups_per_token=kept,
    )


def parse_qwen3_moe(raw: dict[str, Any], layer_count: int) -> MoeConfig:
    """Experts of Qwen3-MoE. Raises `ConfigError`."""
    step = count_of(raw, "decoder_sparse_step", 1)
    dense = raw.get("mlp_only_layers") or []
    # transformers 5 saves the count under its common name.
    count_field = "num_experts" if raw.get("num_experts") is not None else "num_local_experts"
    return MoeConfig(
        expert_count=count_of(raw, count_field),
        experts_per_token=_top_k(raw, count_of(raw, count_field)),
        intermediate_size=count_of(raw, "moe_intermediate_size"),
        shared_intermediate_size=0,
        is_sparse=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layer_count)),
        routing="softmax",
        normalises=flag_of(raw, "norm_topk_prob", False),
    )


def parse_mixtral_moe(raw: dict[str, Any], layer_count: int, *, routing: str) -> MoeConfig:
    """Experts of Mixtral (`routing` "softmax") and Phi-MoE ("sparsemixer"): all layers. Raises `ConfigError`."""
    expert_count = count_of(raw, "num_local_experts")
    top_k = _top_k(raw, expert_count)
    if routing == "sparsemixer" and top_k != 2:
        raise ConfigError(f"config.json field num_experts_per_tok {top_k} is not supported, only 2")
    return MoeConfig(
        expert_count=expert_count,
        experts_per_token=top_k,
        intermediate_size=count_of(raw, "intermediate_size"),
        shared_intermediate_size=0,
        is_sparse=(True,) * layer_count,
        routing=routing,
        jitter=number_of(raw, "router_jitter_noise", 0.01) if routing == "sparsemixer" else 0.0,
    )


def _top_k(raw: dict[str, Any], expert_count: int) -> int:
    top_k = count_of(raw, "num_experts_per_tok", 2)
    if top_k > expert_count:
        raise ConfigError(f"num_experts_per_tok {top_k} passes the {expert_count} experts")
    return top_k

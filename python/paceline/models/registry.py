"""From the architecture named in a `config.json` to the class that runs it.

Adding a family is a file in this folder, a line here and a line in `config.py`. Imports torch only in `build_model`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from paceline.layers.quantization import Quantization
from paceline.models.config import ConfigError, ModelConfig, known_architectures

if TYPE_CHECKING:
    from paceline.models.causal_lm import CausalLM
    from paceline.parallel.context import Parallel
    from paceline.weights.loader import WeightReader

_FAMILIES = {
    "LlamaForCausalLM": "paceline.models.llama",
    "Qwen2ForCausalLM": "paceline.models.qwen",
    "Qwen3ForCausalLM": "paceline.models.qwen",
    "Qwen3MoeForCausalLM": "paceline.models.qwen",
    "MixtralForCausalLM": "paceline.models.mixtral",
    "PhimoeForCausalLM": "paceline.models.phimoe",
    "DeepseekV3ForCausalLM": "paceline.models.deepseek",
    "Glm4MoeForCausalLM": "paceline.models.glm",
}


def build_model(
    config: ModelConfig,
    weights: WeightReader,
    max_positions: int,
    parallel: Parallel,
    drafter_layers: int = 0,
    quantization: Quantization = Quantization.NONE,
) -> CausalLM:
    """Build the network of `config.architecture` from `weights`, able to run positions below `max_positions`.

    `parallel` says which shard of it, `drafter_layers` how many of its drafting layers, `quantization` what its weights
    are turned into. Raises `ConfigError` for what cannot be built, `WeightsError` for tensors that are
    missing or of another shape.
    """
    if config.architecture not in _FAMILIES:
        raise ConfigError(f"unknown architecture {config.architecture}; known are {', '.join(known_architectures())}")
    family = import_module(_FAMILIES[config.architecture])
    build = getattr(family, config.architecture)
    model: CausalLM = build(config, weights, max_positions, parallel, drafter_layers, quantization)
    return model

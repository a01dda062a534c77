"""From the daemon's settings to a model that is ready to run: weights, KV pool, backend, arrays, core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from paceline._core import WorkerCore
from paceline.attention.contracts import CPU, Contract, check_backend, find_contract, static_faults
from paceline.attention.cpu import CpuAttention
from paceline.attention.interface import AttentionBackend
from paceline.attention.kv_cache import KvCache, KvLayout
from paceline.attention.reference import ReferenceAttention
from paceline.errors import UsageError
from paceline.layers.quantization import Quantization
from paceline.models.causal_lm import CausalLM
from paceline.models.config import ModelConfig, load_model_config
from paceline.models.kv_layout import kv_layout
from paceline.models.registry import build_model
from paceline.parallel.build import KINDS, OFF, build_parallel
from paceline.parallel.context import Parallel
from paceline.v1.worker_pb2 import Welcome, WorkerSettings
from paceline.weights.loader import WeightReader
from paceline.worker.arrays import StepArrays
from paceline.worker.checks import LaunchLimits
from paceline.worker.lockstep import ProcessGroups

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_MTP = "mtp"
_DRAFTERS = ("", "none", "ngram", _MTP)

OnProgress = Callable[[str, int, int], None]


class UnusableSettingsError(UsageError):
    """Settings that this worker cannot run with; one clear line."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """All that a step needs. `num_blocks` does not count the null block; `dtype` is what the model computes in."""

    model: CausalLM
    parallel: Parallel
    groups: ProcessGroups
    backend: AttentionBackend
    core: WorkerCore
    arrays: StepArrays
    limits: LaunchLimits
    num_blocks: int
    dtype: torch.dtype
    quantization: Quantization


def load(folder: Path, dp_rank: int, welcome: Welcome, groups: ProcessGroups, on_progress: OnProgress) -> LoadedModel:
    """Load the checkpoint in `folder` under the daemon's settings: the shard of it that the place in `groups` asks for.

    The groups need not be formed before the model runs. `on_progress` is told a stage, what is done and the total.
    Raises `UnusableSettingsError`, or the errors of config and weights.
    """
    settings = welcome.settings
    config = load_model_config(folder)
    contract = check_settings(settings, config)
    dtype = compute_dtype(settings, config)
    drafter_layers = settings.drafter_layers if settings.drafter == _MTP else 0
    parallel = build_parallel(settings.expert_parallel or OFF, config.expert_count, groups.world, groups.workers)
    layout = kv_layout(config, parallel.tp, drafter_layers)
    num_blocks = kv_block_count(settings, layout, dtype)
    on_progress("allocating KV cache", 0, 1)
    cache = KvCache(layout, block_count=num_blocks + 1, block_size=settings.block_size, dtype=dtype, device=settings.device)
    reader = _Reading(folder, config, settings, dtype, parallel, drafter_layers)
    model = reader.read(f"dp{dp_rank}", on_progress)
    core = WorkerCore(
        dp_rank=dp_rank,
        group_ranks=list(welcome.group_dp_ranks),
        seats=settings.seats,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        block_size=settings.block_size,
        num_blocks=num_blocks,
        table_width=settings.table_width,
        row_capacity=settings.row_capacity,
        token_capacity=settings.token_capacity,
        k_max=settings.k_max,
        vocab_size=config.vocab_size,
        drafter_layers=drafter_layers,
        scheduling_depth=settings.scheduling_depth,
    )
    arrays = StepArrays.allocate(
        row_capacity=settings.row_capacity, token_capacity=settings.token_capacity, table_width=settings.table_width
    )
    limits = LaunchLimits(
        max_model_len=settings.max_model_len,
        k_max=settings.k_max,
        block_size=settings.block_size,
        block_count=num_blocks + 1,
        vocab_size=config.vocab_size,
    )
    backend = CpuAttention(cache, contract) if settings.attention_backend == CPU.name else ReferenceAttention(cache, contract)
    quantization = weight_quantization(settings)
    return LoadedModel(model, parallel, groups, backend, core, arrays, limits, num_blocks, dtype, quantization)


def compute_dtype(settings: WorkerSettings, config: ModelConfig) -> torch.dtype:
    """What weights, KV cache and activations are held in. `auto` is the checkpoint's own; float16 runs as bfloat16."""
    name = config.stored_dtype if settings.dtype == "auto" else settings.dtype
    return _DTYPES.get(name, torch.bfloat16)


def weight_quantization(settings: WorkerSettings) -> Quantization:
    """What weights are turned into at load. Raises `UnusableSettingsError`."""
    try:
        return Quantization(settings.quantization or Quantization.NONE)
    except ValueError:
        known = ", ".join(Quantization)
        raise UnusableSettingsError(f"quantization {settings.quantization!r} is not supported; known are {known}") from None


def check_settings(settings: WorkerSettings, config: ModelConfig) -> Contract:
    """Refuse what this worker cannot run; gives the contract to declare. Raises `UnusableSettingsError`."""
    known = ("auto", *_DTYPES)
    if settings.dtype not in known:
        raise UnusableSettingsError(f"dtype {settings.dtype!r} is not supported; known are {', '.join(known)}")
    if settings.device != "cpu":
        raise UnusableSettingsError(f"device {settings.device!r} is not supported, only 'cpu'")
    if settings.expert_parallel not in ("", *KINDS):
        raise UnusableSettingsError(f"expert parallelism {settings.expert_parallel!r} is not known; known are {', '.join(KINDS)}")
    if settings.drafter not in _DRAFTERS:
        raise UnusableSettingsError(f"drafter {settings.drafter!r} is not supported, only 'ngram' and 'mtp'")
    if settings.drafter == _MTP and not 1 <= settings.drafter_layers <= config.drafter_layer_count:
        raise UnusableSettingsError(
            f"drafter 'mtp' with {settings.drafter_layers} layers: the model has {config.drafter_layer_count}"
        )
    if weight_quantization(settings) is not Quantization.NONE and config.stored_quantization:
        raise UnusableSettingsError(
            f"quantization {settings.quantization!r} of a checkpoint that is quantised: quantization_config in its config.json "
            f"says {config.stored_quantization!r}"
        )
    try:
        check_backend(settings.attention_backend)
        contract = find_contract(settings.attention_contract or settings.attention_backend)
    except ValueError as error:
        raise UnusableSettingsError(str(error)) from None
    is_own_contract = contract.name == settings.attention_backend
    faults = static_faults(
        contract,
        block_size=settings.block_size,
        table_width=settings.table_width,
        head_size=config.head_size if is_own_contract else 0,
        query_len_max=1 + settings.k_max,
    )
    if faults:
        raise UnusableSettingsError("; ".join(faults))
    return contract


def kv_block_count(settings: WorkerSettings, layout: KvLayout, dtype: torch.dtype) -> int:
    """KV blocks without the null block: as configured, else what the memory holds, never more than could be used."""
    if settings.num_blocks_override:
        return settings.num_blocks_override
    bytes_per_block = layout.block_bytes(settings.block_size, dtype)
    # One block of the memory is the null block.
    affordable = settings.kv_cache_memory_bytes // bytes_per_block - 1
    if affordable < 1:
        raise UnusableSettingsError(
            f"the KV cache memory of {settings.kv_cache_memory_bytes} bytes holds no block: one takes {bytes_per_block} bytes, "
            "and the null block one more"
        )
    blocks_per_row = -(-(settings.max_model_len + settings.k_max) // settings.block_size)
    return int(min(affordable, settings.max_num_seqs * blocks_per_row))


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is read of a checkpoint."""

    folder: Path
    config: ModelConfig
    settings: WorkerSettings
    dtype: torch.dtype
    parallel: Parallel
    drafter_layers: int

    def read(self, name: str, on_progress: OnProgress) -> CausalLM:
        """Read the weights, under a progress bar that begins with `name`."""
        stage = "loading weights"
        with tqdm(desc=f"{name}: {stage}", unit="tensor", leave=False, disable=None) as bar:

            def report(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)
                # Ten messages a load are enough for people.
                if done * 10 // total != (done - 1) * 10 // total:
                    on_progress(stage, done, total)

            positions = self.settings.max_model_len
            with WeightReader(self.folder, dtype=self.dtype, device=self.settings.device, on_progress=report) as weights:
                quantization = weight_quantization(self.settings)
                return build_model(self.config, weights, positions, self.parallel, self.drafter_layers, quantization)

"""A step of this scheduler beside a step of vLLM's, in the same run: one rank, steady decode, nothing behind them.

`PYTHONPATH=tests python -m bench.vllm_scheduler --vllm-python VENV/bin/python --model FOLDER` needs cargo. FOLDER holds a
model's `config.json` and tokenizer; no weights are read. vLLM's part is `schedule()` and `update_from_output()`, ours plan, encode
and commit: vLLM's pickle of the plan for the workers is not counted. Rounds of both alternate, so that a busy machine is busy for
both.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROWS = [1, 32, 256]
DRAFTS = [0, 1, 3]
PROMPT_LEN = 256
BLOCK_SIZE = 16
STEPS = 100
WARM_UP_STEPS = 20
ASKED_FOR = 100.0
"""How many times less a row is to cost here."""


@dataclass(frozen=True)
class Case:
    rows: int
    k: int
    cache: bool


CASES = [Case(rows, k, cache) for cache in (True, False) for k in DRAFTS for rows in ROWS]


class Theirs:
    """vLLM's scheduler with `rows` requests that decode. Only its own Python can make one."""

    def __init__(self, case: Case, model: str) -> None:
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        self.case = case
        self.random = random.Random(case.rows)
        speculation = {"speculative_config": {"method": "ngram", "num_speculative_tokens": case.k}} if case.k else {}
        config = EngineArgs(
            model=model,
            max_model_len=8_192,
            block_size=BLOCK_SIZE,
            max_num_seqs=max(case.rows, 2),
            max_num_batched_tokens=8_192,
            enable_prefix_caching=case.cache,
            enforce_eager=True,
            async_scheduling=False,
            **speculation,
        ).create_engine_config()
        blocks = 100_000
        config.cache_config.num_gpu_blocks = blocks
        layer = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        kv_cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=kv_cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            log_stats=True,
        )
        hasher = None
        if case.cache:
            hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
            init_none_hash(hash_function)
            hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)
        for index in range(case.rows):
            self.scheduler.add_request(self.request(index, hasher))

    def request(self, index: int, hasher: object) -> object:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        sampling = SamplingParams(ignore_eos=True, max_tokens=4_000, temperature=0.0)
        prompt = [self.random.randrange(30_000) for _ in range(PROMPT_LEN)]
        return Request(
            request_id=f"request-{index}",
            prompt_token_ids=prompt,
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=hasher,
        )

    def step(self) -> tuple[float, int]:
        """Runs one step; its microseconds and how many rows it had."""
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        began = time.perf_counter()
        plan = self.scheduler.schedule()
        planned = time.perf_counter()
        names = list(plan.num_scheduled_tokens)
        sampled, drafted = [], []
        for name in names:
            request = self.scheduler.requests[name]
            if request.num_computed_tokens < request.num_prompt_tokens:
                sampled.append([])
                continue
            sampled.append([self.random.randrange(30_000)])
            drafted.append(name)
        indices = {name: index for index, name in enumerate(names)}
        output = ModelRunnerOutput(req_ids=names, req_id_to_index=indices, sampled_token_ids=sampled)
        drafts = DraftTokenIds(drafted, [[7] * self.case.k for _ in drafted])
        replied = time.perf_counter()
        self.scheduler.update_from_output(plan, output)
        if self.case.k:
            self.scheduler.update_draft_token_ids(drafts)
        return (time.perf_counter() - replied + planned - began) * 1e6, len(names)

    def median_us(self) -> float:
        while len(self.scheduler.running) < self.case.rows or self.scheduler.waiting:
            self.step()
        for _ in range(WARM_UP_STEPS):
            self.step()
        times = [self.step() for _ in range(STEPS)]
        assert all(rows == self.case.rows for _, rows in times), "every request decodes in every step"
        return statistics.median(microseconds for microseconds, _ in times)


def inside(model: str) -> None:
    """What runs in vLLM's own Python: prints the median of every case."""
    for case in CASES:
        print(json.dumps(Theirs(case, model).median_us()), flush=True)


def theirs(python: str, model: str) -> list[float]:
    """Medians of all cases, one process: starting vLLM takes longer than all of them."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [python, __file__, "--inside", "--model", model]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.replace(".", "", 1).isdigit()]
    return [float(line) for line in lines]


def ours(program: Path) -> list[float]:
    def median_us(case: Case) -> float:
        command = [str(program), "--case", "1", str(case.rows), str(case.k), "decode", "on" if case.cache else "off"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return float(done.stdout.split()[-1])

    return [median_us(case) for case in CASES]


def build(root: Path) -> Path:
    """Builds the program that times steps; its path."""
    command = ["cargo", "build", "--release", "--locked", "-p", "paceline-scheduler", "--bench", "step", "--message-format=json"]
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    artifacts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return Path([entry["executable"] for entry in artifacts if entry.get("target", {}).get("name") == "step"][-1])


def version(python: str) -> str | None:
    """The version of vLLM, or nothing when that Python has none."""
    script = "import vllm; print(vllm.__version__)"
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([python, "-c", script], check=False, capture_output=True, text=True, env=environment)
    return done.stdout.split()[-1] if done.returncode == 0 else None


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} [{min(values):.1f}-{max(values):.1f}]"


def compare(options: argparse.Namespace) -> None:
    from bench.report import ROOT, heading, print_table

    found = version(options.vllm_python)
    if found is None:
        sys.exit(f"{options.vllm_python} cannot import vllm: nothing to compare with")
    program = build(ROOT)
    print(heading())
    print(f"vLLM {found}; {options.rounds} rounds of each, microseconds of a step: median of the rounds' medians [least-most].\n")
    rounds = [(theirs(options.vllm_python, options.model), ours(program)) for _ in range(options.rounds)]
    rows = []
    for index, case in enumerate(CASES):
        their_us, our_us = ([pair[side][index] for pair in rounds] for side in (0, 1))
        ratio = statistics.median(their_us) / statistics.median(our_us)
        cells = [str(case.rows), str(case.k), "on" if case.cache else "off", spread(their_us), spread(our_us)]
        per_row = [f"{statistics.median(times) / case.rows:.3f}" for times in (their_us, our_us)]
        rows.append([*cells, *per_row, f"{ratio:.0f}x" + ("" if ratio >= ASKED_FOR else " (below 100x)")])
    print_table(["rows", "k", "cache", "vLLM", "Paceline", "vLLM, us per row", "Paceline, us per row", "ratio"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", default=sys.executable, help="a Python with vllm (default: this one)")
    parser.add_argument("--model", required=True, help="a folder with config.json and a tokenizer")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (default: 3)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.model)
    else:
        compare(options)


if __name__ == "__main__":
    main()

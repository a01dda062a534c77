"""Small steps for tests of the extension: one rank, blocks of 4 tokens, buffers full of rubbish."""

from typing import Any

import numpy as np

from paceline import _core

VOCAB = 16
GREEDY = _core.sampling_bytes_for_test(temperature=0.0)


def make_core(dp_ranks: list[int] | None = None, k_max: int = 3, drafter_layers: int = 0) -> _core.WorkerCore:
    """A rank with 4 seats, blocks of 4 tokens and a length limit of 32."""
    core = _core.WorkerCore(
        dp_rank=0,
        group_ranks=dp_ranks or [0],
        seats=4,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=32,
        block_size=4,
        num_blocks=16,
        table_width=9,
        row_capacity=4,
        token_capacity=16,
        k_max=k_max,
        vocab_size=VOCAB,
        drafter_layers=drafter_layers,
    )
    core.reset(1)
    return core


class Buffers:
    """Step buffers full of rubbish: whatever a call leaves is seen."""

    def __init__(self) -> None:
        self.input_ids = np.full(16, 99, np.int64)
        self.positions = np.full(16, 99, np.int64)
        self.slots = np.full(16, 99, np.int64)
        self.query_start_loc = np.full(5, 99, np.int32)
        self.kv_lens = np.full(4, 99, np.int32)
        self.block_table = np.full((4, 9), 99, np.int32)
        self.request_index = np.full(16, 99, np.int32)
        self.logits_index = np.full(16, 99, np.int64)

    def arrays(self) -> _core.PassBuffers:
        """The arrays, with whatever is in them."""
        return _core.PassBuffers(self)

    def fill(self, core: _core.WorkerCore, step: _core.Step) -> int:
        """The target pass."""
        return core.fill_target(step, self.arrays())

    def extend(self, core: _core.WorkerCore, step: _core.Step, layer: int = 1) -> int:
        """The extend pass of a drafter layer."""
        return core.fill_extend(step, layer, self.arrays())

    def single(self, core: _core.WorkerCore, step: _core.Step, index: int) -> int:
        """The single pass that gives draft `index`."""
        return core.fill_single(step, index, self.arrays())


def begin(core: _core.WorkerCore, number: int, **plan: Any) -> _core.Step:
    """Encodes a plan for rank 0 and hands it to the core."""
    plan.setdefault("dp_ranks", [0])
    digest, group_part, rank_part = _core.encode_step_for_test(epoch=1, step=number, dp_rank=0, **plan)
    return core.begin(0, 1, number, digest, group_part, rank_part)


def prompt_plan(prompt: list[int], sampling: bytes = GREEDY, k_draft: int = 0) -> dict[str, Any]:
    """Admits a prompt of up to 8 tokens on seat 1 and runs it whole."""
    return {
        "target": {"mode": "eager", "loads": [(1, len(prompt))]},
        "admissions": [(1, 0, len(prompt), sampling)],
        "feeds": [(1, 0, prompt)],
        "block_appends": [(1, [3, 5, 7])],
        "rows": [{"seat": 1, "start": 0, "query_len": len(prompt), "blocks": 3, "logits": "last"}],
        "k_draft": k_draft,
    }


def logits_for(tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rows whose likeliest tokens are these."""
    logits = np.zeros((len(tokens), VOCAB), np.float32)
    logits[np.arange(len(tokens)), tokens] = 5.0
    return logits

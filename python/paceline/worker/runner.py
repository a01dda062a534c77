"""One step: decode and check the plan, fill the arrays, check them, run the passes, sample, reply.

It derives no shape. A real step, a dummy and a warm-up take the same path through `_forward`.
"""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from paceline._core import Pass, Step
from paceline.attention.interface import AttentionBatch
from paceline.v1.worker_pb2 import StepEnvelope
from paceline.worker.checks import Launch, LaunchRefusedError, check_launch
from paceline.worker.load import LoadedModel
from paceline.worker.lockstep import ProcessGroups
from paceline.worker.pulse import Pulse


class Runner:
    """Executes plans on one rank, over buffers that are allocated once."""

    def __init__(self, loaded: LoadedModel, groups: ProcessGroups, pulse: Pulse, *, dp_rank: int, is_lockstep: bool) -> None:
        """Take what was loaded. With `is_lockstep`, ranks compare what they launch before each pass."""
        self._model = loaded.model
        self._backend = loaded.backend
        self._core = loaded.core
        self._arrays = loaded.arrays
        self._limits = loaded.limits
        self._groups = groups
        self._pulse = pulse
        self._dp_rank = dp_rank
        self._is_lockstep = is_lockstep
        # The same memory as the arrays, seen by torch.
        self._input_ids = torch.from_numpy(loaded.arrays.input_ids)
        self._positions = torch.from_numpy(loaded.arrays.positions)
        self._slots = torch.from_numpy(loaded.arrays.slots)
        self._query_start_loc = torch.from_numpy(loaded.arrays.query_start_loc)
        self._kv_lens = torch.from_numpy(loaded.arrays.kv_lens)
        self._block_table = torch.from_numpy(loaded.arrays.block_table)
        self._logits_index = torch.from_numpy(loaded.arrays.logits_index)

    def reset(self, epoch: int) -> None:
        """Start an epoch: every seat is void."""
        self._core.reset(epoch)
        self._pulse.step = 0

    def execute(self, envelope: StepEnvelope) -> bytes:
        """Execute one plan; gives the reply's body.

        Raises `PlanRefused` or `LaunchRefusedError` for a plan that breaks a rule. After that nothing more may run in
        the epoch.
        """
        started = time.perf_counter_ns()
        self._pulse.step, self._pulse.pass_index, self._pulse.phase = envelope.step, 0, "received"
        step = self._core.begin(
            envelope.group, envelope.epoch, envelope.step, envelope.digest, envelope.group_part, envelope.rank_part
        )
        decoded = time.perf_counter_ns()
        collectives_before = self._groups.collectives
        target = self._only_pass(step)
        launch = self._fill(step, target)
        self._backend.cache.copy_blocks(step.block_copies)
        self._backend.cache.zero_blocks(step.block_zeroings)
        filled = time.perf_counter_ns()
        if self._is_lockstep and self._groups.world_size > 1:
            self._groups.compare(self._dp_rank, step.step, target.index, target.rows_padded, target.tokens_padded)
        self._pulse.phase = "launched"
        logits = self._forward(launch)
        launched = time.perf_counter_ns()
        self._core.sample(step, logits)
        self._core.propose_ngram(step)
        self._pulse.phase = "sampled"
        sampled = time.perf_counter_ns()
        marks = (started, decoded, filled, launched, sampled)
        timings_us = [(end - begin) // 1000 for begin, end in pairwise(marks)]
        collectives = self._groups.collectives - collectives_before
        self._pulse.collectives = self._groups.collectives
        return self._core.reply(step, timings_us, collectives)

    def warm_up(self, query_len: int, rows: int, *, is_full: bool) -> None:
        """Run a dummy of `rows` rows of `query_len` tokens, as the plan of an idle rank would."""
        arrays = self._arrays
        tokens = rows * query_len
        arrays.query_start_loc[: rows + 1] = np.arange(rows + 1) * query_len
        arrays.query_start_loc[rows + 1 :] = tokens
        arrays.kv_lens[:rows] = query_len
        arrays.kv_lens[rows:] = 0
        launch = Launch(
            dp_rank=self._dp_rank,
            step=0,
            mode="full" if is_full else "eager",
            query_len=query_len if is_full else 0,
            rows=1,
            tokens=query_len,
            is_dummy=True,
            rows_padded=rows,
            tokens_padded=tokens,
            logits=0,
        )
        if is_full or rows == 1:
            check_launch(launch, arrays, self._limits, self._backend.contract)
        hidden_states = self._hidden_states(launch)
        # A dummy asks for no logits; the output head is a kind of launch of its own.
        self._model.logits(hidden_states[:1])

    def _only_pass(self, step: Step) -> Pass:
        """The target pass. A plan with drafter passes is for a worker that has a drafter network."""
        passes = step.passes
        if len(passes) != 1:
            raise LaunchRefusedError(
                "rule 2", "passes of a worker without a drafter network", 1, len(passes), self._dp_rank, step.step
            )
        return passes[0]

    def _fill(self, step: Step, target: Pass) -> Launch:
        arrays = self._arrays
        logits = self._core.fill_target(
            step,
            arrays.input_ids,
            arrays.positions,
            arrays.slots,
            arrays.query_start_loc,
            arrays.kv_lens,
            arrays.block_table,
            arrays.request_index,
            arrays.logits_index,
        )
        launch = Launch(
            dp_rank=self._dp_rank,
            step=step.step,
            mode=target.mode,
            query_len=target.q,
            rows=target.rows,
            tokens=target.tokens,
            is_dummy=step.is_dummy,
            rows_padded=target.rows_padded,
            tokens_padded=target.tokens_padded,
            logits=logits,
        )
        check_launch(launch, arrays, self._limits, self._backend.contract)
        return launch

    def _forward(self, launch: Launch) -> NDArray[np.float32]:
        """Run the target; gives the logits that the plan asks for, `[logits, vocabulary]`."""
        hidden_states = self._hidden_states(launch)
        if not launch.logits:
            return np.empty((0, self._limits.vocab_size), np.float32)
        wanted = hidden_states.index_select(0, self._logits_index[: launch.logits])
        logits: NDArray[np.float32] = self._model.logits(wanted).numpy()
        return logits

    def _hidden_states(self, launch: Launch) -> torch.Tensor:
        rows, tokens, inputs = launch.attention_rows, launch.attention_tokens, launch.input_tokens
        self._backend.prepare(
            AttentionBatch(
                rows=rows,
                tokens=tokens,
                uniform_query_len=launch.query_len,
                query_start_loc=self._query_start_loc[: rows + 1],
                kv_lens=self._kv_lens[:rows],
                block_table=self._block_table[:rows],
                slots=self._slots[:inputs],
            )
        )
        return self._model.hidden_states(self._input_ids[:inputs], self._positions[:inputs], self._backend)

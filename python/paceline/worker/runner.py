"""One step: decode and check the plan; per pass fill the arrays, check them, run the network; sample, draft, reply.

It derives no shape. A real step, a dummy and a warm-up take the same path through `PassRunner`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from paceline._core import CheckedLaunch, LaunchDesk, PassBuffers, Pulse, Step
from paceline.v1.worker_pb2 import Masks, StepEnvelope
from paceline.worker.checks import LaunchRefusedError
from paceline.worker.drafter_checks import Drafted, TargetCopy, check_extend, check_single
from paceline.worker.load import LoadedModel
from paceline.worker.passes import PassRunner

# What the reply's timings are of, in order.
_DECODE, _FILL, _FORWARD, _SAMPLE = range(4)


@dataclass(frozen=True, slots=True)
class Executed:
    """What came of a step: the reply's body, and what all tp workers of the rank must agree on."""

    body: bytes
    tokens_digest: int
    passes: int
    collectives: int


class _Stopwatch:
    """Time spent by kind of work, in microseconds."""

    def __init__(self) -> None:
        self._spent_ns = [0, 0, 0, 0]
        self._last_ns = time.perf_counter_ns()

    def lap(self, kind: int) -> None:
        """Book the time since the last lap."""
        now = time.perf_counter_ns()
        self._spent_ns[kind] += now - self._last_ns
        self._last_ns = now

    @property
    def timings_us(self) -> list[int]:
        return [spent // 1000 for spent in self._spent_ns]


class Runner:
    """Executes plans on one worker, over buffers that are allocated once."""

    def __init__(
        self, loaded: LoadedModel, pulse: Pulse, *, dp_rank: int, is_lockstep: bool, next_masks: Callable[[], Masks] | None = None
    ) -> None:
        """Take what was loaded. With `is_lockstep`, workers compare what they launch before each pass.

        `next_masks` waits for the masks that come next; they come in the order of the steps that need them.
        """
        self._loaded = loaded
        self._core = loaded.core
        self._arrays = loaded.arrays
        self._limits = loaded.limits
        self._buffers = PassBuffers(loaded.arrays)
        self._desk = LaunchDesk(self._buffers, loaded.limits, loaded.backend.contract)
        self._groups = loaded.groups
        self._drafter = loaded.model.drafter
        self._network = PassRunner(loaded)
        self._pulse = pulse
        self._dp_rank = dp_rank
        self._is_lockstep = is_lockstep
        self._next_masks = next_masks

    @property
    def network(self) -> PassRunner:
        """What runs single passes."""
        return self._network

    def reset(self, epoch: int) -> None:
        """Start an epoch: every seat is void."""
        self._core.reset(epoch)
        # A warm-up may have written to the arrays.
        self._buffers.forget()
        self._pulse.step = 0

    def execute(self, envelope: StepEnvelope) -> Executed:
        """Execute one plan.

        Raises `PlanRefused` or `LaunchRefusedError` for a plan that breaks a rule, `PeerLostError`. After that nothing
        more may run in the epoch.
        """
        watch = _Stopwatch()
        self._pulse.step, self._pulse.pass_index, self._pulse.phase = envelope.step, 0, "received"
        step = self._core.begin(
            envelope.group, envelope.epoch, envelope.step, envelope.digest, envelope.group_part, envelope.rank_part
        )
        watch.lap(_DECODE)
        collectives_before = self._groups.collectives
        passes = self._count_passes(step)
        launch = self._launch(step, 0, self._core.fill_target(step, self._buffers))
        kept = TargetCopy.of(launch, self._arrays) if self._drafter else None
        cache = self._loaded.backend.cache
        cache.copy_blocks(step.block_copies)
        cache.zero_blocks(step.block_zeroings)
        watch.lap(_FILL)
        self._enter(launch, 0)
        hidden = self._network.target(launch)
        logits = self._network.logits(hidden, launch.logits)
        watch.lap(_FORWARD)
        if step.masked_rows:
            self._wait_for_masks(step)
        self._core.sample(step, logits)
        if kept is None:
            self._core.propose_ngram(step)
        watch.lap(_SAMPLE)
        if kept is not None:
            self._draft(step, passes, kept, hidden, watch)
        self._pulse.phase = "sampled"
        collectives = self._groups.collectives - collectives_before
        body = self._core.reply(step, watch.timings_us, collectives)
        return Executed(body, self._core.tokens_digest, passes, collectives)

    def _wait_for_masks(self, step: Step) -> None:
        """Rule 19: the daemon makes them while the forward runs. Those of an epoch that has ended are no news."""
        assert self._next_masks is not None, "a runner without masks gets no plan whose masks follow"
        masks = self._next_masks()
        while masks.epoch < step.epoch:
            masks = self._next_masks()
        self._core.set_masks(step, masks.epoch, masks.step, masks.body)

    def _count_passes(self, step: Step) -> int:
        """The step's passes. Those of a drafter are for a worker that has its network, which has one in every step."""
        kinds = step.pass_kinds
        expected = ["extend"] + ["single"] * max(0, step.k_draft - 1) if self._drafter else []
        if len(kinds) != 1 + len(expected):
            what = "passes of a worker with a drafter network" if expected else "passes of a worker without a drafter network"
            raise LaunchRefusedError("rule 2", what, 1 + len(expected), len(kinds), self._dp_rank, step.step)
        for index, kind in enumerate(expected, start=1):
            if kinds[index] != kind:
                raise LaunchRefusedError("rule 2", f"pass {index} is {kind}", 1, 0, self._dp_rank, step.step)
        return len(kinds)

    def _draft(self, step: Step, passes: int, target: TargetCopy, hidden: Tensor, watch: _Stopwatch) -> None:
        """Extend the drafter's context by the target's tokens, then propose drafts one after another."""
        assert self._drafter is not None
        previous, drafted = self._extend(step, target, hidden, watch)
        layers = self._drafter.layer_count
        if step.k_draft:
            self._propose(step, 1, previous, len(drafted.rows), watch)
        for index in range(2, passes):
            rows = self._core.fill_single(step, index, self._buffers)
            launch = self._launch(step, index, rows, is_dummy=not rows, ahead=max(0, index - layers))
            check_single(launch, self._arrays, target, drafted, self._limits.max_model_len)
            watch.lap(_FILL)
            self._enter(launch, index)
            layer = min(index, layers)
            fed = self._network.padded(previous, launch)
            hidden = self._network.drafter(layer, launch, fed)
            previous = self._network.wanted(hidden, rows)
            self._propose(step, layer, previous, rows, watch)

    def _extend(self, step: Step, target: TargetCopy, hidden: Tensor, watch: _Stopwatch) -> tuple[Tensor, Drafted]:
        """Run every layer over the target's rows; gives the first one's output where rows sampled, and where that is."""
        assert self._drafter is not None
        first: tuple[Tensor, Drafted] | None = None
        for layer in range(1, self._drafter.layer_count + 1):
            rows = self._core.fill_extend(step, layer, self._buffers)
            launch = self._launch(step, 1, rows)
            drafted = check_extend(launch, self._arrays, target, layer)
            watch.lap(_FILL)
            if layer == 1:
                self._enter(launch, 1)
            hidden = self._network.drafter(layer, launch, hidden)
            if first is None:
                first = self._network.wanted(hidden, rows), drafted
            watch.lap(_FORWARD)
        assert first is not None, "a drafter has at least one layer"
        return first

    def _propose(self, step: Step, layer: int, previous: Tensor, rows: int, watch: _Stopwatch) -> None:
        logits = self._network.draft_logits(layer, previous, rows)
        watch.lap(_FORWARD)
        self._core.propose(step, logits)
        watch.lap(_SAMPLE)

    def _launch(self, step: Step, index: int, logits: int, *, is_dummy: bool | None = None, ahead: int = 0) -> CheckedLaunch:
        """What the plan says of pass `index`, whose arrays are filled; checked against them. Raises `LaunchRefusedError`."""
        launch = self._desk.launch(step, index, logits, is_dummy, ahead)
        if launch.fault is not None:
            raise LaunchRefusedError(*launch.fault, self._dp_rank, step.step)
        return launch

    def _enter(self, launch: CheckedLaunch, index: int) -> None:
        """Compare with the other workers where that is wanted, and say how far this one is."""
        if self._is_lockstep:
            self._groups.compare(self._dp_rank, launch.step, index, launch.rows_padded, launch.tokens_padded)
        self._pulse.pass_index, self._pulse.phase = index, "launched"

"""What the model thread does with each message: load and warm up, form groups, execute plans, refuse.

The first refusal of an epoch is its last act: the process groups are closed at once, which frees peers that have
launched, and nothing more runs until the daemon ends this worker (rule 13).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

import torch

from paceline._core import PlanRefused, Pulse, encode_reply, set_kernel_threads
from paceline.attention.contracts import Contract
from paceline.layers.plain import PLAIN_WEIGHTS
from paceline.layers.quantization import Quantization
from paceline.layers.wide import WIDE_LAYOUTS
from paceline.parallel.collectives import PeerLostError
from paceline.parallel.placement import Placement
from paceline.v1.worker_pb2 import (
    AttentionContract,
    BindStore,
    ControlFromWorker,
    Form,
    Formed,
    Loaded,
    Masks,
    Progress,
    Refused,
    StepEnvelope,
    StepFromWorker,
    StoreBound,
    Welcome,
    WorkerSettings,
)
from paceline.worker.checks import LaunchRefusedError
from paceline.worker.load import load
from paceline.worker.lockstep import ProcessGroups
from paceline.worker.memory import keep_freed_memory
from paceline.worker.runner import Runner
from paceline.worker.warmup import warm_up


class Outlet(Protocol):
    """Where messages and lines for people go."""

    def log(self, text: str) -> None:
        """One line for people."""

    def send_control(self, message: ControlFromWorker) -> None:
        """Send on the Control stream."""

    def send_step(self, message: StepFromWorker) -> None:
        """Send on the Steps stream."""

    def send_reply(self, message: bytes) -> None:
        """Send a `StepFromWorker` that is bytes already."""

    def next_masks(self) -> Masks:
        """Wait for the masks that come next on the Steps stream."""


class Execution:
    """A loaded model and the messages that it obeys. Used by the model thread only."""

    def __init__(
        self, outlet: Outlet, pulse: Pulse, dp_rank: int, tp_rank: int, folder: Path, welcome: Welcome, threads: int
    ) -> None:
        """Load the model in `folder` and report `Loaded`; a worker without peers warms up before."""
        self._outlet = outlet
        self._pulse = pulse
        self._dp_rank = dp_rank
        self._tp_rank = tp_rank
        self._settings = settings = welcome.settings
        self._placement = Placement.of(dp_rank, welcome.group_dp_ranks, tp_rank, settings.tp_size)
        self._groups = ProcessGroups(self._placement, pulse, settings.device)
        self._epoch: int | None = None
        torch.set_num_threads(threads)
        set_kernel_threads(threads)
        started = time.monotonic()
        WIDE_LAYOUTS.put_off()
        self._loaded = loaded = load(folder, dp_rank, welcome, self._groups, self._progress)
        keep_freed_memory()
        self._runner = Runner(loaded, pulse, dp_rank=dp_rank, is_lockstep=settings.lockstep, next_masks=outlet.next_masks)
        if self._placement.world_size == 1:
            self._warm_up()
        contract = loaded.backend.contract
        dtype = str(loaded.dtype).removeprefix("torch.")
        if loaded.quantization is not Quantization.NONE:
            dtype += f" with {loaded.quantization} weights"
        self._outlet.log(
            f"loaded in {time.monotonic() - started:.1f} s: {dtype} on {threads} threads, "
            f"{loaded.num_blocks} KV blocks of {settings.block_size}, attention contract {contract.name}, "
            f"{PLAIN_WEIGHTS.held_bytes >> 20} MiB of weights copied or compressed for few rows, "
            f"{PLAIN_WEIGHTS.shared_bytes >> 20} MiB read where they lie (mapped files, embedding)"
        )
        self._outlet.send_control(
            ControlFromWorker(
                loaded=Loaded(
                    num_blocks=loaded.num_blocks,
                    row_capacity=_row_capacity(settings, contract),
                    vocab_size=loaded.limits.vocab_size,
                    attention_contract=_wire_contract(contract, settings),
                )
            )
        )

    def handle(self, message: BindStore | Form | StepEnvelope) -> None:
        """Obey one message."""
        if isinstance(message, BindStore):
            host, port = self._groups.bind_store(message.epoch)
            self._outlet.send_control(ControlFromWorker(store_bound=StoreBound(epoch=message.epoch, host=host, port=port)))
        elif isinstance(message, Form):
            self._groups.form(message.epoch, message.host, message.port, message.world_size, message.world_rank)
            if self._placement.world_size > 1:
                # Only now can collectives run, and all workers run these before any of them is ready.
                self._warm_up()
            self._runner.reset(message.epoch)
            self._epoch = message.epoch
            self._outlet.send_control(ControlFromWorker(formed=Formed(epoch=message.epoch)))
        else:
            self._step(message)

    def _step(self, envelope: StepEnvelope) -> None:
        if self._epoch is None:
            # Refused before, or not formed: nothing may be launched.
            return
        try:
            done = self._runner.execute(envelope)
        except (PlanRefused, LaunchRefusedError) as refusal:
            self._refuse(envelope, refusal)
            return
        except PeerLostError as lost:
            # The peer's own refusal or loss says why; this rank only stops.
            self._epoch = None
            self._groups.close()
            self._outlet.log(f"step {envelope.step}: {lost}; waiting for the daemon")
            return
        # The tp workers of a rank sample alike: one says what, the others that they did.
        body = done.body if self._tp_rank == 0 else b""
        reply = encode_reply(
            envelope.group, envelope.epoch, envelope.step, envelope.digest, body, done.tokens_digest, done.passes, done.collectives
        )
        self._outlet.send_reply(reply)
        self._pulse.phase = "replied"

    def _refuse(self, envelope: StepEnvelope, refusal: PlanRefused | LaunchRefusedError) -> None:
        self._epoch = None
        refused = Refused(
            group=envelope.group,
            epoch=envelope.epoch,
            step=envelope.step,
            rule=refusal.rule,
            field=refusal.field,
            expected=refusal.expected,
            got=refusal.got,
            message=str(refusal),
        )
        self._outlet.send_step(StepFromWorker(refused=refused))
        self._groups.close()
        self._outlet.log(f"refused: {refusal}")

    def _warm_up(self) -> None:
        started = time.monotonic()
        done = warm_up(self._loaded, self._settings, self._dp_rank)
        self._outlet.log(f"warm-up in {time.monotonic() - started:.1f} s: {done.describe()}")
        self._progress("warming up", 1, 1)
        WIDE_LAYOUTS.make_up()

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._outlet.send_control(ControlFromWorker(progress=Progress(stage=stage, done=done, total=total)))


def _row_capacity(settings: WorkerSettings, contract: Contract) -> int:
    return min(settings.row_capacity, contract.row_capacity or settings.row_capacity)


def _wire_contract(contract: Contract, settings: WorkerSettings) -> AttentionContract:
    return AttentionContract(
        name=contract.name,
        ragged_query_lens=contract.ragged_query_lens,
        uniform_query_len_max=contract.uniform_query_len_max,
        block_sizes=contract.block_sizes,
        table_alignment=contract.table_alignment,
        lengths_known=contract.lengths_known,
        row_capacity=_row_capacity(settings, contract),
    )

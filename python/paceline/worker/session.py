"""The life of one worker process: join, load, meet its peers, execute plans, end.

Four threads, so that none waits for another's work: the main thread waits for the end and for signals; one receives on
Control; one waits for the end of Steps; one runs the model. Behind them a thread of the extension carries the bytes and
sends heartbeats, whoever holds the interpreter. The model thread takes everything that touches the model from one queue
of that thread, in order: what comes on Steps lies there without waking a thread between, the rest is put there. A worker
holds no state that must survive: whatever ends it ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Never

from paceline._core import Pulse, StreamLost, wire_thread_id
from paceline.errors import EXIT_USAGE, UsageError
from paceline.v1 import PROTOCOL_HASH
from paceline.v1.worker_pb2 import (
    BindStore,
    ControlFromWorker,
    ControlToWorker,
    Failure,
    Form,
    Hello,
    Join,
    Masks,
    StepEnvelope,
    StepFromWorker,
    StepToWorker,
    Welcome,
)
from paceline.worker.connection import Stream
from paceline.worker.identity import checkpoint_digest, tokenizer_digest
from paceline.worker.threads import pin_threads, prepare_environment, thread_count

if TYPE_CHECKING:
    from paceline.worker.execution import Execution

EXIT_CLEAN = 0
EXIT_FAILED = 1
# How long a message that says why a worker ends may take to leave.
_LAST_WORDS_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    daemon_address: str
    join_token: str
    dp_rank: int
    tp_rank: int
    model: Path


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the process ends, and its exit code."""

    code: int
    reason: str


def worker_name(dp_rank: int, tp_rank: int, tp_size: int) -> str:
    """What lines of a worker begin with: which part of its rank it is only where a rank has several."""
    return f"dp{dp_rank} tp{tp_rank}" if tp_size > 1 else f"dp{dp_rank}"


class Session:
    """One worker, from its first message to its last. `run` is called once, on the main thread."""

    def __init__(self, options: Options) -> None:
        """Keep the options; nothing is opened yet."""
        self._options = options
        self._name = worker_name(options.dp_rank, options.tp_rank, tp_size=1 + options.tp_rank)
        self._incarnation = uuid.uuid4().hex[:16]
        self._pulse = Pulse()
        # Steps that came while the model thread waited for masks, and masks that came while it did not.
        self._work: deque[Welcome | BindStore | Form | StepEnvelope] = deque()
        self._masks: deque[Masks] = deque()
        self._endings: SimpleQueue[Ending] = SimpleQueue()
        self._failure: Ending | None = None
        self._control: Stream[ControlFromWorker, ControlToWorker, Never]
        self._steps: Stream[StepFromWorker, StepToWorker, Welcome | BindStore | Form]
        self._control_ended = threading.Event()

    def run(self) -> int:
        """Live until the daemon says stop, is lost, or something fails; the exit code."""
        # SIGINT reaches the whole foreground group: whether it ends the workers is the daemon's decision.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: self._end(EXIT_CLEAN, "SIGTERM"))
        try:
            join = self._introduce()
            self._control = Stream(self._options.daemon_address, "Control", ControlToWorker.FromString)
            self._control.send(ControlFromWorker(join=join))
            self._steps = Stream(self._options.daemon_address, "Steps", StepToWorker.FromString)
        except (UsageError, OSError) as error:
            return self._report(Ending(EXIT_USAGE, str(error)))
        except StreamLost as error:
            return self._report(Ending(EXIT_FAILED, str(error)))
        self._start("model", self._run_model)
        self._start("control", self._receive_control)
        ending = self._endings.get()
        # The daemon answers a failure with its own goodbye, which may arrive first: the failure is the reason all the same.
        code = self._report(self._failure or ending)
        self._control.close()
        self._steps.close()
        return code

    def log(self, text: str) -> None:
        """One line for people."""
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)

    def send_control(self, message: ControlFromWorker) -> None:
        """Send on the Control stream."""
        self._control.send(message)

    def send_step(self, message: StepFromWorker) -> None:
        """Send on the Steps stream."""
        self._steps.send(message)

    def send_reply(self, message: bytes) -> None:
        """Send a `StepFromWorker` that is bytes already."""
        self._steps.send_bytes(message)

    def next_masks(self) -> Masks:
        """Wait for the masks that come next on the Steps stream. Called by the model thread, in the middle of a step."""
        while not self._masks:
            self._take_in()
        return self._masks.popleft()

    def _introduce(self) -> Join:
        options = self._options
        return Join(
            join_token=options.join_token,
            dp_rank=options.dp_rank,
            tp_rank=options.tp_rank,
            incarnation=self._incarnation,
            protocol_hash=PROTOCOL_HASH,
            checkpoint_digest=checkpoint_digest(options.model),
            tokenizer_digest=tokenizer_digest(options.model),
            process_id=os.getpid(),
        )

    def _end(self, code: int, reason: str) -> None:
        self._endings.put(Ending(code, reason))

    def _report(self, ending: Ending) -> int:
        self.log(f"ends: {' '.join(ending.reason.split())}")
        return ending.code

    def _start(self, name: str, body: Callable[[], None]) -> None:
        threading.Thread(target=body, name=name, daemon=True).start()

    def _receive_control(self) -> None:
        try:
            for message in self._control.receive():
                kind = message.WhichOneof("message")
                if kind == "welcome":
                    self._admitted(message.welcome)
                elif kind == "rejected":
                    no = message.rejected
                    self._end(EXIT_USAGE, f"the daemon refuses the join: {no.field}: expected {no.expected}, got {no.got}")
                    return
                elif kind == "bind_store":
                    self._steps.put(message.bind_store)
                elif kind == "form":
                    self._steps.put(message.form)
                elif kind == "stop":
                    self._end(EXIT_CLEAN, message.stop.reason or "the daemon says stop")
                    return
                elif kind == "abort_epoch":
                    # A pass that waits for a peer cannot be called back; a new incarnation is the way into a new epoch.
                    self._end(EXIT_FAILED, f"the daemon aborts epoch {message.abort_epoch.epoch}")
                    return
        except StreamLost as error:
            self._end(EXIT_FAILED, f"lost the daemon: {error}")
        finally:
            self._control_ended.set()

    def _admitted(self, welcome: Welcome) -> None:
        options = self._options
        self._name = worker_name(options.dp_rank, options.tp_rank, welcome.settings.tp_size)
        self.log(f"joined group {welcome.group} (dp_ranks {', '.join(map(str, welcome.group_dp_ranks))})")
        hello = Hello(
            join_token=options.join_token,
            dp_rank=options.dp_rank,
            tp_rank=options.tp_rank,
            incarnation=self._incarnation,
        )
        self._steps.send(StepFromWorker(hello=hello))
        self._start("steps", self._wait_steps_end)
        self._control.beat(self._pulse)
        self._steps.put(welcome)

    def _wait_steps_end(self) -> None:
        reason = self._steps.wait_end()
        # A daemon that stops closes both streams; the reason is on the other one, and may come a moment later.
        self._control_ended.wait(_LAST_WORDS_S)
        self._end(EXIT_FAILED, f"lost the daemon: {reason}")

    def _take_in(self) -> None:
        """Wait for what comes next for the model thread, and keep it."""
        message = self._steps.receive_one()
        if not isinstance(message, StepToWorker):
            self._work.append(message)
        elif message.HasField("masks"):
            self._masks.append(message.masks)
        else:
            self._work.append(message.step)

    def _run_model(self) -> None:
        """Body of the model thread."""
        execution: Execution | None = None
        try:
            while True:
                while not self._work:
                    self._take_in()
                item = self._work.popleft()
                if isinstance(item, Welcome):
                    execution = self._load(item)
                else:
                    assert execution is not None, "the daemon sends nothing else before the welcome"
                    execution.handle(item)
        except StreamLost:
            # Whoever waits for the end of the stream says so.
            return
        except Exception as error:
            self._fail(error)

    def _load(self, welcome: Welcome) -> Execution:
        settings = welcome.settings
        tp_size = max(1, settings.tp_size)
        workers = settings.dp_size * tp_size
        threads = thread_count(settings.threads, workers)
        pin_threads(self._options.dp_rank * tp_size + self._options.tp_rank, workers, threads, wire_thread_id())
        prepare_environment(threads)
        # Only now: torch takes seconds to import, and a worker that is refused needs none of it.
        from paceline.worker.execution import Execution

        options = self._options
        return Execution(self, self._pulse, options.dp_rank, options.tp_rank, options.model, welcome, threads)

    def _fail(self, error: Exception) -> None:
        """Say what failed, to the daemon and to people, and end."""
        is_usage = isinstance(error, UsageError)
        if not is_usage:
            traceback.print_exception(error)
        message = str(error) if is_usage else f"{type(error).__name__}: {error}"
        self._failure = Ending(EXIT_USAGE if is_usage else EXIT_FAILED, message)
        self.send_control(ControlFromWorker(failure=Failure(message=message)))
        self._control.finish_sending()
        self._control_ended.wait(_LAST_WORDS_S)
        self._endings.put(self._failure)

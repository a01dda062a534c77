"""Every kind of step, run once before the worker is ready, so that no request pays for a first time (rule 8).

Workers that share collectives run it together, in one order that follows from their settings: the first meeting of any
two of them, in the target and in the drafter, is here and not in a request's step.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.v1.worker_pb2 import WorkerSettings
from paceline.worker.checks import Launch, check_launch
from paceline.worker.load import LoadedModel
from paceline.worker.passes import PassRunner


@dataclass
class WarmUp:
    """What was run: passes by network and kind, collectives of the target and of the drafter."""

    target: int = 0
    extend: int = 0
    single: int = 0
    target_collectives: int = 0
    drafter_collectives: int = 0

    def describe(self) -> str:
        """One line for people."""
        passes = f"{self.target} target, {self.extend} extend and {self.single} single passes"
        return f"{passes}, collectives: {self.target_collectives} of the target, {self.drafter_collectives} of the drafter"


def warm_up(loaded: LoadedModel, settings: WorkerSettings, dp_rank: int) -> WarmUp:
    """Run dummies of every kind of step on every rank of the group; the cache stays as it is."""
    warming = _Warming(loaded, dp_rank)
    ladders = {ladder.query_len: list(ladder.rows) for ladder in settings.row_ladders}
    for query_len, rows in sorted(ladders.items()):
        for row_count in sorted({min(rows), max(rows)}) if rows else ():
            warming.step(query_len, row_count, is_full=True)
    for query_len in sorted({1, *ladders}):
        warming.step(query_len, 1, is_full=False)
    if loaded.model.drafter is not None and settings.k_max > 1:
        rows = ladders.get(1, [])
        for layer in range(min(2, loaded.model.drafter.layer_count), loaded.model.drafter.layer_count + 1):
            for row_count in sorted({min(rows), max(rows)}) if rows else ():
                warming.single(layer, row_count, is_full=True)
            warming.single(layer, 1, is_full=False)
    return warming.done


class _Warming:
    """Dummies on their way through the networks."""

    def __init__(self, loaded: LoadedModel, dp_rank: int) -> None:
        self.done = WarmUp()
        self._loaded = loaded
        self._network = PassRunner(loaded)
        self._dp_rank = dp_rank

    def step(self, query_len: int, rows: int, *, is_full: bool) -> None:
        """Run the target and every layer's extend pass over `rows` rows of `query_len` tokens."""
        launch = self._launch(query_len, rows, is_full=is_full)
        before = self._loaded.groups.collectives
        hidden = self._network.target(launch)
        # A dummy asks for no logits; the output head is a kind of launch of its own.
        self._network.head_once(hidden)
        self.done.target += 1
        after = self._loaded.groups.collectives
        self.done.target_collectives += after - before
        drafter = self._loaded.model.drafter
        if drafter is None:
            return
        for layer in range(1, drafter.layer_count + 1):
            hidden = self._network.drafter(layer, launch, hidden)
            self._network.draft_head_once(layer, hidden)
        self.done.extend += 1
        self.done.drafter_collectives += self._loaded.groups.collectives - after

    def single(self, layer: int, rows: int, *, is_full: bool) -> None:
        """Run a single pass of one layer over `rows` rows."""
        launch = self._launch(1, rows, is_full=is_full)
        before = self._loaded.groups.collectives
        fed = self._network.padded(self._network.no_rows, launch)
        hidden = self._network.drafter(layer, launch, fed)
        self._network.draft_head_once(layer, hidden)
        self.done.single += 1
        self.done.drafter_collectives += self._loaded.groups.collectives - before

    def _launch(self, query_len: int, rows: int, *, is_full: bool) -> Launch:
        """A dummy as the plan of an idle rank has it, with its arrays."""
        loaded = self._loaded
        loaded.arrays.write_dummy(rows, query_len)
        launch = Launch(
            dp_rank=self._dp_rank,
            step=0,
            mode="full" if is_full else "eager",
            query_len=query_len if is_full else 0,
            rows=1,
            tokens=query_len,
            is_dummy=True,
            rows_padded=rows,
            tokens_padded=rows * query_len,
            logits=0,
        )
        check_launch(launch, loaded.arrays, loaded.limits, loaded.backend.contract)
        return launch

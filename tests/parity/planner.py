"""A planner for tests: turns "prefill this much, decode that" into the envelopes that a daemon would send.

It decides nothing on its own and serves one lockstep group; the worker's answers keep its picture of each seat true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline import _core
from paceline.v1.worker_pb2 import StepEnvelope

BLOCK_SIZE = 4


@dataclass
class Seat:
    """One request as the planner knows it."""

    prompt: list[int]
    blocks: list[int]
    sampling: bytes
    computed: int = 0
    output: list[int] = field(default_factory=list)
    proposed: int = 0
    generation: int = 0
    # Tokens that the worker has been told.
    fed: int = 0
    is_admitted: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)


class Planner:
    """Plans steps for a group of ranks; every rank has seats of its own.

    With `drafter_layers` steps have the passes of a drafter, and prompts the lookahead that it needs.
    """

    def __init__(self, dp_ranks: list[int], epoch: int = 1, drafter_layers: int = 0) -> None:
        self.dp_ranks = dp_ranks
        self.epoch = epoch
        self.step = 0
        self.drafter_layers = drafter_layers
        self.seats: dict[int, dict[int, Seat]] = {dp_rank: {} for dp_rank in dp_ranks}
        self._releases: dict[int, list[tuple[int, int]]] = {dp_rank: [] for dp_rank in dp_ranks}

    def admit(self, dp_rank: int, seat: int, prompt: list[int], blocks: list[int], **sampling: Any) -> Seat:
        """Put a request on a free seat; it is admitted with its first row. Greedy unless told otherwise."""
        encoded = _core.sampling_bytes_for_test(**{"temperature": 0.0, **sampling})
        self.seats[dp_rank][seat] = Seat(prompt, blocks, encoded)
        return self.seats[dp_rank][seat]

    def preempt(self, dp_rank: int, number: int, blocks: list[int]) -> None:
        """Take a request's seat away; its next rows compute it again in `blocks`, on the same seat."""
        seat = self.seats[dp_rank][number]
        self._releases[dp_rank].append((number, seat.generation))
        seat.generation += 1
        seat.blocks, seat.computed, seat.fed, seat.proposed, seat.is_admitted = blocks, 0, 0, 0, False

    def full(
        self, seats: Mapping[int, list[int]], *, query_len: int = 1, rows_padded: int, k_draft: int = 0
    ) -> dict[int, StepEnvelope]:
        """Plan a FULL step: all seats named decode, `query_len` tokens each; ranks with none run a dummy."""
        rows = {
            dp_rank: [self._decode_row(dp_rank, seat, query_len) for seat in seats.get(dp_rank, [])] for dp_rank in self.dp_ranks
        }
        loads = [(len(rows[dp_rank]), max(1, len(rows[dp_rank])) * query_len) for dp_rank in self.dp_ranks]
        target = {"mode": "full", "q": query_len, "rows_padded": rows_padded, "loads": loads}
        return self._envelopes(target, rows, k_verify=query_len - 1, k_draft=k_draft)

    def eager(self, chunks: Mapping[int, Mapping[int, int]], *, k_draft: int = 0) -> dict[int, StepEnvelope]:
        """Plan an EAGER step: per rank and seat, how many tokens it runs (0: it decodes). Decoding seats come first."""
        rows = {}
        for dp_rank in self.dp_ranks:
            wanted = chunks.get(dp_rank, {})
            decode = [self._decode_row(dp_rank, seat, 1) for seat, tokens in wanted.items() if not tokens]
            rows[dp_rank] = decode + [self._chunk_row(dp_rank, seat, tokens) for seat, tokens in wanted.items() if tokens]
        loads = [(len(row_list), sum(row["query_len"] for row in row_list) or 1) for row_list in rows.values()]
        return self._envelopes({"mode": "eager", "loads": loads}, rows, k_verify=0, k_draft=k_draft)

    def settle(self, dp_rank: int, body: bytes) -> dict[str, Any]:
        """Take one rank's reply; gives it decoded."""
        reply: dict[str, Any] = dict(_core.decode_reply_for_test(body))
        for row in reply["rows"]:
            seat = self.seats[dp_rank][row["seat"]]
            seat.output += row["emitted"]
            seat.proposed = row["proposed"]
            if row["emitted"]:
                seat.computed = seat.known - 1
        return reply

    def _decode_row(self, dp_rank: int, number: int, query_len: int) -> dict[str, Any]:
        seat = self.seats[dp_rank][number]
        drafts = min(seat.proposed, query_len - 1)
        return {**self._row(seat, number), "start": seat.known - 1, "query_len": query_len, "logits": "verify", "drafts": drafts}

    def _chunk_row(self, dp_rank: int, number: int, tokens: int) -> dict[str, Any]:
        seat = self.seats[dp_rank][number]
        logits = "last" if seat.computed + tokens == seat.known else "none"
        return {**self._row(seat, number), "start": seat.computed, "query_len": tokens, "logits": logits}

    def _row(self, seat: Seat, number: int) -> dict[str, Any]:
        return {"seat": number, "generation": seat.generation, "blocks": len(seat.blocks)}

    def _envelopes(
        self, target: dict[str, Any], rows: dict[int, list[dict[str, Any]]], *, k_verify: int, k_draft: int
    ) -> dict[int, StepEnvelope]:
        self.step += 1
        sampled = [sum(row["logits"] != "none" for row in rows[dp_rank]) for dp_rank in self.dp_ranks]
        k_draft = k_draft if any(sampled) else 0
        envelopes = {}
        for dp_rank in self.dp_ranks:
            new = [(row["seat"], self.seats[dp_rank][row["seat"]]) for row in rows[dp_rank]]
            new = [(number, seat) for number, seat in new if not seat.is_admitted]
            digest, group_part, rank_part = _core.encode_step_for_test(
                epoch=self.epoch,
                step=self.step,
                dp_rank=dp_rank,
                dp_ranks=self.dp_ranks,
                target=target,  # type: ignore[arg-type]
                rows=rows[dp_rank],  # type: ignore[arg-type]
                releases=self._releases[dp_rank],
                admissions=[(number, seat.generation, len(seat.prompt), seat.sampling) for number, seat in new],
                feeds=self._feeds(dp_rank, rows[dp_rank]),
                block_appends=[(number, seat.blocks) for number, seat in new],
                drafter_passes=self._drafter_passes(target, sampled, k_draft),  # type: ignore[arg-type]
                k_verify=k_verify,
                k_draft=k_draft,
            )
            self._releases[dp_rank] = []
            for _, seat in new:
                seat.is_admitted = True
            envelopes[dp_rank] = StepEnvelope(
                group=0, epoch=self.epoch, step=self.step, digest=digest, group_part=group_part, rank_part=rank_part
            )
        return envelopes

    def _feeds(self, dp_rank: int, rows: list[dict[str, Any]]) -> list[tuple[int, int, list[int]]]:
        """What chunks need that the worker has not been told, lookahead included; the chunks count as computed."""
        feeds = []
        for row in rows:
            seat = self.seats[dp_rank][row["seat"]]
            if row["logits"] == "verify":
                continue
            seat.computed += row["query_len"]
            end = min(seat.computed + self.drafter_layers, seat.known)
            if end > seat.fed:
                feeds.append((row["seat"], seat.fed, seat.tokens[seat.fed : end]))
                seat.fed = end
        return feeds

    def _drafter_passes(self, target: dict[str, Any], sampled: list[int], k_draft: int) -> list[dict[str, Any]]:
        """The extend pass, which looks like the target's, and single passes of the rows that sample."""
        if not self.drafter_layers:
            return []
        single: dict[str, Any] = {"mode": target["mode"], "loads": [(rows, max(1, rows)) for rows in sampled]}
        if target["mode"] == "full":
            single |= {"q": 1, "rows_padded": target["rows_padded"]}
        return [target] + [single] * (k_draft - 1)

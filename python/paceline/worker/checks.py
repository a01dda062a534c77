"""The last look at a pass's tensors, just before it is launched.

The plan has been checked and the arrays were made from it. They are held against the plan's numbers and the backend's
contract once more, by a crate that shares no code and no constant with the one that fills them (`crates/launch`), so a
mistake there does not hide itself. It repairs nothing: whatever breaks a rule is refused, with both numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from paceline import _core
from paceline._core import CheckedLaunch
from paceline.attention.contracts import Contract
from paceline.worker.arrays import StepArrays

_READ_BY_KERNELS = ("query_start_loc", "kv_lens", "block_table")


class LaunchRefusedError(Exception):
    """A tensor breaks a rule. `expected` and `got` are the two numbers that disagree."""

    def __init__(self, rule: str, field: str, expected: int, got: int, dp_rank: int, step: int) -> None:
        super().__init__(f"{rule}: {field}: expected {expected}, got {got} (dp_rank {dp_rank}, step {step})")
        self.rule = rule
        self.field = field
        self.expected = expected
        self.got = got
        self.dp_rank = dp_rank
        self.step = step


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """Sizes of this worker that no launch may pass. `block_count` includes the null block."""

    max_model_len: int
    k_max: int
    block_size: int
    block_count: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Launch:
    """What the plan says of one pass on this rank. A dummy has `rows` 1, as it is run."""

    dp_rank: int
    step: int
    mode: str
    query_len: int
    rows: int
    tokens: int
    is_dummy: bool
    rows_padded: int
    tokens_padded: int
    logits: int
    # Drafter passes: how many positions before the row's own hold drafts, whose blocks it may lack (rule 18).
    ahead: int = 0

    @property
    def is_full(self) -> bool:
        """A fixed-shape uniform launch."""
        return self.mode == "full"

    @property
    def attention_rows(self) -> int:
        """Rows that attention is handed: padded in FULL, real elsewhere (rules 4 and 6)."""
        return self.rows_padded if self.is_full else self.rows

    @property
    def attention_tokens(self) -> int:
        """Tokens that attention is handed, of the same kind as `attention_rows`."""
        return self.tokens_padded if self.is_full else self.tokens

    @property
    def input_tokens(self) -> int:
        """Tokens that the network's other layers are handed."""
        return self.tokens if self.mode == "eager" else self.tokens_padded

    @property
    def request_rows(self) -> int:
        """Rows that belong to requests."""
        return 0 if self.is_dummy else self.rows

    @property
    def request_tokens(self) -> int:
        """Tokens that belong to requests."""
        return 0 if self.is_dummy else self.tokens


AnyLaunch: TypeAlias = Launch | CheckedLaunch
"""What the plan says of a pass, put together here or by `_core`."""


def check_launch(launch: Launch, arrays: StepArrays, limits: LaunchLimits, contract: Contract) -> None:
    """Check one pass. Raises `LaunchRefusedError` for the first rule that does not hold."""
    try:
        fault = _core.check_launch(launch, arrays, limits, contract)
    except (TypeError, ValueError):
        # What it cannot borrow as it should be; which of them is looked for only then.
        _refuse_memory(launch, arrays, contract)
        raise
    if fault is not None:
        raise LaunchRefusedError(*fault, launch.dp_rank, launch.step)


def _refuse_memory(launch: Launch, arrays: StepArrays, contract: Contract) -> None:
    rule = f"attention contract {contract.name}"
    for name in _READ_BY_KERNELS:
        array = getattr(arrays, name)
        if array.dtype.itemsize != 4:
            raise LaunchRefusedError(
                rule, f"bytes of an element of {name}", 4, array.dtype.itemsize, launch.dp_rank, launch.step
            ) from None
        if not array.flags.c_contiguous:
            raise LaunchRefusedError(rule, f"contiguity of {name}", 1, 0, launch.dp_rank, launch.step) from None

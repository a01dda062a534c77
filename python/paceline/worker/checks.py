"""The last look at a pass's tensors, just before it is launched.

`_core` has checked the plan and made the arrays from it. This file holds the arrays against the plan's numbers and the
backend's contract once more, from the rules' text alone: it shares no code and no constant with `_core`, so a mistake
there does not hide itself. It repairs nothing: whatever breaks a rule is refused, with both numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from paceline.attention.contracts import Contract
from paceline.worker.arrays import StepArrays

# Rule 7: what padding holds.
_PAD_TOKEN = 0
_PAD_POSITION = 0
_NO_SLOT = -1
_NO_REQUEST = -1
_NO_LOGITS = -1
_NULL_BLOCK = 0


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


def check_launch(launch: Launch, arrays: StepArrays, limits: LaunchLimits, contract: Contract) -> None:
    """Check one pass. Raises `LaunchRefusedError` for the first rule that does not hold."""
    check = _Check(launch, arrays, limits)
    check.shape()
    check.query_lens()
    check.kv_lens()
    check.block_table()
    check.padding()
    check.request_tokens()
    check.slots()
    check.logits()
    check.contract(contract)


class _Check:
    """One pass under inspection; a method per subject."""

    def __init__(self, launch: Launch, arrays: StepArrays, limits: LaunchLimits) -> None:
        self.launch = launch
        self.arrays = arrays
        self.limits = limits
        self.rows = launch.attention_rows
        self.tokens = launch.attention_tokens
        starts = arrays.query_start_loc[: self.rows + 1]
        # Query length of every row that attention is handed.
        self.lens = starts[1:] - starts[:-1]

    def refuse(self, rule: str, field: str, expected: int, got: int) -> NoReturn:
        raise LaunchRefusedError(rule, field, int(expected), int(got), self.launch.dp_rank, self.launch.step)

    def equal(self, rule: str, field: str, expected: int, got: int) -> None:
        if expected != got:
            self.refuse(rule, field, expected, got)

    def all_equal(self, rule: str, field: str, values: np.ndarray, expected: int) -> None:
        is_wrong = values if expected == 0 else values != expected
        if is_wrong.any():
            self.refuse(rule, field, expected, int(values[values != expected][0]))

    def at_most(self, rule: str, field: str, limit: int, got: int) -> None:
        if got > limit:
            self.refuse(rule, field, limit, got)

    def at_least(self, rule: str, field: str, limit: int, got: int) -> None:
        if got < limit:
            self.refuse(rule, field, limit, got)

    def shape(self) -> None:
        """Rows and tokens are padded together, and fit the arrays."""
        launch = self.launch
        self.at_least("rule 1", "rows", 1, launch.rows)
        if launch.is_dummy:
            self.equal("rule 1", "dummy rows", 1, launch.rows)
        self.at_most("rule 4", "rows", launch.rows_padded, launch.rows)
        self.at_most("rule 4", "tokens", launch.tokens_padded, launch.tokens)
        self.at_most("rule 5", "rows of the pass", len(self.arrays.kv_lens), self.rows)
        self.at_most("rule 5", "tokens of the pass", len(self.arrays.input_ids), launch.input_tokens)
        if launch.is_full:
            self.at_least("rule 3", "query_len", 1, launch.query_len)
            self.equal("rule 4", "tokens_padded", launch.rows_padded * launch.query_len, launch.tokens_padded)
            self.equal("rule 3", "tokens", launch.rows * launch.query_len, launch.tokens)
            self.equal("rule 4", "attention tokens modulo rows", 0, self.tokens % self.rows)

    def query_lens(self) -> None:
        """Rows tile the tokens; in FULL each is q long, padding rows too."""
        starts = self.arrays.query_start_loc
        self.equal("rule 7", "query_start_loc[0]", 0, starts[0])
        self.equal("rule 4", "query_start_loc at the last row", self.tokens, starts[self.rows])
        self.all_equal("rule 7", "query_start_loc past the rows", starts[self.rows :], self.tokens)
        if self.launch.is_full:
            self.all_equal("rule 7", "query length of a row", self.lens, self.launch.query_len)
        else:
            self.at_least("rule 3", "query length of a row", 1, self.lens.min())

    def kv_lens(self) -> None:
        """Every row sees its own tokens, and none more than the table can say."""
        kv_lens = self.arrays.kv_lens
        is_short = kv_lens[: self.rows] < self.lens
        if is_short.any():
            row = int(is_short.argmax())
            self.refuse("rule 7", f"kv_len of row {row}", self.lens[row], kv_lens[row])
        longest = kv_lens[: self.rows].max()
        self.at_most("rule 9", "kv_len", self.limits.max_model_len + self.limits.k_max, longest)
        self.at_most("rule 9", "kv_len", self.arrays.block_table.shape[1] * self.limits.block_size, longest)
        self.all_equal("rule 7", "kv_len past the rows", kv_lens[self.rows :], 0)

    def block_table(self) -> None:
        """Blocks exist, and every computed position of a request lies in a block of its own."""
        table = self.arrays.block_table[: self.rows]
        # As unsigned numbers, so that one pass over a wide table finds negative ids too.
        if table.view(np.uint32).max() >= self.limits.block_count:
            self.at_least("rule 7", "block id", 0, table.min())
            self.at_most("rule 7", "block id", self.limits.block_count - 1, table.max())
        request_rows = self.launch.request_rows
        if not request_rows:
            return
        computed = self.arrays.kv_lens[:request_rows] - self.lens[:request_rows]
        # Drafts may go on past the blocks; the tokens that they follow lie in some.
        blocks = -(-(computed - max(0, self.launch.ahead - 1)) // self.limits.block_size)
        columns = int(blocks.max())
        missing = (table[:request_rows, :columns] == _NULL_BLOCK) & (np.arange(columns) < blocks[:, None])
        if missing.any():
            row = int(missing.any(axis=1).argmax())
            self.refuse("rule 9", f"blocks of row {row}", blocks[row], int(missing[row].argmax()))

    def padding(self) -> None:
        """Padding and dummy rows hold the values of rule 7, and so does everything past them."""
        arrays, begin = self.arrays, self.launch.request_tokens
        self.all_equal("rule 7", "token id of padding", arrays.input_ids[begin:], _PAD_TOKEN)
        self.all_equal("rule 7", "position of padding", arrays.positions[begin:], _PAD_POSITION)
        self.all_equal("rule 7", "slot of padding", arrays.slots[begin:], _NO_SLOT)
        self.all_equal("rule 7", "request index of padding", arrays.request_index[begin:], _NO_REQUEST)
        request_rows = self.launch.request_rows
        if request_rows == self.rows:
            return
        is_wrong = arrays.kv_lens[request_rows : self.rows] != self.lens[request_rows:]
        if is_wrong.any():
            row = request_rows + int(is_wrong.argmax())
            self.refuse("rule 7", "kv_len of a padding row", self.lens[row], arrays.kv_lens[row])
        self.all_equal("rule 7", "block id of a padding row", arrays.block_table[request_rows : self.rows].ravel(), _NULL_BLOCK)

    def request_tokens(self) -> None:
        """Tokens of requests are words of the model, at the positions that their row's length implies."""
        tokens = self.launch.request_tokens
        if not tokens:
            return
        arrays = self.arrays
        ids, rows = arrays.input_ids[:tokens], arrays.request_index[:tokens]
        self.at_least("rule 9", "token id", 0, ids.min())
        self.at_most("rule 9", "token id", self.limits.vocab_size - 1, ids.max())
        starts = arrays.query_start_loc[: self.launch.request_rows + 1]
        lens = self.lens[: self.launch.request_rows]
        self._same("rule 7", "request index of token", np.repeat(np.arange(len(lens)), lens), rows)
        offsets = np.arange(tokens) - starts[:-1][rows]
        expected = (arrays.kv_lens[: len(lens)] - lens)[rows] + offsets
        clamped = np.minimum(expected, self.limits.max_model_len - 1)
        self._same("rule 9", "position of token", clamped, arrays.positions[:tokens])

    def slots(self) -> None:
        """Writes go where the block table says, never to the null block, and no two to one place."""
        tokens, block_size = self.launch.request_tokens, self.limits.block_size
        slots = self.arrays.slots[:tokens]
        writes = np.flatnonzero(slots != _NO_SLOT)
        if not len(writes):
            return
        written = slots[writes]
        self.at_least("rule 7", "slot", block_size, written.min())
        self.at_most("rule 7", "slot", self.limits.block_count * block_size - 1, written.max())
        ordered = np.sort(written)
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            self.refuse("rule 7", f"writes to slot {ordered[twice[0]]}", 1, 2)
        positions = self.arrays.positions[writes]
        blocks = self.arrays.block_table[self.arrays.request_index[writes], positions // block_size]
        self._same("rule 16", "slot of write", blocks.astype(np.int64) * block_size + positions % block_size, written)

    def logits(self) -> None:
        """Logits are taken from request tokens only, in order."""
        index, count = self.arrays.logits_index, self.launch.logits
        self.at_most("rule 20", "logits", self.launch.request_tokens, count)
        self.all_equal("rule 20", "logits index past the count", index[count:], _NO_LOGITS)
        if count:
            self.at_least("rule 20", "logits index", 0, index[0])
            self.at_most("rule 20", "logits index", self.launch.request_tokens - 1, index[count - 1])
            steps = np.diff(index[:count])
            if len(steps):
                self.at_least("rule 20", "step between logits indices", 1, steps.min())

    def contract(self, contract: Contract) -> None:
        """The backend's own conditions."""
        rule = f"attention contract {contract.name}"
        for name in ("query_start_loc", "kv_lens", "block_table"):
            array = getattr(self.arrays, name)
            self.equal(rule, f"bytes of an element of {name}", 4, array.dtype.itemsize)
            self.equal(rule, f"contiguity of {name}", 1, int(array.flags.c_contiguous))
        self.equal(rule, "block table width modulo alignment", 0, self.arrays.block_table.shape[1] % contract.table_alignment)
        if contract.block_sizes and self.limits.block_size not in contract.block_sizes:
            self.refuse(rule, "block size", contract.block_sizes[0], self.limits.block_size)
        if contract.row_capacity:
            self.at_most(rule, "rows", contract.row_capacity, self.rows)
        if contract.uniform_query_len_max and self.launch.is_full:
            self.at_most(rule, "uniform query length", contract.uniform_query_len_max, self.launch.query_len)
        if contract.kv_overhang_max >= 0:
            limit = self.limits.max_model_len + contract.kv_overhang_max
            self.at_most(rule, "kv_len", limit, self.arrays.kv_lens[: self.rows].max())

    def _same(self, rule: str, field: str, expected: np.ndarray, got: np.ndarray) -> None:
        is_wrong = expected != got
        if is_wrong.any():
            index = int(is_wrong.argmax())
            self.refuse(rule, f"{field} {index}", expected[index], got[index])

"""The host arrays of a step: allocated once at capacity, written by `_core`, read by checks, model and attention.

Their addresses never change, so a recorded graph could be replayed over them; torch sees the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepArrays:
    """What a pass is given. Entries past the pass's padded size hold the pad value of their kind."""

    # Token ids, positions and KV write addresses (-1: none), int64 [token_capacity].
    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    # First token of each row, int32 [row_capacity + 1]; flat past the last row.
    query_start_loc: NDArray[np.int32]
    # Keys that each row's last token sees, int32 [row_capacity].
    kv_lens: NDArray[np.int32]
    # Block ids, int32 [row_capacity, table_width].
    block_table: NDArray[np.int32]
    # Row of each token, -1 for padding, int32 [token_capacity].
    request_index: NDArray[np.int32]
    # Tokens whose logits are wanted, in row order, int64 [token_capacity].
    logits_index: NDArray[np.int64]

    @classmethod
    def allocate(cls, *, row_capacity: int, token_capacity: int, table_width: int) -> StepArrays:
        """Make arrays that hold padding only."""
        return cls(
            input_ids=np.zeros(token_capacity, np.int64),
            positions=np.zeros(token_capacity, np.int64),
            slots=np.full(token_capacity, -1, np.int64),
            query_start_loc=np.zeros(row_capacity + 1, np.int32),
            kv_lens=np.zeros(row_capacity, np.int32),
            block_table=np.zeros((row_capacity, table_width), np.int32),
            request_index=np.full(token_capacity, -1, np.int32),
            logits_index=np.full(token_capacity, -1, np.int64),
        )

    def write_dummy(self, rows: int, query_len: int) -> None:
        """Write `rows` rows of padding, `query_len` tokens each, as an idle rank's pass has them (rule 7)."""
        for array, pad in ((self.input_ids, 0), (self.positions, 0), (self.slots, -1), (self.request_index, -1)):
            array.fill(pad)
        self.block_table.fill(0)
        self.logits_index.fill(-1)
        self.query_start_loc[: rows + 1] = np.arange(rows + 1) * query_len
        self.query_start_loc[rows + 1 :] = rows * query_len
        self.kv_lens[:rows] = query_len
        self.kv_lens[rows:] = 0

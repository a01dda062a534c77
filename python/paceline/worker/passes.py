"""One pass of a network over the step's arrays: the batch for attention, the tokens for the exchange, the forward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.attention.interface import AttentionBatch
from paceline.parallel.exchange import PassTokens
from paceline.worker.checks import AnyLaunch
from paceline.worker.load import LoadedModel


class PassRunner:
    """Runs passes over the worker's arrays, which `_core` has filled. It derives no shape."""

    def __init__(self, loaded: LoadedModel) -> None:
        """Take what was loaded."""
        self._model = loaded.model
        self._backend = loaded.backend
        self._exchange = loaded.parallel.exchange
        self._is_alone = loaded.parallel.tp.count == 1
        self._vocab_size = loaded.limits.vocab_size
        # The same memory as the arrays, seen by torch.
        arrays = loaded.arrays
        self._input_ids = torch.from_numpy(arrays.input_ids)
        self._positions = torch.from_numpy(arrays.positions)
        self._slots = torch.from_numpy(arrays.slots)
        self._query_start_loc = torch.from_numpy(arrays.query_start_loc)
        self._kv_lens = torch.from_numpy(arrays.kv_lens)
        self._block_table = torch.from_numpy(arrays.block_table)
        self._request_index = torch.from_numpy(arrays.request_index)
        self._logits_index = torch.from_numpy(arrays.logits_index)
        # What a single pass is fed beside its tokens; rows past them are zero.
        self._fed = torch.zeros(len(arrays.input_ids), loaded.model.config.hidden_size, dtype=loaded.dtype)

    def target(self, launch: AnyLaunch) -> Tensor:
        """Run the target; gives `[input tokens, hidden]`."""
        inputs = self._prepare(launch)
        return self._model.hidden_states(self._input_ids[:inputs], self._positions[:inputs], self._backend)

    def drafter(self, layer: int, launch: AnyLaunch, previous: Tensor) -> Tensor:
        """Run drafter layer `layer`, counted from 1, over `previous [input tokens, hidden]`; gives the same shape."""
        inputs = self._prepare(launch)
        assert self._model.drafter is not None
        return self._model.drafter.hidden_states(layer, self._input_ids[:inputs], self._positions[:inputs], previous, self._backend)

    def wanted(self, hidden_states: Tensor, count: int) -> Tensor:
        """The `[count, hidden]` of the tokens whose logits are planned."""
        return hidden_states.index_select(0, self._logits_index[:count])

    def padded(self, previous: Tensor, launch: AnyLaunch) -> Tensor:
        """`previous [rows, hidden]` as a single pass is fed it: zeros for padding, always in the same memory."""
        fed = self._fed[: launch.input_tokens]
        fed[: previous.shape[0]] = previous
        fed[previous.shape[0] :] = 0
        return fed

    def logits(self, hidden_states: Tensor, count: int) -> NDArray[np.float32]:
        """Logits that the plan asks for, `[count, vocabulary]`, of `hidden_states [tokens, hidden]`."""
        return self._head(count, self.wanted(hidden_states, count), self._model.logits)

    def draft_logits(self, layer: int, wanted: Tensor, count: int) -> NDArray[np.float32]:
        """Logits of drafter layer `layer` for `wanted [count, hidden]`."""
        drafter = self._model.drafter
        assert drafter is not None
        return self._head(count, wanted, lambda rows: drafter.logits(layer, rows))

    def head_once(self, hidden_states: Tensor) -> None:
        """Run the target's output head for one token."""
        self._model.logits(hidden_states[:1])

    def draft_head_once(self, layer: int, hidden_states: Tensor) -> None:
        """Run a drafter layer's output head for one token."""
        assert self._model.drafter is not None
        self._model.drafter.logits(layer, hidden_states[:1])

    @property
    def no_rows(self) -> Tensor:
        """Hidden states of no row, `[0, hidden]`."""
        return self._fed[:0]

    def _head(self, count: int, wanted: Tensor, head: Callable[[Tensor], Tensor]) -> NDArray[np.float32]:
        """Run an output head. Its collective is one of the pass even where no row wants logits."""
        if count or not self._is_alone:
            rows = wanted if count else self._fed.new_zeros(1, self._fed.shape[1])
            logits: NDArray[np.float32] = head(rows)[:count].numpy()
            return logits
        return np.empty((0, self._vocab_size), np.float32)

    def _prepare(self, launch: AnyLaunch) -> int:
        """Tell attention and exchange of the pass; gives the tokens that the network runs."""
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
        is_request = self._request_index[:inputs] >= 0
        self._exchange.prepare(PassTokens(launch.tokens_padded, is_request))
        return inputs

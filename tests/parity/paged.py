"""Runs a Paceline model over a paged cache without a scheduler: what the parity tests compare with transformers."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.attention.cpu import CpuAttention
from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache
from paceline.layers.quantization import Quantization
from paceline.models.config import load_model_config
from paceline.models.kv_layout import kv_layout
from paceline.models.registry import build_model
from paceline.parallel.context import Parallel
from paceline.parallel.exchange import PassTokens
from paceline.weights.loader import WeightReader

# Token ids, tokens computed before, blocks.
Row = tuple[list[int], int, list[int]]

BLOCK_SIZE = 4
TABLE_WIDTH = 64


class PagedModel:
    """One model, one cache, and a block table per sequence that the test chooses."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        block_count: int = 128,
        *,
        parallel: Parallel | None = None,
        drafter_layers: int = 0,
        max_positions: int = 128,
        quantization: Quantization = Quantization.NONE,
    ) -> None:
        config = load_model_config(folder)
        parallel = parallel or Parallel.single(config.expert_count)
        with WeightReader(folder, dtype=dtype) as weights:
            self.model = build_model(config, weights, max_positions, parallel, drafter_layers, quantization)
        self.exchange = parallel.exchange
        layout = kv_layout(config, parallel.tp, drafter_layers)
        self.cache = KvCache(layout, block_count=block_count, block_size=BLOCK_SIZE, dtype=dtype)
        self.backend = CpuAttention(self.cache)

    def run(self, rows: list[Row], padding_rows: int = 0, padding_token: int = 0) -> list[torch.Tensor]:
        """Run one pass of the target; gives logits `[tokens, vocabulary]` per row.

        Padding rows are of the first row's length, on the null block, and come last. A `padding_token` other than 0 is
        poison: its positions are wrong too.
        """
        return [self.model.logits(hidden) for hidden in self.hidden_states(rows, padding_rows, padding_token)]

    def hidden_states(self, rows: list[Row], padding_rows: int = 0, padding_token: int = 0) -> list[torch.Tensor]:
        """As `run`, for the hidden states."""
        token_ids, positions, starts = self._prepare(rows, padding_rows, padding_token)
        return _by_row(self.model.hidden_states(token_ids, positions, self.backend), starts, len(rows))

    def draft(self, layer: int, rows: list[Row], previous: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run drafting layer `layer` on rows of shifted tokens; gives hidden states per row."""
        drafter = self.model.drafter
        assert drafter is not None
        token_ids, positions, starts = self._prepare(rows, 0, 0)
        hidden = drafter.hidden_states(layer, token_ids, positions, torch.cat(previous), self.backend)
        return _by_row(hidden, starts, len(rows))

    def _prepare(self, rows: list[Row], padding_rows: int, padding_token: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Give the backend a batch; gives token ids, positions and where rows start."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts, kv_lens = [0], []
        table = torch.zeros(len(rows) + padding_rows, TABLE_WIDTH, dtype=torch.int32)
        for index, (tokens, computed, blocks) in enumerate(rows):
            row_positions = range(computed, computed + len(tokens))
            token_ids += tokens
            positions += row_positions
            slots += [blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for position in row_positions]
            starts.append(starts[-1] + len(tokens))
            kv_lens.append(computed + len(tokens))
            table[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        query_len = len(rows[0][0])
        for _ in range(padding_rows):
            token_ids += [padding_token] * query_len
            positions += [padding_token] * query_len
            slots += [-1] * query_len
            starts.append(starts[-1] + query_len)
            kv_lens.append(query_len)
        self.backend.prepare(
            AttentionBatch(
                rows=len(kv_lens),
                tokens=starts[-1],
                uniform_query_len=0,
                query_start_loc=torch.tensor(starts, dtype=torch.int32),
                kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
                block_table=table,
                slots=torch.tensor(slots),
            )
        )
        is_request = torch.tensor([slot >= 0 for slot in slots])
        self.exchange.prepare(PassTokens(len(slots), is_request))
        return torch.tensor(token_ids), torch.tensor(positions), starts


def _by_row(hidden: torch.Tensor, starts: list[int], row_count: int) -> list[torch.Tensor]:
    """Cut a pass's output into its rows; padding is dropped, but must be finite too."""
    assert torch.isfinite(hidden).all()
    return [hidden[starts[index] : starts[index + 1]] for index in range(row_count)]

"""Runs a Paceline model over a paged cache without a scheduler: what the parity tests compare with transformers."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.attention.interface import AttentionBatch
from paceline.attention.kv_cache import KvCache
from paceline.attention.reference import ReferenceAttention
from paceline.models.config import load_model_config
from paceline.models.kv_layout import kv_layout
from paceline.models.registry import build_model
from paceline.parallel.context import Parallel
from paceline.weights.loader import WeightReader

BLOCK_SIZE = 4
TABLE_WIDTH = 32


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
        max_positions: int = TABLE_WIDTH * BLOCK_SIZE,
    ) -> None:
        config = load_model_config(folder)
        parallel = parallel or Parallel.single(config.expert_count)
        with WeightReader(folder, dtype=dtype) as weights:
            self.model = build_model(config, weights, max_positions, parallel, drafter_layers)
        layout = kv_layout(config, parallel.tp, drafter_layers)
        self.cache = KvCache(layout, block_count=block_count, block_size=BLOCK_SIZE, dtype=dtype)
        self.backend = ReferenceAttention(self.cache)

    def run(
        self, rows: list[tuple[list[int], int, list[int]]], padding_rows: int = 0, padding_token: int = 0
    ) -> list[torch.Tensor]:
        """Run one pass. A row is (token ids, tokens computed before, blocks); gives logits `[tokens, vocabulary]` per row.

        Padding rows are of the first row's length, on the null block, and come last. A `padding_token` other than 0 is
        poison: its positions are wrong too.
        """
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
        hidden = self.model.hidden_states(torch.tensor(token_ids), torch.tensor(positions), self.backend)
        logits = self.model.logits(hidden)
        assert torch.isfinite(logits).all()
        return [logits[starts[index] : starts[index + 1]] for index in range(len(rows))]

"""Models shared out among the tp workers of a rank: every worker gets the logits of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.models.config import ConfigError, load_model_config
from paceline.models.kv_layout import kv_layout
from paceline.parallel.context import Shard
from parity.checkpoints import logits_of, make_checkpoint, make_drafting_checkpoint, random_tokens
from parity.families import CASES, DEEPSEEK
from parity.paged import PagedModel
from parity.thread_shards import ThreadParallel, on_shards

# Every family, and what differs in how a tensor is cut: biases, fewer key heads than workers, norms of heads.
SHARED = [
    *((name, 2) for name in ("llama", "llama-mha-biases", "qwen2-tied", "qwen3", "qwen3-moe", "mixtral", "phimoe")),
    *((name, 2) for name in ("deepseek", "deepseek-full-rank-query", "glm", "glm-norms-groups")),
    *((name, 4) for name in ("llama", "phimoe", "deepseek", "glm-norms-groups")),
]
TOLERANCE = 1e-4


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    difference = (got - expected).abs().max().item()
    assert difference < TOLERANCE, f"logits differ by {difference}"


@pytest.mark.parametrize(("case", "count"), SHARED, ids=[f"{case}-tp{count}" for case, count in SHARED])
def test_a_sharded_model_equals_the_whole_one(case: str, count: int, tmp_path: Path) -> None:
    family, fields = CASES[case]
    oracle = make_checkpoint(tmp_path, family, **fields)
    config = load_model_config(tmp_path)
    first, second = random_tokens(21, seed=1), random_tokens(9, seed=2)

    def serve(parallel: ThreadParallel) -> tuple[list[torch.Tensor], int]:
        paged = PagedModel(tmp_path, parallel=parallel)
        passes = [
            paged.run([(first[:16], 0, [3, 9, 4, 8, 7, 6]), (second[:8], 0, [20, 21, 22])]),
            paged.run([(first[16:18], 16, [3, 9, 4, 8, 7, 6]), (second[8:], 8, [20, 21, 22])], padding_rows=2),
            paged.run([(first[18:], 18, [3, 9, 4, 8, 7, 6])]),
        ]
        return [logits for rows in passes for logits in rows], parallel.collectives

    results = on_shards(count, config.expert_count, serve)
    expected_first, expected_second = logits_of(oracle, first), logits_of(oracle, second)
    expected = [expected_first[:16], expected_second[:8], expected_first[16:18], expected_second[8:], expected_first[18:]]
    for logits, collectives in results:
        assert collectives == results[0][1]
        for got, want, agreed in zip(logits, expected, results[0][0], strict=True):
            assert_close(got, want)
            assert torch.equal(got, agreed), "tp workers must sample from the same numbers"


def test_a_sharded_drafter_equals_the_whole_one(tmp_path: Path) -> None:
    make_drafting_checkpoint(tmp_path, "DeepseekV3", 1, **DEEPSEEK)
    tokens, blocks = random_tokens(15, seed=3), [1, 2, 3, 4]

    def draft(paged: PagedModel) -> torch.Tensor:
        hidden = paged.hidden_states([(tokens[:14], 0, blocks)])
        drafter = paged.model.drafter
        assert drafter is not None
        return drafter.logits(1, paged.draft(1, [(tokens[1:], 0, blocks)], hidden)[0])

    whole = draft(PagedModel(tmp_path, drafter_layers=1))
    for logits in on_shards(2, 8, lambda parallel: draft(PagedModel(tmp_path, parallel=parallel, drafter_layers=1))):
        assert_close(logits, whole)


def test_layouts_of_the_shards(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    config = load_model_config(tmp_path)
    assert [kv_layout(config, Shard(0, count)).kv_head_count for count in (1, 2, 4)] == [2, 1, 1]
    with pytest.raises(ConfigError, match="num_attention_heads 4 cannot be shared out among 3 workers"):
        kv_layout(config, Shard(0, 3))
    make_checkpoint(tmp_path, hidden_size=96, num_attention_heads=12, num_key_value_heads=6)
    with pytest.raises(ConfigError, match="num_key_value_heads 6 cannot be shared out among 4 workers"):
        kv_layout(load_model_config(tmp_path), Shard(0, 4))
    make_checkpoint(tmp_path, "DeepseekV3", **DEEPSEEK)
    layout = kv_layout(load_model_config(tmp_path), Shard(1, 2), drafter_layers=1)
    assert (layout.layer_count, layout.kv_head_count, layout.key_size, layout.value_size) == (4, 1, 40, 0)
    assert layout.block_bytes(16, torch.bfloat16) == 4 * 16 * 40 * 2

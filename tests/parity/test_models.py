"""Every model family's logits against transformers, on tiny random checkpoints over a paged cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from paceline.layers import moe
from parity.checkpoints import edit_config, logits_of, make_checkpoint, quantise_to_fp8, random_tokens
from parity.families import CASES, DEEPSEEK, EXPERTS, LLAMA3_ROPE, LONGROPE, PHIMOE
from parity.paged import BLOCK_SIZE, PagedModel

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A transformers model and the folder it was saved to."""
    folder = tmp_path_factory.mktemp(request.param)
    family, fields = CASES[request.param]
    return make_checkpoint(folder, family, **fields), folder


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    difference = (got - expected).abs().max().item()
    assert difference < TOLERANCE, f"logits differ by {difference}"


def test_prefill_of_several_rows(pair) -> None:
    oracle, folder = pair
    paged = PagedModel(folder)
    prompts = [random_tokens(count, seed=count) for count in (1, 7, 50)]
    blocks = [[5], [2, 9], list(range(20, 33))]
    got = paged.run([(prompt, 0, row_blocks) for prompt, row_blocks in zip(prompts, blocks, strict=True)])
    for prompt, logits in zip(prompts, got, strict=True):
        assert_close(logits, logits_of(oracle, prompt))


def test_chunked_prefill_then_decode_beside_another_row(pair) -> None:
    oracle, folder = pair
    paged = PagedModel(folder)
    first, second = random_tokens(45, seed=1), random_tokens(30, seed=2)
    first_blocks = list(range(1, 13))
    second_blocks = [40, 30, 41, 31, 32, 33, 60, 50]
    expected_first, expected_second = logits_of(oracle, first), logits_of(oracle, second)
    # Chunks of uneven sizes; the second row decodes from token 20 on while the first still runs its prompt.
    assert_close(paged.run([(second[:20], 0, second_blocks)])[0], expected_second[:20])
    done = 0
    for step, chunk in enumerate((1, 10, 5, 17, 12)):
        got_first, got_second = paged.run(
            [(first[done : done + chunk], done, first_blocks), ([second[20 + step]], 20 + step, second_blocks)]
        )
        assert_close(got_first, expected_first[done : done + chunk])
        assert_close(got_second, expected_second[20 + step : 21 + step])
        done += chunk


def test_uniform_rows_with_padding_rows(pair) -> None:
    oracle, folder = pair
    paged = PagedModel(folder)
    tokens = [random_tokens(20, seed=3), random_tokens(24, seed=4)]
    blocks = [[3, 4, 5, 6, 7, 8], [20, 10, 21, 11, 22, 12]]
    paged.run([(tokens[0][:16], 0, blocks[0]), (tokens[1][:20], 0, blocks[1])])
    got = paged.run([(tokens[0][16:], 16, blocks[0]), (tokens[1][20:], 20, blocks[1])], padding_rows=3)
    assert_close(got[0], logits_of(oracle, tokens[0])[16:])
    assert_close(got[1], logits_of(oracle, tokens[1])[20:])
    assert not paged.cache.keys[0][:, :4].any(), "the null block was written"


def test_poisoned_padding_and_stale_blocks_leave_real_rows_bit_equal(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    tokens = [random_tokens(20, seed=3), random_tokens(24, seed=4)]
    blocks = [[3, 4, 5, 6, 7, 8], [20, 10, 21, 11, 22, 12]]

    def decode(padding_token: int, stale: float) -> list[torch.Tensor]:
        paged = PagedModel(tmp_path)
        for pool in (*paged.cache.keys, *paged.cache.values):
            # What earlier requests left: everywhere but in the null block, which is never written.
            pool[:, BLOCK_SIZE:] = stale
        paged.run([(tokens[0][:16], 0, blocks[0]), (tokens[1][:20], 0, blocks[1])])
        return paged.run(
            [(tokens[0][16:], 16, blocks[0]), (tokens[1][20:], 20, blocks[1])], padding_rows=3, padding_token=padding_token
        )

    expected = decode(padding_token=0, stale=0.0)
    for padding_token, stale in ((0, float("nan")), (0, 1e30), (96, float("inf"))):
        for got, row in zip(decode(padding_token, stale), expected, strict=True):
            assert torch.equal(got, row)


def test_older_spelling_of_rope_gives_the_same_logits(tmp_path: Path) -> None:
    oracle = make_checkpoint(tmp_path, rope_parameters=LLAMA3_ROPE)
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    scaling = dict(raw.pop("rope_parameters"))
    raw["rope_theta"] = scaling.pop("rope_theta")
    raw["rope_scaling"] = scaling
    path.write_text(json.dumps(raw))
    tokens = random_tokens(60, seed=5)
    assert_close(PagedModel(tmp_path).run([(tokens, 0, list(range(1, 16)))])[0], logits_of(oracle, tokens))


@pytest.mark.parametrize("case", ["llama", "mixtral", "phimoe", "deepseek", "glm"])
def test_bf16_stays_near_fp32(case: str, tmp_path: Path) -> None:
    family, fields = CASES[case]
    oracle = make_checkpoint(tmp_path, family, **fields)
    tokens = random_tokens(40, seed=6)
    logits = PagedModel(tmp_path, torch.bfloat16).run([(tokens, 0, list(range(1, 11)))])[0]
    expected = logits_of(oracle.to(torch.bfloat16), tokens).float()
    exact = logits_of(oracle.to(torch.float32), tokens)
    # As near to the exact result as transformers itself is in this type.
    assert (logits - exact).abs().mean() < 2 * (expected - exact).abs().mean() + 1e-3


@pytest.mark.parametrize("case", ["qwen3-moe", "mixtral", "phimoe", "deepseek", "glm"])
def test_large_experts(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe, "FUSED_ELEMENTS", 0)
    family, fields = CASES[case]
    oracle = make_checkpoint(tmp_path, family, **fields)
    paged = PagedModel(tmp_path)
    tokens, blocks = random_tokens(33, seed=10), list(range(1, 10))
    got = torch.cat([paged.run([(tokens[begin:end], begin, blocks)])[0] for begin, end in ((0, 30), (30, 31), (31, 33))])
    assert_close(got, logits_of(oracle, tokens))


@pytest.mark.parametrize("fused_elements", [0, moe.FUSED_ELEMENTS])
@pytest.mark.parametrize("family", ["Mixtral", "DeepseekV3", "Phimoe"])
def test_padding_visits_no_expert_and_changes_no_bit(
    family: str, fused_elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moe, "FUSED_ELEMENTS", fused_elements)
    fields = {"Mixtral": EXPERTS, "DeepseekV3": DEEPSEEK, "Phimoe": {**PHIMOE, "sliding_window": 8}}[family]
    make_checkpoint(tmp_path, family, **fields)
    tokens = [random_tokens(20, seed=3), random_tokens(24, seed=4)]
    blocks = [[3, 4, 5, 6, 7, 8], [20, 10, 21, 11, 22, 12]]

    def decode(padding_token: int, stale: float) -> list[torch.Tensor]:
        paged = PagedModel(tmp_path)
        for pool in (*paged.cache.keys, *paged.cache.values):
            pool[:, BLOCK_SIZE:] = stale
        paged.run([(tokens[0][:16], 0, blocks[0]), (tokens[1][:20], 0, blocks[1])])
        rows = [(tokens[0][16:], 16, blocks[0]), (tokens[1][20:], 20, blocks[1])]
        return paged.run(rows, padding_rows=3, padding_token=padding_token)

    expected = decode(padding_token=0, stale=0.0)
    for padding_token, stale in ((0, float("nan")), (96, float("inf"))):
        for got, row in zip(decode(padding_token, stale), expected, strict=True):
            assert torch.equal(got, row)


def test_fp8_equals_its_dequantised_twin(tmp_path: Path) -> None:
    # Wide enough for blocks that are whole, cut off, and cut across by a head or an expert.
    fields = {**DEEPSEEK, "hidden_size": 160, "intermediate_size": 200, "moe_intermediate_size": 136, "kv_lora_rank": 144}
    whole, quantised = tmp_path / "whole", tmp_path / "fp8"
    make_checkpoint(whole, "DeepseekV3", **fields)
    shutil.copytree(whole, quantised)
    quantise_to_fp8(quantised, whole)
    edit_config(quantised, quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})
    tokens, blocks = random_tokens(30, seed=8), list(range(1, 9))
    expected = PagedModel(whole).run([(tokens, 0, blocks)])[0]
    assert torch.equal(PagedModel(quantised).run([(tokens, 0, blocks)])[0], expected)
    oracle = type(make_checkpoint(tmp_path / "other", "DeepseekV3", **fields)).from_pretrained(whole, dtype=torch.float32)
    assert_close(expected, logits_of(oracle.eval(), tokens))


def test_longrope_chooses_its_factors_by_the_longest_position(tmp_path: Path) -> None:
    # transformers takes the magnitude of long sequences there, but the short factors everywhere; given the long ones under
    # both names, it computes what the model was trained with.
    factors = LONGROPE["long_factor"]
    oracle = make_checkpoint(tmp_path, "Phimoe", **PHIMOE, rope_parameters={**LONGROPE, "short_factor": factors})
    edit_config(tmp_path, rope_parameters=LONGROPE)
    tokens, blocks = random_tokens(200, seed=9), list(range(1, 51))
    paged = PagedModel(tmp_path, max_positions=256)
    got = torch.cat((paged.run([(tokens[:90], 0, blocks)])[0], paged.run([(tokens[90:], 90, blocks)])[0]))
    assert_close(got, logits_of(oracle, tokens))

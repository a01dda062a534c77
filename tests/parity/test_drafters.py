"""Multi-token prediction layers against transformers' own, on tiny random checkpoints over a paged cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_layers import MtpModel

from paceline.models.config import ConfigError
from paceline.weights.loader import WeightsError
from parity.checkpoints import edit_config, logits_of, make_drafting_checkpoint, random_tokens
from parity.families import DEEPSEEK, GLM, YARN
from parity.paged import PagedModel

CASES = {
    "deepseek": ("DeepseekV3", 1, DEEPSEEK),
    "deepseek-yarn-two-layers": ("DeepseekV3", 2, {**DEEPSEEK, "rope_parameters": YARN}),
    "glm": ("Glm4Moe", 1, GLM),
}
TOLERANCE = 1e-4
LENGTH = 41


@pytest.fixture(scope="module", params=list(CASES))
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A transformers model, its drafting layers, and the folder that both were loaded from."""
    folder = tmp_path_factory.mktemp(request.param)
    family, layers, fields = CASES[request.param]
    oracle = make_drafting_checkpoint(folder, family, layers, **fields)
    return oracle, MtpModel.from_pretrained(oracle).eval(), folder


@torch.no_grad()
def target_hidden(oracle: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """What the first drafting layer is fed: `[1, tokens, hidden]` after the final norm."""
    hidden: torch.Tensor = oracle.model(torch.tensor([tokens])).last_hidden_state
    return hidden


@torch.no_grad()
def draft_hidden(mtp: MtpModel, layer: int, tokens: list[int], previous: torch.Tensor) -> torch.Tensor:
    """A whole sequence through layer `layer`, counted from 1; positions are those that transformers gives its tokens."""
    positions = torch.arange(layer, layer + len(tokens)).unsqueeze(0)
    hidden: torch.Tensor = mtp.forward_layer(layer - 1, previous, positions, None, input_ids=torch.tensor([tokens]))
    return hidden


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    difference = (got - expected).abs().max().item()
    assert difference < TOLERANCE, f"differ by {difference}"


def test_every_layer_over_chunks_beside_another_row(drafting) -> None:
    oracle, mtp, folder = drafting
    layers = mtp.num_mtp_layers
    paged = PagedModel(folder, drafter_layers=layers)
    first, second = random_tokens(LENGTH, seed=1), random_tokens(LENGTH, seed=2)
    first_blocks, second_blocks = list(range(1, 13)), [40, 30, 41, 31, 32, 33, 60, 50, 51, 52, 20]
    expected = {}
    for tokens in (first, second):
        hidden = target_hidden(oracle, tokens[: LENGTH - layers])
        for layer in range(1, layers + 1):
            hidden = draft_hidden(mtp, layer, tokens[layer : LENGTH - layers + layer], hidden)
            expected[tokens[0], layer] = hidden[0]
    assert first[0] != second[0]
    # Position 0 is a position like any other: layer 1 is fed the first hidden state and the second token's embedding.
    done = 0
    for chunk in (1, 11, 4, 20):
        end = min(done + chunk, LENGTH - layers)
        rows = [(tokens[done:end], done, blocks) for tokens, blocks in ((first, first_blocks), (second, second_blocks))]
        hidden = paged.hidden_states(rows)
        for layer in range(1, layers + 1):
            shifted = [
                (tokens[done + layer : end + layer], done, blocks)
                for tokens, blocks in ((first, first_blocks), (second, second_blocks))
            ]
            hidden = paged.draft(layer, shifted, hidden)
            assert_close(hidden[0], expected[first[0], layer][done:end])
            assert_close(hidden[1], expected[second[0], layer][done:end])
        done = end


def test_one_layer_fed_with_its_own_output(drafting) -> None:
    oracle, mtp, folder = drafting
    paged = PagedModel(folder, drafter_layers=1)
    tokens, blocks = random_tokens(12, seed=3), [3, 4, 9, 8, 7]
    hidden = paged.hidden_states([(tokens[:11], 0, blocks)])
    drafted = paged.draft(1, [(tokens[1:], 0, blocks)], hidden)
    expected_hidden = target_hidden(oracle, tokens[:11])
    fed = list(tokens[1:])
    last = drafted[0][-1:]
    for position in range(11, 15):
        expected = draft_hidden(mtp, 1, fed, expected_hidden)
        assert_close(last[0], expected[0, -1])
        logits = paged.model.drafter.logits(1, last)
        assert_close(logits[0], oracle.lm_head(expected[0, -1]).detach())
        token = int(logits[0].argmax())
        fed.append(token)
        expected_hidden = torch.cat((expected_hidden, expected[:, -1:]), dim=1)
        (last,) = paged.draft(1, [([token], position, blocks)], [last])


def test_a_target_without_its_drafter_reads_the_same_checkpoint(drafting) -> None:
    oracle, _, folder = drafting
    paged = PagedModel(folder)
    tokens = random_tokens(20, seed=4)
    assert paged.model.drafter is None
    assert_close(paged.run([(tokens, 0, list(range(1, 6)))])[0], logits_of(oracle, tokens))


def test_drafting_layers_that_are_not_there(tmp_path: Path) -> None:
    make_drafting_checkpoint(tmp_path, "DeepseekV3", 1, **DEEPSEEK)
    with pytest.raises(ConfigError, match="2 drafting layers are wanted, the model has 1"):
        PagedModel(tmp_path, drafter_layers=2)
    edit_config(tmp_path, num_nextn_predict_layers=2)
    with pytest.raises(WeightsError, match=r"no tensor model\.layers\.4\.input_layernorm"):
        PagedModel(tmp_path, drafter_layers=2)


def test_generate_with_drafts_proposes_the_same_tokens(drafting, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, mtp, folder = drafting
    layers = mtp.num_mtp_layers
    proposals: list[tuple[list[int], list[int]]] = []
    forward = MtpModel.forward

    def spy(self: MtpModel, *args: Any, **kwargs: Any) -> Any:
        known = kwargs["full_input_ids"][0].tolist()
        result = forward(self, *args, **kwargs)
        proposals.append((known, result[0][0].tolist()))
        return result

    monkeypatch.setattr(MtpModel, "forward", spy)
    prompt = random_tokens(7, seed=5)
    inputs = {"attention_mask": torch.ones(1, len(prompt)), "do_sample": False, "max_new_tokens": 16, "eos_token_id": None}
    drafted = oracle.generate(torch.tensor([prompt]), use_mtp=True, **inputs)[0].tolist()
    assert drafted == oracle.generate(torch.tensor([prompt]), **inputs)[0].tolist()
    assert len(proposals) > 4
    paged = PagedModel(folder, drafter_layers=layers)
    drafter = paged.model.drafter
    blocks = list(range(1, 10))
    for known, proposed in proposals:
        # The newest token has not been through the target; each layer is fed one token further than the last.
        rows = [(known[:-1], 0, blocks)]
        hidden = paged.hidden_states(rows)
        ahead = known[1:]
        for layer, token in enumerate(proposed, start=1):
            hidden = paged.draft(layer, [(ahead, 0, blocks)], hidden)
            assert int(drafter.logits(layer, hidden[0][-1:]).argmax()) == token
            ahead = [*ahead[1:], token]

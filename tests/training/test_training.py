"""The trainer: its model is the checkpoint's model, it learns, and it goes on where it stopped."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from transformers import DeepseekV3ForCausalLM

from training import corpus
from training.acceptance import _walk
from training.folder import checkpoint, load_checkpoint, write_folder
from training.model import Model
from training.shape import Shape
from training.train_moe import Phase, Trainer, rate_at

TINY = Shape(
    vocab_size=320,
    hidden_size=32,
    intermediate_size=32,
    moe_intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=8,
    v_head_dim=16,
    n_routed_experts=8,
    num_experts_per_tok=2,
)
DOCUMENTS = [f"Question: what is {a} and {b}?\nAnswer: {a} and {b} are {a + b}." for a in range(9) for b in range(9)]


def trainer() -> Trainer:
    return Trainer(Namespace(rate=3e-3), TINY, DOCUMENTS, [Phase(2, 4, 32, 1), Phase(2, 4, 32, 3)])


@pytest.fixture
def random_model() -> Model:
    torch.manual_seed(1)
    network = Model(TINY, torch.float32).eval()
    for gate in network.gates():
        gate.e_score_correction_bias.normal_(0, 0.1)
    return network


def test_loss_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.train_moe._WARMUP_STEPS", 1)
    subject = trainer()
    losses = [subject.advance() for _ in range(4)]
    assert [len(values) for values in losses] == [2, 2, 4, 4]
    for before, after in zip(losses[0], losses[3], strict=False):
        assert after < before - 0.1


def test_a_checkpoint_goes_on_alike(tmp_path: Path) -> None:
    whole, first, second = trainer(), trainer(), trainer()
    expected = [whole.advance() for _ in range(4)]
    assert [first.advance() for _ in range(2)] == expected[:2]
    first.save(tmp_path / "training.pt")
    second.load(tmp_path / "training.pt")
    assert [second.advance() for _ in range(2)] == expected[2:]


def test_the_exported_model_is_the_trained_one(tmp_path: Path, random_model: Model) -> None:
    write_folder(tmp_path, random_model, corpus.train_tokenizer(DOCUMENTS, TINY.vocab_size), torch.float32)
    reference = DeepseekV3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, TINY.vocab_size, (2, 24))
    with torch.no_grad():
        assert torch.allclose(reference(tokens).logits, random_model(tokens, 0)[0], atol=1e-4)


def test_weights_come_back_from_a_checkpoint(random_model: Model) -> None:
    again = Model(TINY, torch.float32)
    load_checkpoint(again, checkpoint(random_model, torch.float32))
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in random_model.state_dict().items())


def test_rate_rises_and_falls_to_nothing() -> None:
    rates = [rate_at(step, 1000, 1.0) for step in range(1001)]
    assert rates[0] == 0.01
    assert rates[99] == 1.0
    assert rates[550] == 0.5
    assert rates[1000] == 0.0


def test_steps_are_walked_as_a_server_takes_them() -> None:
    # Tokens 1, 2 and 4 are guessed by the first pass, 2 by the second as well; after token 4 the text ends.
    hits = [[True, True], [True, False], [False, True], [True], []]
    found = [[0, 0], [0, 0]]
    _walk(hits, 2, found)
    # From 0: both drafts accepted, so the next step starts at 3 and has one draft.
    assert found == [[2, 2], [1, 1]]


def test_every_byte_survives_the_tokenizer() -> None:
    tokenizer = corpus.train_tokenizer(DOCUMENTS, TINY.vocab_size)
    text = "".join(map(chr, range(1, 1024))) + "漢字 😀 \n\n  end"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_problems_lose_their_notes() -> None:
    question, answer = corpus.held_out_problems()[0]
    assert question.startswith("Janet")
    assert "<<" not in answer
    assert answer.endswith("\nThe answer is 18.")

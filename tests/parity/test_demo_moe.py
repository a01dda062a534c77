"""The mixture-of-experts demo as it ships: its size, its files, and that `transformers` and the worker agree on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, DeepseekV3ForCausalLM, PreTrainedTokenizerBase

from parity.paged import TABLE_WIDTH, PagedModel
from training import corpus
from training.acceptance import measure
from training.folder import load_checkpoint
from training.model import Model
from training.shape import Shape

FOLDER = Path(str(files("paceline"))) / "demos" / "moe"
QUESTION = "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def reference() -> Iterator[DeepseekV3ForCausalLM]:
    """`transformers`' model in fp32, told where the draft layer lies: it knows that of the released checkpoint only."""
    layers = json.loads((FOLDER / "config.json").read_text())["num_hidden_layers"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeepseekV3ForCausalLM, "_keys_to_ignore_on_load_unexpected", [rf"model\.layers\.{layers}\..*"])
        yield DeepseekV3ForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


@pytest.fixture(scope="module")
def trained() -> Model:
    """The training module's model with the shipped weights, in fp32."""
    network = Model(Shape(), torch.float32).eval()
    with safe_open(FOLDER / "model.safetensors", framework="pt") as weights:
        load_checkpoint(network, {name: weights.get_tensor(name) for name in weights.keys()})  # noqa: SIM118
    return network


def test_the_folder_is_small_and_whole() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert sum(sizes.values()) < 8 * 1024 * 1024
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(sizes)
    assert {"README.md", "training.log"} <= set(sizes)


def test_greedy_text_is_the_same_with_drafts(reference: DeepseekV3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    inputs = tokenizer(QUESTION, return_tensors="pt")
    arguments = {"do_sample": False, "max_new_tokens": 48, "temperature": None}
    plain = reference.generate(inputs.input_ids, attention_mask=inputs.attention_mask, **arguments)
    drafted = reference.generate(inputs.input_ids, attention_mask=inputs.attention_mask, use_mtp=True, **arguments)
    assert torch.equal(plain, drafted)


def test_logits_are_those_of_the_trained_model(
    reference: DeepseekV3ForCausalLM, trained: Model, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens = tokenizer(QUESTION, return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.allclose(reference(tokens).logits, trained(tokens, 0)[0], atol=1e-4)


@torch.no_grad()
def test_the_worker_gives_the_logits_of_model_and_chained_drafts(trained: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = tokenizer(QUESTION + " Tom has").input_ids
    fed = len(tokens) - 3
    model, *drafts = [logits[0] for logits in trained(torch.tensor([tokens]), 3)]
    paged = PagedModel(FOLDER, drafter_layers=1)
    blocks = list(range(1, TABLE_WIDTH))
    (hidden,) = paged.hidden_states([(tokens[:fed], 0, blocks)])
    assert torch.allclose(paged.model.logits(hidden), model, atol=1e-4)
    # One pass over all tokens, then one token at a time, each fed with the output before it.
    (hidden,) = paged.draft(1, [(tokens[1 : fed + 1], 0, blocks)], [hidden])
    drafter = paged.model.drafter
    assert drafter is not None
    assert torch.allclose(drafter.logits(1, hidden), drafts[0], atol=1e-4)
    for index in (1, 2):
        position = fed - 1 + index
        (hidden,) = paged.draft(1, [(tokens[position + 1 : position + 2], position, blocks)], [hidden[-1:]])
        assert torch.allclose(drafter.logits(1, hidden)[0], drafts[index][-1], atol=1e-4)


@pytest.mark.timeout(600)
def test_drafts_are_accepted_as_the_card_says(trained: Model) -> None:
    from tokenizers import Tokenizer

    result = measure(trained, Tokenizer.from_file(str(FOLDER / "tokenizer.json")), temperature=0.0)
    (first,) = result.by_drafts[1]
    share = first[0] / first[1]
    assert share >= 0.4
    stated = re.search(r"^\| greedy \| ([\d.]+)", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert stated is not None
    # The card has the numbers of bf16 arithmetic.
    assert share == pytest.approx(float(stated[1]), abs=0.03)


def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "".join(map(chr, range(1, 0x500))) + "漢字 😀\r\n\n  $1,234.50 \x7f"
    ids = tokenizer(text).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1 == 1023


def test_the_chat_template_asks_as_training_did(tokenizer: PreTrainedTokenizerBase) -> None:
    asked = [{"role": "user", "content": " 1+1? "}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "2+2?"}]
    text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    begin, end = corpus.BEGIN, corpus.END
    assert text == f"{begin}{corpus.prompt('1+1?')} 2{end}{begin}{corpus.prompt('2+2?')}"

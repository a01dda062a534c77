"""The text the model learns: its sources, its documents, its tokenizer."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

TEXT = Path(__file__).parents[1] / "data" / "text"
SOURCES = ("gsm8k_train.jsonl.gz", "tinyshakespeare.txt.gz", "gsm8k_test.jsonl")
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"

# Characters of a passage of Shakespeare; passages end where a speech does.
_PASSAGE_SIZE = 900
_CALCULATION = re.compile(r"<<[^>]*>>")


def problem(line: str) -> tuple[str, str]:
    """Question and answer of a line of GSM8K: without calculator notes, the result as a sentence."""
    entry = json.loads(line)
    steps, _, result = _CALCULATION.sub("", entry["answer"]).partition("####")
    return entry["question"].strip(), f"{steps.strip()}\nThe answer is {result.strip()}."


def prompt(question: str) -> str:
    """What the model sees of a question, up to where its answer begins."""
    return f"Question: {question}\nAnswer:"


def training_documents() -> list[str]:
    """The documents to learn from: every problem of the training set, then Shakespeare."""
    with gzip.open(TEXT / SOURCES[0], "rt", encoding="utf-8") as file:
        problems = [problem(line) for line in file]
    with gzip.open(TEXT / SOURCES[1], "rt", encoding="utf-8") as file:
        passages = list(_passages(file.read()))
    return [f"{prompt(question)} {answer}" for question, answer in problems] + passages


def held_out_problems() -> list[tuple[str, str]]:
    """Questions and answers of the test set, which training never sees."""
    return [problem(line) for line in (TEXT / SOURCES[2]).read_text(encoding="utf-8").splitlines()]


def _passages(text: str) -> Iterator[str]:
    passage: list[str] = []
    for speech in text.split("\n\n"):
        passage.append(speech.strip())
        if sum(map(len, passage)) >= _PASSAGE_SIZE:
            yield "\n\n".join(passage)
            passage = []
    if passage:
        yield "\n\n".join(passage)


def train_tokenizer(documents: list[str], vocabulary_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of exactly `vocabulary_size` tokens; digits stay single, every byte has a token."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, begin)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    """Each document's tokens, begin and end included."""
    end = tokenizer.token_to_id(END)
    return [[*encoding.ids, end] for encoding in tokenizer.encode_batch(documents)]


class Windows:
    """Endless windows over documents joined in random order, each epoch in another."""

    def __init__(self, documents: list[list[int]], seed: int) -> None:
        self._documents = documents
        self._random = torch.Generator().manual_seed(seed)
        self._stream = torch.empty(0, dtype=torch.long)
        self.epochs = 0

    def take(self, rows: int, length: int, overlap: int) -> Tensor:
        """The next `rows` windows [rows, length + overlap]; a window's last `overlap` tokens begin the next one."""
        needed = rows * length + overlap
        while self._stream.numel() < needed:
            order = torch.randperm(len(self._documents), generator=self._random).tolist()
            epoch = [token for index in order for token in self._documents[index]]
            self._stream = torch.cat((self._stream, torch.tensor(epoch)))
            self.epochs += 1
        taken = self._stream[:needed].unfold(0, length + overlap, length)
        self._stream = self._stream[rows * length :]
        return taken

    def state(self) -> dict[str, Tensor | int]:
        """What a checkpoint needs to go on."""
        return {"random": self._random.get_state(), "stream": self._stream, "epochs": self.epochs}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from `state`."""
        self._random.set_state(state["random"])
        self._stream, self.epochs = state["stream"], int(state["epochs"])

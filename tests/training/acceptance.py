"""How many drafts of the draft layer are accepted on held-out questions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training import corpus
from training.model import Model

# What the model card's numbers are of.
QUESTIONS = 50
NEW_TOKENS = 64
MOST_DRAFTS = 3


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Accepted and drafted tokens by position in the draft, for each number of drafts a step; tokens and steps taken."""

    by_drafts: dict[int, list[tuple[int, int]]]
    texts: list[str]

    def tokens_a_step(self, drafts: int) -> float:
        """Mean tokens of a step: its accepted drafts and the one the model adds."""
        counts = self.by_drafts[drafts]
        return 1 + sum(accepted for accepted, _ in counts) / counts[0][1]


@torch.no_grad()
def measure(network: Model, tokenizer: Tokenizer, temperature: float, count: int = QUESTIONS) -> Acceptance:
    """Continue the first `count` questions by `NEW_TOKENS` tokens and count what speculative steps would have accepted.

    Verification gives the very tokens that plain decoding gives, so it is enough to decode plainly and to compare each
    token with what the draft layer says before it. At a temperature both sides sample with the noise of the token's index.
    """
    questions = corpus.held_out_problems()[:count]
    prompts = [tokenizer.encode(corpus.prompt(question)).ids for question, _ in questions]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max()) + NEW_TOKENS + MOST_DRAFTS
    tokens = torch.zeros(count, width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    rows = torch.arange(count)
    noise = _noise(count, tokenizer.get_vocab_size())
    for index in range(NEW_TOKENS):
        last = lengths + index - 1
        logits = network(tokens[:, : int(last.max()) + 1], 0)[0][rows, last]
        tokens[rows, last + 1] = _choose(logits, noise[:, index], temperature)
    passes = network(tokens, MOST_DRAFTS)
    end = tokenizer.token_to_id(corpus.END)
    counts = {drafts: [[0, 0] for _ in range(drafts)] for drafts in range(1, MOST_DRAFTS + 1)}
    texts = []
    for row, prompt in enumerate(prompts):
        new = tokens[row, len(prompt) : len(prompt) + NEW_TOKENS].tolist()
        new = new[: new.index(end) + 1] if end in new else new
        texts.append(tokenizer.decode(new))
        # hits[i][j]: pass j + 1, fed up to the new token i, guesses the new token i + j + 1.
        hits = [
            [
                _guess(passes, noise, row, len(prompt), i, j, temperature) == new[i + j + 1]
                for j in range(min(MOST_DRAFTS, len(new) - i - 1))
            ]
            for i in range(len(new))
        ]
        for drafts, found in counts.items():
            _walk(hits, drafts, found)
    return Acceptance({drafts: [(accepted, drafted) for accepted, drafted in found] for drafts, found in counts.items()}, texts)


def _guess(passes: list[Tensor], noise: Tensor, row: int, start: int, index: int, draft: int, temperature: float) -> int:
    """The draft `draft` after new token `index`, whose last fed hidden state is that of the token before it."""
    logits = passes[draft + 1][row, start + index - 1]
    return int(_choose(logits[None], noise[row, index + draft + 1][None], temperature))


def _walk(hits: list[list[bool]], drafts: int, found: list[list[int]]) -> None:
    """Take steps of `drafts` drafts through a text, and count drafted and accepted tokens by position."""
    index = 0
    while index < len(hits) - 1:
        accepted = 0
        for position, hit in enumerate(hits[index][:drafts]):
            found[position][1] += 1
            if accepted == position and hit:
                found[position][0] += 1
                accepted += 1
        index += accepted + 1


def _noise(count: int, vocabulary_size: int) -> Tensor:
    """Gumbel noise [questions, new tokens + drafts, vocabulary] of fixed seed."""
    uniform = torch.rand(count, NEW_TOKENS + MOST_DRAFTS, vocabulary_size, generator=torch.Generator().manual_seed(1))
    return -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))


def _choose(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """The best token of each row of `logits` [rows, vocabulary], or one sampled with `noise`."""
    return logits.argmax(-1) if temperature == 0 else (logits / temperature + noise).argmax(-1)

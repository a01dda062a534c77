"""Train the mixture-of-experts demo and write it as a model folder. See README.md beside this file.

PYTHONPATH=tests python -m training.train_moe --output /tmp/moe
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training import corpus, experts, model
from training.acceptance import Acceptance, measure
from training.folder import checkpoint, load_checkpoint, write_folder
from training.optimizer import Optimizer
from training.shape import Shape

_SEED = 20
_WARMUP_STEPS = 100
_DRAFT_WEIGHT = 0.4
_BALANCE_RATE = 0.002


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training: batches of `rows` windows of `length` tokens, and passes of the draft layer learnt."""

    steps: int
    rows: int
    length: int
    depth: int


def cross_entropies(logits: list[Tensor], tokens: Tensor) -> list[Tensor]:
    """The mean cross entropy of each entry of `logits`, of which entry i guesses the token i + 1 further on."""
    length = logits[0].shape[1]
    return [F.cross_entropy(values.flatten(0, 1), tokens[:, i + 1 : i + 1 + length].flatten()) for i, values in enumerate(logits)]


def loss_of(network: model.Model, tokens: Tensor, depth: int) -> tuple[Tensor, list[Tensor]]:
    """The loss to minimise, and the mean cross entropies of the model and of each pass of the draft layer.

    `tokens` is [rows, length + depth + 1].
    """
    logits = network(tokens[:, :-1], depth)
    losses = cross_entropies(logits, tokens)
    drafts = torch.stack(losses[1:]).mean() if depth else losses[0].new_zeros(())
    return losses[0] + _DRAFT_WEIGHT * drafts, losses


def rate_at(step: int, steps: int, peak: float) -> float:
    """The learning rate: a linear rise, then a linear fall to 0."""
    return peak * min((step + 1) / _WARMUP_STEPS, (steps - step) / max(steps - _WARMUP_STEPS, 1), 1.0)


@torch.no_grad()
def held_out(network: model.Model, tokens: Tensor) -> tuple[list[float], list[float]]:
    """Cross entropies on `tokens` [rows, length + 4], and how often each draft pass's best token is the model's."""
    network.eval()
    logits = network(tokens[:, :-1], 3)
    network.train()
    losses, best = cross_entropies(logits, tokens), [values.argmax(-1) for values in logits]
    agreement = [(best[i][:, :-i] == best[0][:, i:]).float().mean().item() for i in (1, 2, 3)]
    return [loss.item() for loss in losses], agreement


class Trainer:
    """Everything that moves while training."""

    def __init__(self, options: argparse.Namespace, shape: Shape, documents: list[str], phases: list[Phase]) -> None:
        torch.manual_seed(_SEED)
        self.options, self.phases = options, phases
        self.tokenizer = corpus.train_tokenizer(documents, shape.vocab_size)
        self.windows = corpus.Windows(corpus.encode(self.tokenizer, documents), _SEED)
        self.network = model.Model(shape, torch.bfloat16)
        self.optimizer = Optimizer(self.network)
        self.step = 0
        self.steps = sum(phase.steps for phase in phases)

    def phase(self) -> Phase:
        """The phase of the next step."""
        first = 0
        for phase in self.phases:
            first += phase.steps
            if self.step < first:
                return phase
        return self.phases[-1]

    def advance(self) -> list[float]:
        """Do one step; the cross entropies."""
        phase = self.phase()
        tokens = self.windows.take(phase.rows, phase.length, phase.depth + 1)
        loss, losses = loss_of(self.network, tokens, phase.depth)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step(rate_at(self.step, self.steps, self.options.rate))
        # Experts are held level until the last tenth, in which the bias is final.
        balance = _BALANCE_RATE if self.step < 0.9 * self.steps else 0.0
        for gate in self.network.gates():
            gate.balance(balance)
        self.step += 1
        return [value.item() for value in losses]

    def save(self, path: Path) -> None:
        """Write a checkpoint to go on from."""
        state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state(), "step": self.step}
        torch.save({**state, "windows": self.windows.state()}, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load(state["optimizer"])
        self.step = state["step"]
        self.windows.load(state["windows"])


def train(trainer: Trainer, output: Path) -> None:
    """Run the steps that are left, with a line, a checkpoint and an export every few minutes."""
    options = trainer.options
    problems = [f"{corpus.prompt(question)} {answer}" for question, answer in corpus.held_out_problems()]
    tokens = corpus.Windows(corpus.encode(trainer.tokenizer, problems[:200]), 0).take(32, 256, 4)
    started = told = time.monotonic()
    first, seen, running = trainer.step, 0, 0.0
    while trainer.step < trainer.steps:
        phase = trainer.phase()
        losses = trainer.advance()
        seen += phase.rows * phase.length
        running = losses[0] if running == 0 else 0.98 * running + 0.02 * losses[0]
        if trainer.step % options.report_steps and trainer.step != trainer.steps:
            continue
        now = time.monotonic()
        on_test, agreement = held_out(trainer.network, tokens)
        left = (now - started) / (trainer.step - first) * (trainer.steps - trainer.step)
        say(
            output,
            f"step {trainer.step}/{trainer.steps} epoch {trainer.windows.epochs} loss {running:.3f} held out "
            f"{'/'.join(f'{loss:.3f}' for loss in on_test)} draft agreement {'/'.join(f'{part:.3f}' for part in agreement)} "
            f"{seen / (now - told):.0f} tokens/s left {left / 60:.1f} min",
        )
        told, seen = now, 0
        trainer.save(output / "training.pt")
        write_folder(output / "model", trainer.network, trainer.tokenizer)


def say(output: Path, line: str) -> None:
    """Print a line and keep it in the training log."""
    print(line, flush=True)
    with (output / "training.log").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def tell_acceptance(output: Path, name: str, result: Acceptance) -> None:
    """Log what `measure` found."""
    for drafts, counts in result.by_drafts.items():
        shares = ", ".join(f"{accepted}/{drafted} = {accepted / drafted:.3f}" for accepted, drafted in counts)
        say(
            output,
            f"acceptance, {name}, {drafts} drafts a step: by position {shares}; tokens a step {result.tokens_a_step(drafts):.2f}",
        )


def _header(trainer: Trainer, documents: list[str], tokenizer: Tokenizer) -> list[str]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    digests = [f"data {name} sha256 {hashlib.sha256((corpus.TEXT / name).read_bytes()).hexdigest()}" for name in corpus.SOURCES]
    tokens = sum(len(encoding.ids) + 1 for encoding in tokenizer.encode_batch(documents))
    environment = f"torch {torch.__version__}; threads {torch.get_num_threads()}; seed {_SEED}"
    return [
        f"command {' '.join(sys.argv[1:])}; commit {commit}; {environment}",
        *digests,
        f"documents {len(documents)}, tokens {tokens}, vocabulary {tokenizer.get_vocab_size()}",
        f"parameters {sum(parameter.numel() for parameter in trainer.network.parameters())}; {trainer.phases}",
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="training.train_moe", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder for the model, its log and the checkpoint")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--steps", type=int, nargs=2, default=[840, 230], help="steps of the two phases")
    parser.add_argument("--report-steps", type=int, default=100, help="steps between lines, checkpoints and exports")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder")
    parser.add_argument("--compile", action="store_true", help="fuse small operations; needs a C++ compiler")
    return parser.parse_args()


def main() -> None:
    """Train, measure, write."""
    options = _options()
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.compile:
        model.rotate = torch.compile(model.rotate)
        experts.gated = torch.compile(experts.gated, dynamic=True)
        model.Norm.forward = torch.compile(model.Norm.forward)  # type: ignore[method-assign]
    first, second = options.steps
    # Short windows first; then longer ones, and further passes of the draft layer.
    phases = [Phase(first, 16, 256, 1), Phase(second, 8, 512, 3)]
    documents = corpus.training_documents()
    trainer = Trainer(options, Shape(), documents, phases)
    if options.resume:
        trainer.load(options.output / "training.pt")
        say(options.output, f"resumed at step {trainer.step}")
    for line in _header(trainer, documents, trainer.tokenizer):
        say(options.output, line)
    train(trainer, options.output)
    # As shipped: in bf16, which is also what the acceptance is measured in.
    load_checkpoint(trainer.network, checkpoint(trainer.network, torch.bfloat16))
    trainer.network.eval()
    for name, temperature in (("greedy", 0.0), ("temperature 0.8", 0.8)):
        tell_acceptance(options.output, name, measure(trainer.network, trainer.tokenizer, temperature))


if __name__ == "__main__":
    main()

"""What `transformers` generates: the oracle of the end-to-end parity tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

DATA = Path(__file__).parents[1] / "data"

# Prompt lengths in tokens: below, at and above block and chunk borders, up to many chunks.
LENGTHS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 100, 127, 128, 200, 255, 300, 512, 700, 900)
NEW_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt, its greedy continuation, the log-softmax of each continued token, and by how much it led the next best.

    All by `transformers`.
    """

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    leads: list[float]


def continuations(folder: Path) -> list[Continuation]:
    """Greedy fp32 continuations of 20 prompts, EOS ignored."""
    text = (DATA / "shakespeare.txt").read_text()
    ids: list[int] = AutoTokenizer.from_pretrained(folder)(text).input_ids
    prompts = []
    begin = 0
    for length in LENGTHS:
        prompts.append(ids[begin : begin + length])
        begin += length
    return continuations_of(folder, prompts, NEW_TOKENS)


def continuations_of(folder: Path, prompts: list[list[int]], new_tokens: int) -> list[Continuation]:
    """Greedy fp32 continuations by `generate`, one prompt at a time, EOS ignored."""
    # Threads that spin at barriers crawl where the machine is busy with other work.
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig()  # without the checkpoint's EOS: every continuation has its full length
    return [_continue(model, prompt, new_tokens) for prompt in prompts]


@torch.no_grad()
def _continue(model: torch.nn.Module, prompt: list[int], new_tokens: int) -> Continuation:
    inputs = torch.tensor([prompt])
    output = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        generation_config=GenerationConfig(
            do_sample=False, max_new_tokens=new_tokens, pad_token_id=0, output_logits=True, return_dict_in_generate=True
        ),
    )
    tokens = output.sequences[0, len(prompt) :].tolist()
    steps = torch.stack(output.logits)[:, 0].double().log_softmax(-1)
    best, second = steps.topk(2).values.unbind(-1)
    logprobs = [float(steps[index, token]) for index, token in enumerate(tokens)]
    return Continuation(prompt, tokens, logprobs, (best - second).tolist())

"""What lm_eval says of SmolLM2 served by Paceline, beside what it says of the same folder in its own `hf` model.

`PYTHONPATH=tests python -m evaluation.scores` with `paceline` and its `evaluation` extra installed. Data is local, all models
run in fp32, so that the same log-likelihoods and the same texts must come, item by item; only exact ties may go either way.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.daemon import Daemon
from support.demo import demo_folder

TASKS = Path(__file__).parent / "tasks"
CHOICE, WRITTEN = "sums_choice", "sums_written"
TOLERANCE = 0.02
"""Of a continuation's log-likelihood: sums of fp32 numbers in another order."""


@dataclass(frozen=True)
class Item:
    """What a model made of one question."""

    responses: tuple[object, ...]
    """Log-likelihoods of the choices, or the text."""
    score: float


def evaluate(model: str, arguments: dict[str, object], task: str, *, chat: bool = False) -> list[Item]:
    """Runs one task; its items in order."""
    import lm_eval
    import torch
    from lm_eval.tasks import TaskManager

    # Threads that spin at barriers crawl where the machine is busy with other work.
    torch.set_num_threads(1)
    result = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[task],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
        bootstrap_iters=0,
        random_seed=1,
        numpy_random_seed=1,
        torch_random_seed=1,
        fewshot_random_seed=1,
    )
    samples = sorted(result["samples"][task], key=lambda sample: sample["doc_id"])
    metric = "acc" if task == CHOICE else "exact_match"
    return [Item(tuple(response[0] for response in sample["resps"]), float(sample[metric])) for sample in samples]


def loglikelihoods(item: Item) -> list[float]:
    return [float(response[0]) if isinstance(response, (tuple, list)) else float(str(response)) for response in item.responses]


def differences(task: str, served: list[Item], own: list[Item]) -> Iterator[str]:
    """What differs, item by item, but for choices that are equally likely."""
    for number, (one, other) in enumerate(zip(served, own, strict=True)):
        if task == CHOICE:
            pairs = list(zip(loglikelihoods(one), loglikelihoods(other), strict=True))
            if any(abs(got - wanted) > TOLERANCE for got, wanted in pairs):
                yield f"{task} {number}: {pairs}"
            best = sorted((wanted for _, wanted in pairs), reverse=True)
            if one.score != other.score and best[0] - best[1] > TOLERANCE:
                yield f"{task} {number}: score {one.score}, not {other.score}"
        elif one != other:
            yield f"{task} {number}: {one}, not {other}"


def served_arguments(daemon: Daemon, folder: Path, path: str) -> dict[str, object]:
    return {
        "model": "served",
        "base_url": f"{daemon.url}{path}",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(folder),
        "num_concurrent": 4,
        "max_retries": 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("serve", nargs="*", default=["-dp", "2"], help="arguments of `paceline serve`, after -- (default: -dp 2)")
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.chdir(TASKS)
    folder = demo_folder()
    own = {"pretrained": str(folder), "dtype": "float32", "device": "cpu"}
    found: list[str] = []
    with tempfile.TemporaryDirectory() as logs:
        arguments = [folder, "--dtype", "float32", "--served-model-name", "served", *options.serve]
        daemon = Daemon(arguments, log_path=Path(logs) / "daemon.log").wait_ready(limit_s=300)
        try:
            completions = served_arguments(daemon, folder, "/v1/completions")
            chats = served_arguments(daemon, folder, "/v1/chat/completions")
            runs = [
                ("local-completions", completions, CHOICE, False),
                ("local-completions", completions, WRITTEN, False),
                ("local-chat-completions", chats, WRITTEN, True),
            ]
            for model, given, task, chat in runs:
                served = evaluate(model, given, task, chat=chat)
                reference = evaluate("hf", own, task, chat=chat)
                found += differences(task, served, reference)
                mean, wanted = (sum(item.score for item in items) / len(items) for items in (served, reference))
                print(f"| {model} | {task} | {len(served)} | {mean:.3f} | {wanted:.3f} |", flush=True)
        finally:
            daemon.stop()
    print("\n".join(found) or "every item is equal")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

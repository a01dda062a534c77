"""GSM8K as lm_eval asks it: the answers are the same for any number of ranks, with and without drafts.

`PYTHONPATH=tests python -m evaluation.gsm8k smollm2` compares what the served SmolLM2 makes of the questions with one rank and two,
without drafts and with three; `moe` does so with the mixture-of-experts demo, as `test_gsm8k.py` does in every test run.
"""

import argparse
import json
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from parity.serving import counter
from support.daemon import Daemon
from support.demo import demo_folder

QUESTIONS = Path(__file__).parents[1] / "data" / "gsm8k.jsonl"
CONCURRENCY = 4
CALL_LIMIT_S = 300
TOLERANCE = 0.01
"""Of a continuation's log-likelihood: sums of fp32 numbers in another order."""
METHODS = {"smollm2": "ngram", "moe": "mtp"}
RANKS, DRAFTS = (1, 2), (0, 3)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Question:
    """One question: what lm_eval sends for it."""

    prompt: list[int]
    continuations: list[list[int]]
    """Tokens of the true answer, and of one that is off by one."""
    answer: str


@dataclass(frozen=True)
class Answers:
    """What a server made of all questions."""

    texts: list[str]
    loglikelihoods: list[list[float]]
    """Of both continuations of each question."""


def questions(folder: Path, count: int, shots: int) -> list[Question]:
    """The first questions, with the last ones and their answers before each of them."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    problems = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]

    def tokens(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def number(problem: dict[str, str]) -> str:
        return problem["answer"].rsplit("#### ", 1)[1].replace(",", "")

    examples = "".join(f"Question: {one['question']}\nAnswer: {one['answer']}\n\n" for one in problems[len(problems) - shots :])
    found = []
    for problem in problems[:count]:
        prompt = tokens(f"{examples}Question: {problem['question']}\nAnswer:")
        right = number(problem)
        wrong = str(int(right) + 1)
        found.append(Question(prompt, [tokens(f" {answer}") for answer in (right, wrong)], right))
    return found


def post(daemon: Daemon, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices that answer a completion."""
    request = urllib.request.Request(
        f"{daemon.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=CALL_LIMIT_S) as response:
        choices: list[dict[str, Any]] = json.loads(response.read())["choices"]
        return sorted(choices, key=lambda choice: choice["index"])


def ask(daemon: Daemon, asked: Iterable[Question], max_tokens: int) -> Answers:
    """All answers, several calls at a time: texts with the fields of `generate_until`, scores with those of `loglikelihood`."""

    def one(question: Question) -> tuple[str, list[float]]:
        until = {"max_tokens": max_tokens, "temperature": 0, "stop": ["Question:", "</s>", "<|im_end|>"], "seed": 1234}
        (written,) = post(daemon, {"prompt": [question.prompt], **until})
        prompts = [question.prompt + continuation for continuation in question.continuations]
        scored = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
        sums = []
        for choice, prompt in zip(post(daemon, {"prompt": prompts, **scored}), prompts, strict=True):
            logprobs = choice["logprobs"]["token_logprobs"]
            assert len(logprobs) == len(prompt) + 1
            sums.append(sum(logprobs[len(question.prompt) : -1]))
        return written["text"], sums

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = list(pool.map(one, asked))
    return Answers([text for text, _ in answers], [sums for _, sums in answers])


def arguments(demo: str, dp: int, k: int) -> list[str]:
    """What follows `paceline serve` for so many ranks and drafts."""
    drafts = json.dumps({"method": METHODS[demo], "num_speculative_tokens": k}) if k else "none"
    return ["--demo", demo, "--dtype", "float32", "-dp", str(dp), "--speculative-config", drafts]


def differences(first: Answers, other: Answers) -> list[str]:
    """What is not the same, question by question."""
    found = []
    for index, (wanted, got) in enumerate(zip(first.texts, other.texts, strict=True)):
        if wanted != got:
            found.append(f"text {index}: {got!r}, not {wanted!r}")
    for index, (wanted_sums, sums) in enumerate(zip(first.loglikelihoods, other.loglikelihoods, strict=True)):
        if any(abs(got - wanted) > TOLERANCE for got, wanted in zip(sums, wanted_sums, strict=True)):
            found.append(f"log-likelihoods {index}: {sums}, not {wanted_sums}")
    return found


def scores(asked: list[Question], answers: Answers) -> tuple[float, float]:
    """Share of texts whose last number is right, and of right answers that are likelier than their neighbour."""
    numbers = [NUMBER.findall(text) for text in answers.texts]
    exact = [bool(found) and found[-1].replace(",", "") == question.answer for found, question in zip(numbers, asked, strict=True)]
    likelier = [right > wrong for right, wrong in answers.loglikelihoods]
    return sum(exact) / len(exact), sum(likelier) / len(likelier)


def main() -> None:
    """Compares all settings and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", choices=sorted(METHODS))
    parser.add_argument("--count", type=int, default=20, help="questions (default: 20)")
    parser.add_argument("--shots", type=int, default=2, help="examples before each (default: 2)")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens of a text (default: 128)")
    options = parser.parse_args()
    asked = questions(demo_folder(options.demo), options.count, options.shots)
    first: Answers | None = None
    found: list[str] = []
    print("| ranks | drafts | exact match | likelier than its neighbour | accepted drafts | seconds |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for dp, k in ((dp, k) for dp in RANKS for k in DRAFTS):
        with tempfile.TemporaryDirectory() as logs:
            daemon = Daemon(arguments(options.demo, dp, k), log_path=Path(logs) / "daemon.log").wait_ready(limit_s=300)
            try:
                began = time.monotonic()
                answers = ask(daemon, asked, options.max_tokens)
                seconds = time.monotonic() - began
                accepted = counter(daemon, "paceline_accepted_tokens_total")
            finally:
                daemon.stop()
        exact, likelier = scores(asked, answers)
        print(f"| {dp} | {k} | {exact:.3f} | {likelier:.3f} | {accepted:.0f} | {seconds:.0f} |", flush=True)
        first = first or answers
        found += [f"{dp} ranks, {k} drafts: {line}" for line in differences(first, answers)]
    print("\n".join(found) or f"all {len(asked)} answers are the same in every row")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

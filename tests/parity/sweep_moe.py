"""Every configuration of the pairwise array on 50 held-out prompts: `python tests/parity/sweep_moe.py [NUMBER ...]`.

Too long for every test run; with numbers, only those and the first, which the others are compared with. Greedy token
ids against `transformers`, seeded text against the first configuration, one line each; where a text differs, by how much
the expected token led at the place where they part.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from parity.moe_configurations import CONFIGURATIONS, Configuration
from parity.moe_serving import NEW_TOKENS, Served, expected, first_difference, serve
from parity.reference import Continuation
from support.daemon import Daemon

PROMPTS = 50


def run(configuration: Configuration, prompts: list[list[int]], log_path: Path) -> Served:
    """Serve one configuration from start to stop."""
    daemon = Daemon(["--demo", "moe", *configuration.arguments()], log_path=log_path)
    try:
        return serve(daemon, configuration, prompts)
    finally:
        daemon.stop()


def describe(served: Served, first: Served, continuations: list[Continuation]) -> tuple[bool, str]:
    """Whether all text is equal, and the numbers in words."""
    differences = [
        (index, first_difference(item, tokens))
        for index, (item, tokens) in enumerate(zip(continuations, served.greedy, strict=True))
        if item.tokens != tokens
    ]
    seeded = sum(a == b for a, b in zip(first.seeded, served.seeded, strict=True))
    leads = [f"{continuations[index].leads[at]:.1e}" for index, at in differences if at is not None]
    counters = served.counters
    drafted, accepted = counters["paceline_draft_tokens_total"], counters["paceline_accepted_tokens_total"]
    words = (
        f"greedy {len(continuations) - len(differences)}/{len(continuations)}, seeded {seeded}/{len(first.seeded)}, "
        f"{counters['paceline_steps_total']} steps, {counters['paceline_refused_plans_total']} refused, "
        f"{counters['paceline_preemptions_total']} preemptions, drafts accepted {accepted}/{drafted}"
    )
    if leads:
        words += f", lead where text parts: {', '.join(leads)}"
    return not differences and seeded == len(first.seeded), words


def main() -> int:
    """Run all configurations; 1 if a text differs or a plan was refused."""
    chosen = {1, *map(int, sys.argv[1:])} if sys.argv[1:] else set()
    continuations = expected(PROMPTS)
    prompts = [item.prompt for item in continuations]
    print(f"{PROMPTS} prompts of {min(map(len, prompts))}-{max(map(len, prompts))} tokens, {NEW_TOKENS} new, fp32", flush=True)
    first: Served | None = None
    failed = False
    with tempfile.TemporaryDirectory() as logs:
        for index, configuration in enumerate(CONFIGURATIONS, 1):
            if chosen and index not in chosen:
                continue
            started = time.monotonic()
            served = run(configuration, prompts, Path(logs) / f"{index}.log")
            first = first or served
            is_equal, words = describe(served, first, continuations)
            failed |= not is_equal or served.counters["paceline_refused_plans_total"] > 0
            seconds = time.monotonic() - started
            print(f"{index:2}/{len(CONFIGURATIONS)} {configuration.name}: {words}, {seconds:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

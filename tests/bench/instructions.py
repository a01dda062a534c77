"""Instructions of one step, part by part, counted by callgrind: what planning costs, and what of it the checks are.

`PYTHONPATH=tests python -m bench.instructions` needs cargo and valgrind. Counts do not depend on how busy the machine is. Every
number is instructions per step over all ranks of the group; on a fleet the workers' parts run side by side.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.report import ROOT, heading, print_table

STEPS = 32
SHARE_MOST = 0.25
"""What the scheduler's checks may cost beside plan and encode."""

SEATS = "paceline_plan::seats::"
FROM_BYTES = "paceline_plan::codec::from_bytes"
NAME = re.compile(r"^(c?)fn=\((\d+)\)(?: (.*))?$")
COST = re.compile(r"^[+\-*\d]\S*(?: (\d+))?$")


@dataclass(frozen=True)
class Load:
    """A steady load of so many decode rows on every rank, and one long prompt besides when it is mixed; with the prefix cache."""

    ranks: int
    rows: int
    k: int
    kind: str = "decode"


SIZES = [(1, 1), (1, 32), (1, 256), (8, 1), (8, 32), (8, 256), (64, 1), (64, 32)]

LOADS = [
    *(Load(ranks, rows, k) for ranks, rows in SIZES for k in (0, 1, 3)),
    *(Load(8, 256, k, "decode-nocache") for k in (0, 1, 3)),
    *(Load(ranks, rows, k, kind) for ranks, rows in [(1, 32), (8, 32)] for k in (0, 3) for kind in ("mixed", "mixed-nocache")),
]


def build() -> Path:
    """Builds the program that runs steps; its path."""
    command = ["cargo", "build", "--release", "--locked", "-p", "paceline-scheduler", "--bench", "instructions"]
    done = subprocess.run([*command, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    artifacts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    paths = [entry["executable"] for entry in artifacts if entry.get("target", {}).get("name") == "instructions"]
    return Path(paths[-1])


def read_profile(text: str) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Inclusive costs of a callgrind profile: of every function, and of its calls of every other."""
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    calls: Counter[tuple[str, str]] = Counter()
    caller = callee = ""
    is_call = False
    for line in text.splitlines():
        if named := NAME.match(line):
            is_callee, number, name = named.groups()
            if name:
                names[number] = name
            if is_callee:
                callee = names[number]
            else:
                caller = names[number]
        elif line.startswith("calls="):
            is_call = True
        elif cost := COST.match(line):
            costs[caller] += int(cost[1] or 0)
            if is_call:
                calls[caller, callee] += int(cost[1] or 0)
            is_call = False
    return costs, calls


def count(program: Path, load: Load) -> dict[str, float]:
    """Instructions per step of every part."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "callgrind.out"
        options = ["--collect-atstart=no", "--toggle-collect=instructions::measured", f"--callgrind-out-file={profile}"]
        arguments = [str(load.ranks), str(load.rows), str(load.k), load.kind, str(STEPS)]
        command = ["valgrind", "-q", "--tool=callgrind", *options, str(program), *arguments]
        subprocess.run(command, check=True, capture_output=True)
        costs, calls = read_profile(profile.read_text())
    parts = {name.removeprefix("instructions::part_"): cost for name, cost in costs.items() if "::part_" in name}
    decode = [cost for (caller, callee), cost in calls.items() if caller.startswith(SEATS) and callee.startswith(FROM_BYTES)]
    assert decode, "the compiler has inlined the worker's decoder: its cost cannot be told from that of the checks"
    # Giving a plan's memory back is a part of making the next one.
    parts["plan"] += parts.pop("recycle")
    parts["begin_beyond_decode"] = parts["begin"] - sum(decode)
    return {name: cost / STEPS for name, cost in parts.items()}


def row(load: Load, parts: dict[str, float]) -> tuple[list[str], float]:
    """The cells of a load, and the share of the scheduler's checks.

    A worker's checks are all that taking a plan costs beyond turning its bytes into values, the deltas' application included.
    """
    in_values = parts["check_group"] + parts["check_rank"]
    scheduler = in_values + parts["check_plan"]
    # A group part is checked by every worker, a rank part by one.
    worker = parts["begin_beyond_decode"] + parts["check_rank"] + load.ranks * parts["check_group"]
    reference = parts["plan"] + parts["encode"]
    names = ["plan", "encode", "decode", "begin", "fill", "worker_commit", "reply_encode", "reply_decode", "commit"]
    numbers = [parts["plan"], parts["encode"], scheduler, worker, *(parts[name] for name in names[2:])]
    share = scheduler / reference
    shares = [share, (scheduler + worker) / reference]
    cells = [f"{load.ranks} x {load.rows}", str(load.k), load.kind, *(f"{number:,.0f}" for number in numbers)]
    return cells + [f"{value:.0%}" for value in shares], share


HEADER = [
    *(
        "ranks x rows",
        "k",
        "rows",
        "plan",
        "encode",
        "checks, scheduler",
        "checks and apply, workers",
        "decode",
        "decode, check, apply",
        "fill",
    ),
    *(
        "worker commit",
        "reply encode",
        "reply decode",
        "commit",
        "scheduler's checks / (plan + encode)",
        "all checks / (plan + encode)",
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="loads counted side by side (default: 2)")
    parser.add_argument("--only", help="loads whose RANKSxROWS matches, such as 8x256")
    options = parser.parse_args()
    program = build()
    loads = [load for load in LOADS if options.only in (None, f"{load.ranks}x{load.rows}")]
    compiler = subprocess.run(["rustc", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    print(heading())
    print(f"Instructions per step, {STEPS} steps after a warm-up, {compiler}, profile `release`.\n")
    with ThreadPoolExecutor(options.jobs) as pool:
        counted = [row(load, parts) for load, parts in zip(loads, pool.map(lambda load: count(program, load), loads), strict=True)]
    print_table(HEADER, [cells for cells, _ in counted])
    worst = max(share for _, share in counted)
    print(f"\nmost that the scheduler's checks cost beside plan + encode: {worst:.1%}, asked for: under {SHARE_MOST:.0%}")


if __name__ == "__main__":
    main()

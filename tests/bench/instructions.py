"""Instructions of one step, part by part, counted by callgrind: what planning costs, and what of it the checks are.

`PYTHONPATH=tests python -m bench.instructions` needs cargo and valgrind. Counts do not depend on how busy the machine is. Every
number is instructions per step over all ranks of the group; on a fleet the workers' parts run side by side. *allocations* are calls
of the allocator per step in plan, encode and commit. `--all` counts every load of the matrix.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from bench.report import ROOT, heading, print_table

STEPS = 32
SHARE_MOST = 0.25
"""What the scheduler's checks may cost beside plan and encode."""

TARGET_RANKS_ROWS = (8, 256)
"""The load that [`SHARE_MOST`] is asked for."""

SEATS = "paceline_plan::seats::"
FROM_BYTES = "paceline_plan::codec::from_bytes"
SCHEDULER_PARTS = {f"instructions::part_{part}" for part in ("plan", "encode", "recycle", "commit")}
ALLOCATING = ("malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc")
CALLERS_MOST = 40
"""Callers of an allocation that are told apart: more than a step's calls are deep."""

NAME = re.compile(r"^(c?)fn=\((\d+)\)(?: (.*))?$")
COST = re.compile(r"^[+\-*\d]\S*(?: (\d+))?$")


@dataclass(frozen=True)
class Load:
    """A steady load of so many decode rows on every rank, and one long prompt besides when it is mixed; with the prefix cache."""

    ranks: int
    rows: int
    k: int
    kind: str = "decode"


KINDS = ["decode", "decode-nocache", "mixed", "mixed-nocache"]

MATRIX = [Load(*load) for load in product((1, 8, 64), (1, 32, 256), (0, 1, 3), KINDS)]
"""Every load that a claim is made about, in the order of the table."""

FEW = [load for load in MATRIX if load.ranks < 64 and load.k != 1 and (load.kind == "decode" or load.rows == 32)]
"""Enough to see what a change does, in minutes."""


def build() -> Path:
    """Builds the program that runs steps; its path."""
    command = ["cargo", "build", "--release", "--locked", "-p", "paceline-scheduler", "--bench", "instructions"]
    done = subprocess.run([*command, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    artifacts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    paths = [entry["executable"] for entry in artifacts if entry.get("target", {}).get("name") == "instructions"]
    return Path(paths[-1])


@dataclass(frozen=True)
class Profile:
    """What callgrind collected."""

    costs: Counter[str]
    """Instructions of every function and all that it called."""
    costs_of_calls: Counter[tuple[str, str]]
    """The same of a caller's calls of a function."""
    calls: Counter[str]
    """How often every function was called."""


def read_profile(text: str) -> Profile:
    """Reads callgrind's own format."""
    names: dict[str, str] = {}
    profile = Profile(Counter(), Counter(), Counter())
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
            profile.calls[callee] += int(line.removeprefix("calls=").split()[0])
            is_call = True
        elif cost := COST.match(line):
            profile.costs[caller] += int(cost[1] or 0)
            if is_call:
                profile.costs_of_calls[caller, callee] += int(cost[1] or 0)
            is_call = False
    return profile


def allocates(name: str) -> bool:
    """Whether this is a call of the allocator in a part that is the scheduler's own; callgrind names callers after a function."""
    function, *callers = name.split("'")
    return function in ALLOCATING and any(caller in SCHEDULER_PARTS for caller in callers)


def collect(program: Path, load: Load) -> Profile:
    """Runs a load."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "callgrind.out"
        options = ["--collect-atstart=no", "--toggle-collect=instructions::measured", f"--callgrind-out-file={profile}"]
        options += [f"--separate-callers{CALLERS_MOST}={function}" for function in ALLOCATING]
        arguments = [str(load.ranks), str(load.rows), str(load.k), load.kind, str(STEPS)]
        command = ["valgrind", "-q", "--tool=callgrind", *options, str(program), *arguments]
        subprocess.run(command, check=True, capture_output=True)
        return read_profile(profile.read_text())


def count(program: Path, load: Load) -> dict[str, float]:
    """Instructions per step of every part, and the scheduler's allocations."""
    profile = collect(program, load)
    parts = {name.removeprefix("instructions::part_"): cost for name, cost in profile.costs.items() if "::part_" in name}
    calls = profile.costs_of_calls.items()
    decode = [cost for (caller, callee), cost in calls if caller.startswith(SEATS) and callee.startswith(FROM_BYTES)]
    assert decode, "the compiler has inlined the worker's decoder: its cost cannot be told from that of the checks"
    # Giving a plan's memory back is a part of making the next one.
    parts["plan"] += parts.pop("recycle")
    parts["begin_beyond_decode"] = parts["begin"] - sum(decode)
    parts["allocations"] = sum(times for name, times in profile.calls.items() if allocates(name))
    return {name: cost / STEPS for name, cost in parts.items()}


@dataclass(frozen=True)
class Shares:
    """What checks cost beside other work."""

    scheduler: float
    """The scheduler's beside plan and encode, which they are a part of."""

    both_ends: float
    """Those of the scheduler and of all workers, beside plan and encode."""

    of_everything: float
    """The same, of all that a step costs both ends outside the model."""


def row(load: Load, parts: dict[str, float]) -> tuple[list[str], Shares]:
    """The cells of a load, and the shares of the checks.

    A worker's checks are all that taking a plan costs beyond turning its bytes into values, the deltas' application included.
    """
    in_values = parts["check_group"] + parts["check_rank"]
    scheduler = in_values + parts["check_plan"]
    # A group part is checked by every worker, a rank part by one.
    worker = parts["begin_beyond_decode"] + parts["check_rank"] + load.ranks * parts["check_group"]
    planned = parts["plan"] + parts["encode"]
    step = planned + parts["commit"]
    others = ["decode", "begin", "fill", "worker_commit", "reply_encode", "reply_decode"]
    # Decoding is a part of beginning, and counted once more apart from it.
    everything = step + sum(parts[name] for name in others[1:])
    checks = scheduler + worker
    shares = Shares(scheduler / planned, checks / planned, checks / everything)
    numbers = [parts["plan"], parts["encode"], parts["commit"], step, step / (load.ranks * load.rows)]
    numbers += [parts["allocations"], scheduler, worker, *(parts[name] for name in others)]
    cells = [f"{load.ranks} x {load.rows}", str(load.k), load.kind, *(f"{number:,.0f}" for number in numbers)]
    return cells + [f"{share:.0%}" for share in (shares.scheduler, shares.both_ends, shares.of_everything)], shares


HEADER = [
    *("ranks x rows", "k", "rows", "plan", "encode", "commit", "sum", "sum per row", "allocations"),
    *("checks, scheduler", "checks and apply, workers"),
    *("decode", "decode, check, apply", "fill", "worker commit", "reply encode", "reply decode"),
    *("scheduler's checks / (plan + encode)", "all checks / (plan + encode)", "all checks / everything"),
]


def print_shares(loads: Sequence[Load], shares: Sequence[Shares]) -> None:
    """What checks cost at most, and whether that is what was asked for."""
    asked = [share.scheduler for load, share in zip(loads, shares, strict=True) if (load.ranks, load.rows) == TARGET_RANKS_ROWS]
    if asked:
        ranks, rows = TARGET_RANKS_ROWS
        verdict = "met" if max(asked) < SHARE_MOST else "not met"
        print(f"\nthe scheduler's checks beside plan + encode at {ranks} x {rows}: at most {max(asked):.1%}", end="")
        print(f", asked for: under {SHARE_MOST:.0%}: {verdict}")
    print(f"\nover all loads: {max(share.scheduler for share in shares):.1%};", end=" ")
    print(f"checks of both ends on all ranks: {max(share.both_ends for share in shares):.1%} of plan + encode,", end=" ")
    print(f"{max(share.of_everything for share in shares):.1%} of everything")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="loads counted side by side (default: 2)")
    parser.add_argument("--all", action="store_true", help="every load of the matrix, not a few of them")
    parser.add_argument("--only", help="loads of the matrix whose RANKSxROWS matches, such as 8x256")
    options = parser.parse_args()
    program = build()
    loads = [load for load in MATRIX if options.only in (None, f"{load.ranks}x{load.rows}")]
    if not loads:
        parser.error(f"--only {options.only}: no load of the matrix has these RANKSxROWS")
    if options.only is None and not options.all:
        loads = FEW
    compiler = subprocess.run(["rustc", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    print(heading())
    print(f"Instructions per step, {STEPS} steps after a warm-up, {compiler}, profile `release`.\n")
    shares: list[Shares] = []

    def rows() -> Iterator[list[str]]:
        for load, parts in zip(loads, pool.map(lambda load: count(program, load), loads), strict=True):
            cells, share = row(load, parts)
            shares.append(share)
            yield cells

    with ThreadPoolExecutor(options.jobs) as pool:
        print_table(HEADER, rows())
    print_shares(loads, shares)


if __name__ == "__main__":
    main()

"""How the benches say what they measured, where, and with what."""

import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def commit() -> str:
    """The commit that is checked out, and whether sources differ from it."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def heading() -> str:
    """Command, commit, machine and date, as a paragraph of markdown."""
    command = shlex.join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores of {_processor()}, {memory_gib:.0f} GiB"
    load = f"load average at the start {os.getloadavg()[0]:.1f}"
    return f"`PYTHONPATH=tests {command}`, commit {commit()}, {machine}, {load}, Python {platform.python_version()}, {today}.\n"


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A markdown table, each row as soon as it is known."""
    print("| " + " | ".join(header) + " |")
    print("|" + " ---: |" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent do not pass; the nearest one, not interpolated."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

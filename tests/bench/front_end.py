"""What the HTTP front end costs: requests per second and their times, with scripted workers behind it and a client in Rust.

`PYTHONPATH=tests python -m bench.front_end`. A model takes no time here, so that all of a request's time is the daemon's, the
wire's and the client's, which share the cores of this machine.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.report import heading, print_table
from support.daemon import Daemon
from support.processes import ROOT, run_limited

BUILD = ["cargo", "build", "--release", "--locked", "-p", "paceline-daemon", "-p", "paceline-testing", "--bins"]
PROGRAMS = ROOT / "target/release"
CONTEXT = 16_384
LIMIT_S = 600

LOADS: dict[str, list[str]] = {
    "16 ids in, 1 token out": ["--requests", "40000"],
    "16 ids in, 1 out, 2,000 a second": ["--requests", "20000", "--rate", "2000"],
    "20 words in, 1 token out": ["--requests", "20000", "--prompt-words", "20"],
    "16 ids in, 16 out, streamed": ["--requests", "10000", "--max-tokens", "16", "--stream"],
    "8,000 ids in, 1 token out": ["--requests", "2000", "--prompt-tokens", "8000"],
    "8,000 ids in, 1 out, 100 a second": ["--requests", "1000", "--prompt-tokens", "8000", "--rate", "100"],
    "8,000 tokens of text in, 1 out": ["--requests", "500", "--prompt-words", "3765"],
    "8,000 tokens of text in, 1 out, 20 a second": ["--requests", "200", "--prompt-words", "3765", "--rate", "20"],
}
"""What is sent, at most so many requests at once as `--concurrency` says."""


def make_model(folder: Path) -> Path:
    """A tokenizer and a configuration; nothing reads weights."""
    shutil.copytree(ROOT / "crates/text/tests/data/bytelevel", folder)
    config = json.loads((folder / "config.json").read_text())
    shape = {"max_position_embeddings": CONTEXT, "num_attention_heads": 12, "num_key_value_heads": 4}
    (folder / "config.json").write_text(json.dumps({**config, **shape}))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("model_max_length", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def processor_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure(options: argparse.Namespace, folder: Path) -> Iterator[list[object]]:
    model = make_model(folder / "model")
    worker = f"{PROGRAMS / 'paceline-scripted-worker'} --vocab-size 900 --num-blocks 200000"
    arguments = [model, "--skip-prepare", "-dp", str(options.dp), "--worker-command", worker, "--no-enable-prefix-caching"]
    daemon = Daemon(arguments, log_path=folder / "daemon.log", command=[PROGRAMS / "paceline"])
    try:
        daemon.wait_ready()
        load = [PROGRAMS / "paceline-load", "--address", daemon.address("http"), "--concurrency", str(options.concurrency)]
        run_limited([*load, "--requests", "2000"], limit_s=LIMIT_S).check()
        for name, arguments in LOADS.items():
            before_s = processor_s(daemon.process.pid)
            done = run_limited([*load, *arguments], limit_s=LIMIT_S)
            done.check()
            outcome = json.loads(done.output.splitlines()[-1])
            count = outcome["ends"].pop("200")
            if outcome["ends"]:
                raise RuntimeError(f"{name}: {outcome['ends']}")
            daemon_us = (processor_s(daemon.process.pid) - before_s) / count * 1e6
            times = [f"{outcome[f'{part}_us'] / 1e3:.1f}" for part in ("p50", "p90", "p99", "max")]
            yield [name, options.concurrency, count, f"{outcome['answers_per_s']:.0f}", *times, f"{daemon_us:.0f}"]
    finally:
        daemon.stop()


HEADER = ["load", "at once", "requests", "requests/s", "p50 ms", "p90 ms", "p99 ms", "most ms", "daemon's processor us a request"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dp", type=int, default=2, help="scripted workers (default: 2)")
    parser.add_argument("--concurrency", type=int, default=64, help="requests at once at most (default: 64)")
    options = parser.parse_args()
    subprocess.run(BUILD, cwd=ROOT, check=True)
    print(heading())
    with tempfile.TemporaryDirectory() as folder:
        print_table(HEADER, measure(options, Path(folder)))


if __name__ == "__main__":
    main()

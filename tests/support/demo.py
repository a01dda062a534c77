"""The demo model's folder, prepared once in the cache that `paceline serve` uses."""

import json
import subprocess
import sys
from pathlib import Path


def demo_folder(*, limit_s: float = 240) -> Path:
    """The folder of SmolLM2-135M-Instruct; the first call on a machine fetches and converts it."""
    command = [sys.executable, "-m", "paceline.weights.prepare", "--demo", "smollm2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=limit_s, text=True)
    return Path(json.loads(done.stdout.splitlines()[-1])["path"])

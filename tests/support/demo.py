"""The folders of the built-in demo models, as `paceline serve` finds them."""

import json
import subprocess
import sys
from pathlib import Path


def demo_folder(name: str = "smollm2", *, limit_s: float = 240) -> Path:
    """The folder of a built-in demo: `smollm2` is fetched and converted by the first call on a machine, `moe` is shipped."""
    command = [sys.executable, "-m", "paceline.weights.prepare", "--demo", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=limit_s, text=True)
    return Path(json.loads(done.stdout.splitlines()[-1])["path"])

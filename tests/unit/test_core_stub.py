"""The stub of the extension is written by hand; this holds it to the compiled module."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_stub_says_what_the_extension_has() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "paceline._core"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stdout + result.stderr

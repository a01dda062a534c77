"""What a pass frees is there for the next one."""

from __future__ import annotations

import subprocess
import sys

# Four blocks that the C library would map and unmap each time.
SCRIPT = """
import resource
import numpy as np
from paceline.worker.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [np.ones(6 << 20, np.uint8) for _ in range(4)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

kept = keep_freed_memory()
faults()
print(int(kept), faults())
"""


def test_freed_memory_is_not_faulted_in_again() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, check=True, timeout=60, text=True)
    kept, faults = map(int, done.stdout.split())
    assert not kept or faults < 100

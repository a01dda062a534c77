"""How many CPU threads a rank computes with, and on which cores.

Ranks of one machine get disjoint cores: two ranks on one core are slower than one rank alone, and torch's default is
all cores for each.
"""

from __future__ import annotations

import os


def thread_count(configured: int, dp_size: int) -> int:
    """Threads of one rank: as configured, else an equal share of the cores this process may use, at least 1."""
    return configured or max(1, len(os.sched_getaffinity(0)) // max(1, dp_size))


def prepare_environment(threads: int) -> None:
    """Tell the maths libraries before torch is imported: they read the environment once."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    # Compute threads sleep while they wait for each other. Spinning, the default, gains microseconds on an idle machine,
    # but a step of two threads took 25 times longer as soon as a third runnable thread shared their cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pin_this_thread(dp_rank: int, dp_size: int, threads: int) -> None:
    """Keep the calling thread, and the compute threads it will start, on this rank's cores.

    Does nothing when the ranks together want more cores than there are.
    """
    cores = sorted(os.sched_getaffinity(0))
    if threads * dp_size > len(cores):
        return
    # 0 names the calling thread, not the process: receiving and heartbeats stay free to run anywhere.
    os.sched_setaffinity(0, cores[dp_rank * threads : (dp_rank + 1) * threads])

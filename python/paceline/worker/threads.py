"""How many CPU threads a worker computes with, on which cores, and in what memory.

Workers of one machine get disjoint cores: two on one core are slower than one alone, and torch's default is all cores
for each.
"""

from __future__ import annotations

import os


def thread_count(configured: int, workers: int) -> int:
    """Threads of one worker of `workers`: as configured, else an equal share of this process's cores, at least 1."""
    return configured or max(1, len(os.sched_getaffinity(0)) // max(1, workers))


def prepare_environment(threads: int) -> None:
    """Tell the maths libraries before torch is imported: they read the environment once."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    # Compute threads sleep while they wait for each other. Spinning, the default, gains microseconds on an idle machine,
    # but a step of two threads took 25 times longer as soon as a third runnable thread shared their cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Large tensors lie in huge pages. What oneDNN lays out is glibc's memory: the daemon asks for that as it starts us.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def pin_threads(index: int, workers: int, threads: int, wire_thread_id: int | None) -> None:
    """Keep the calling thread, the compute threads it will start and the streams' on the cores of worker `index` of `workers`.

    The thread of the streams has something to do when the calling thread waits for a step or has answered one. On the
    same core a step is handed over without waking another core, and the model of no other worker is interrupted.
    Does nothing when the workers together want more cores than there are.
    """
    cores = sorted(os.sched_getaffinity(0))
    if threads * workers > len(cores):
        return
    own = cores[index * threads : (index + 1) * threads]
    # 0 names the calling thread, not the process: what receives on Control stays free to run anywhere.
    for thread_id in (0, wire_thread_id):
        if thread_id is not None:
            os.sched_setaffinity(thread_id, own)

"""Which cores a rank computes on: an equal share each, never the same ones twice."""

from __future__ import annotations

import os
import threading

import pytest

from paceline.worker import threads


class StreamThread:
    """A thread that does nothing, as a context manager: its number."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._end.wait)

    def __enter__(self) -> int:
        self._thread.start()
        assert self._thread.native_id is not None
        return self._thread.native_id

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def cores_of_rank(dp_rank: int, dp_size: int, thread_count: int) -> set[int]:
    """Pin two threads of its own, so that the test's stays free, and see where they may run."""
    found: set[int] = set()

    def pinned() -> None:
        with StreamThread() as streams:
            threads.pin_threads(dp_rank, dp_size, thread_count, streams)
            found.update(os.sched_getaffinity(0))
            assert os.sched_getaffinity(streams) == found

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    return found


def test_threads_are_an_equal_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert [threads.thread_count(0, dp_size) for dp_size in (1, 2, 3, 8, 16)] == [8, 4, 2, 1, 1]
    assert threads.thread_count(5, 2) == 5


def test_ranks_are_pinned_to_cores_of_their_own() -> None:
    available = os.sched_getaffinity(0)
    dp_size = len(available)
    pinned = [cores_of_rank(dp_rank, dp_size, 1) for dp_rank in range(dp_size)]
    assert set().union(*pinned) == available
    assert all(len(cores) == 1 for cores in pinned)
    assert os.sched_getaffinity(0) == available


def test_more_threads_than_cores_are_not_pinned() -> None:
    available = os.sched_getaffinity(0)
    assert cores_of_rank(1, 2, len(available)) == available

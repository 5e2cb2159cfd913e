"""Jobs that threads share with their caller: each is done once, also where threads are refused."""

# pyright: basic
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from irc.runtime import shared_jobs
from irc.runtime.shared_jobs import share


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_job_is_done_once(threads: int) -> None:
    done: list[int] = []
    share([lambda i=i: done.append(i) for i in range(20)], threads)
    assert sorted(done) == list(range(20))


def test_an_interrupted_caller_waits_for_what_has_begun() -> None:
    begun, done = threading.Event(), list[int]()

    def interrupted() -> None:
        begun.wait(30)
        raise KeyboardInterrupt

    def slow() -> None:
        begun.set()
        time.sleep(0.05)
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        share([interrupted, slow, *[lambda: done.append(2)] * 3], 2)
    seen = list(done)
    assert seen[:1] == [1]
    time.sleep(0.05)
    assert done == seen  # what was taken back is not begun any more


def test_an_error_on_a_thread_is_the_callers() -> None:
    begun = threading.Event()

    def failing() -> None:
        begun.set()
        raise MemoryError

    def waiting() -> None:
        begun.wait(30)

    with pytest.raises(MemoryError):
        share([waiting, failing], 2)


def test_a_caller_does_all_at_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    over = ThreadPoolExecutor(1)
    over.shutdown()
    monkeypatch.setattr(shared_jobs, "_threads", lambda *_: over)
    done: list[int] = []
    share([lambda i=i: done.append(i) for i in range(4)], 3)
    assert sorted(done) == [0, 1, 2, 3]


def test_a_job_whose_thread_could_not_start_is_not_done_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue: list[Callable[[], None]] = []

    class Full:
        """An executor that has put a job into its queue when the system refuses the thread."""

        def submit(self, job: Callable[[], None]) -> None:
            queue.append(job)
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(shared_jobs, "_threads", lambda *_: Full())
    done: list[int] = []
    share([lambda i=i: done.append(i) for i in range(4)], 3)
    for job in queue:
        job()
    assert sorted(done) == [0, 1, 2, 3]

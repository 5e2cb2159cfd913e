"""Threads of programs: shares are done once each, whoever does them, and forks begin anew."""

import ctypes
import os
import threading
import time
from pathlib import Path

import pytest

from irc.backends.cpu.features import AVX2
from irc.backends.cpu.native import shared_codes
from irc.errors import IrcError
from irc.plan.native import HEADER, Table
from irc.runtime.native.pool import LINE, MOST, UNTIL, WORKER, Pool
from irc.runtime.native.segment import DRIVER, Segment

COUNT = """; irc-kernel {"name": "count", "num_args": 1, "scratch_bytes": 64, "parallel": true, "template": "rows"}
define void @"count"(ptr %args, i64 %thread, i64 %threads, ptr %scratch) {
  %cells = load ptr, ptr %args
  %at = getelementptr i64, ptr %cells, i64 %thread
  %old = load i64, ptr %at
  %new = add i64 %old, %threads
  store i64 %new, ptr %at
  store i64 %new, ptr %scratch
  ret void
}
"""  # noqa: E501 - the first line of a kernel is its description

MEET = """; irc-kernel {"name": "meet", "num_args": 1, "scratch_bytes": 0, "parallel": true, "template": "rows"}
define void @"meet"(ptr %args, i64 %thread, i64 %threads, ptr %scratch) {
entry:
  %cells = load ptr, ptr %args
  %there = getelementptr i64, ptr %cells, i64 1
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %wait, label %come
come:
  store atomic i64 1, ptr %there release, align 8
  ret void
wait:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %seen = load atomic i64, ptr %there acquire, align 8
  %met = icmp ne i64 %seen, 0
  br i1 %met, label %together, label %next
next:
  %i1 = add i64 %i, 1
  %patient = icmp slt i64 %i1, 20000000000
  br i1 %patient, label %wait, label %alone
together:
  store i64 1, ptr %cells
  ret void
alone:
  ret void
}
"""  # noqa: E501


# Part 0 is not done before all others are: they must be taken over from whoever does it.
HELD = """; irc-kernel {"name": "held", "num_args": 1, "scratch_bytes": 0, "parallel": true, "template": "rows"}
define void @"held"(ptr %args, i64 %part, i64 %parts, ptr %scratch) {
entry:
  %cells = load ptr, ptr %args
  %there = getelementptr i64, ptr %cells, i64 1
  %others = sub i64 %parts, 1
  %first = icmp eq i64 %part, 0
  br i1 %first, label %wait, label %come
come:
  %before = atomicrmw add ptr %there, i64 1 release
  ret void
wait:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %seen = load atomic i64, ptr %there acquire, align 8
  %all = icmp eq i64 %seen, %others
  br i1 %all, label %together, label %next
next:
  %i1 = add i64 %i, 1
  %patient = icmp slt i64 %i1, 20000000000
  br i1 %patient, label %wait, label %alone
together:
  store i64 1, ptr %cells
  ret void
alone:
  ret void
}
"""  # noqa: E501

# The caller's share is nothing; that of the other thread takes four million cycles.
LATE = """; irc-kernel {"name": "late", "num_args": 1, "scratch_bytes": 0, "parallel": true, "template": "rows"}
declare i64 @llvm.readcyclecounter()
define void @"late"(ptr %args, i64 %thread, i64 %threads, ptr %scratch) {
entry:
  %began = call i64 @llvm.readcyclecounter()
  %until = add i64 %began, 4000000
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %end, label %wait
wait:
  %now = call i64 @llvm.readcyclecounter()
  %more = icmp slt i64 %now, %until
  br i1 %more, label %wait, label %end
end:
  ret void
}
"""  # noqa: E501

PIECES = 16
ASKED = (1 << 32) - 1
"""The number of requests in the first word of a thread's box; behind it is whether it sleeps."""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("code") / "count.so"
    path.write_bytes(shared_codes([([COUNT, MEET, HELD, LATE], AVX2)])[0])
    return ctypes.CDLL(str(path))


def segment(
    code: ctypes.CDLL,
    pool: Pool,
    threads: int,
    launches: int = 1,
    kernel: int = 0,
    pieces: int = 1,
) -> Segment:
    kernels = [each or 0 for each in (ctypes.c_void_p * 4).in_dll(code, "irc_kernels")]
    words = (kernel, 1, pieces, 0, 0, 0, 0, launches * (HEADER + 2), 1, 0) * launches
    table = Table(words, launches, 4096 + 128, parallel=True)
    return Segment(table, kernels, DRIVER(("irc_driver", code)), pool, threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("started", [False, True])
def test_each_share_is_done_once(code: ctypes.CDLL, threads: int, started: bool) -> None:
    pool = Pool()
    if started:
        pool.want(threads, WORKER(("irc_worker", code)))
    cells = (ctypes.c_int64 * threads)()
    run = segment(code, pool, threads, launches=5)
    for _ in range(400):
        run.run_pointers([0, ctypes.addressof(cells)])
    assert list(cells) == [2000 * threads] * threads


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("started", [False, True])
def test_each_part_is_done_once(code: ctypes.CDLL, threads: int, started: bool) -> None:
    pool = Pool()
    if started:
        pool.want(threads, WORKER(("irc_worker", code)))
    # One thread alone does all at once.
    shares = 1 if threads == 1 else threads * PIECES
    cells = (ctypes.c_int64 * (threads * PIECES))()
    run = segment(code, pool, threads, launches=5, pieces=PIECES)
    for _ in range(100):
        run.run_pointers([0, ctypes.addressof(cells)])
    assert list(cells) == [500 * shares] * shares + [0] * (len(cells) - shares)


def test_parts_of_a_thread_that_is_held_up_are_taken_over(code: ctypes.CDLL) -> None:
    pool = Pool()
    pool.want(3, WORKER(("irc_worker", code)))
    run = segment(code, pool, 3, kernel=2, pieces=PIECES)
    for _ in range(20):
        cells = (ctypes.c_int64 * 2)()
        run.run_pointers([0, ctypes.addressof(cells)])
        assert list(cells) == [1, 3 * PIECES - 1]


def test_callers_share_one_pool(code: ctypes.CDLL) -> None:
    pool = Pool()
    pool.want(3, WORKER(("irc_worker", code)))
    run = segment(code, pool, 3, launches=7)
    counted = [(ctypes.c_int64 * 3)() for _ in range(8)]

    def call(cells: ctypes.Array[ctypes.c_int64]) -> None:
        for _ in range(300):
            run.run_pointers([0, ctypes.addressof(cells)])

    callers = [threading.Thread(target=call, args=(cells,)) for cells in counted]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [list(cells) for cells in counted] == [[6300] * 3] * 8


def test_threads_sleep_and_wake(code: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without patience they are asleep nearly always: every opening has to wake one.
    monkeypatch.setattr("irc.runtime.native.pool.SPINS", 0)
    pool = Pool()
    pool.want(2, WORKER(("irc_worker", code)))
    cells = (ctypes.c_int64 * 2)()
    run = segment(code, pool, 2, launches=3)
    for _ in range(500):
        run.run_pointers([0, ctypes.addressof(cells)])
    assert list(cells) == [3000] * 2


def test_a_sleeping_thread_is_woken_for_its_share(
    code: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("irc.runtime.native.pool.SPINS", 0)
    pool = Pool()
    pool.want(2, WORKER(("irc_worker", code)))
    run = segment(code, pool, 2, kernel=1, pieces=PIECES)
    for _ in range(20):
        cells = (ctypes.c_int64 * 2)()
        time.sleep(0.002)
        # The caller's share ends well when the other one is done beside it.
        run.run_pointers([0, ctypes.addressof(cells)])
        assert list(cells) == [1, 1]


def test_after_a_long_wait_small_calls_are_left_whole(code: ctypes.CDLL) -> None:
    """What a thread was waited for before is likely again: for a while, then it is asked anew."""
    pool = Pool()
    pool.want(2, WORKER(("irc_worker", code)))
    until, requests = (ctypes.c_int64.from_address(pool.address + at) for at in (UNTIL, LINE))
    cells = (ctypes.c_int64 * 2)()
    small, late = segment(code, pool, 2), segment(code, pool, 2, kernel=3)
    while not until.value:  # the other thread may come too late to be waited for
        late.run_pointers([0, ctypes.addressof(cells)])
    before = requests.value & ASKED
    small.run_pointers([0, ctypes.addressof(cells)])
    assert (list(cells), requests.value & ASKED) == ([2, 2], before)
    time.sleep(0.2)
    small.run_pointers([0, ctypes.addressof(cells)])
    assert (list(cells), requests.value & ASKED) == ([4, 4], before + 1)


def test_as_many_threads_as_there_is_room_for(code: ctypes.CDLL) -> None:
    worker = WORKER(("irc_worker", code))
    for count in (0, MOST + 1):
        with pytest.raises(IrcError, match="option-value"):
            Pool().want(count, worker)


def test_a_caller_does_the_shares_of_threads_that_the_system_refuses(
    code: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = Pool()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.warns(RuntimeWarning, match="1 of 3 threads"):
            pool.want(3, WORKER(("irc_worker", code)))
    assert pool.num_threads == pool.wanted == 1
    cells = (ctypes.c_int64 * 3)()
    segment(code, pool, 3, launches=2).run_pointers([0, ctypes.addressof(cells)])
    assert list(cells) == [6] * 3


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(code: ctypes.CDLL, tmp_path: Path) -> None:
    pool = Pool()
    pool.want(2, WORKER(("irc_worker", code)))
    run = segment(code, pool, 2, launches=3)
    cells = (ctypes.c_int64 * 2)()
    run.run_pointers([0, ctypes.addressof(cells)])
    child = os.fork()
    if child == 0:
        pool.after_fork()
        pool.start()
        started = pool.num_threads
        for _ in range(99):
            run.run_pointers([0, ctypes.addressof(cells)])
        (tmp_path / "found").write_text(f"{started} {list(cells)}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "found").read_text() == "2 [600, 600]"

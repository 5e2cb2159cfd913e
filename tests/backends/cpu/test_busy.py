"""Kernels on several threads while other programs have the cores."""

# pyright: basic
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import irc
from irc.backends.cpu import KernelCall
from irc.backends.cpu.jit import compile_module
from irc.backends.cpu.segment import Segment, load_segment
from irc.backends.cpu.team import FEW, LONGEST
from irc.runtime.native.pool import BESIDE, LAST, LINE, PERIOD, UNTIL
from tests.native.test_threads import COUNT, HELD, LATE, PIECES

CLOCK = """declare i64 @llvm.readcyclecounter()
define i64 @irc_clock() {
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}
"""


@pytest.fixture(scope="module")
def clock() -> Callable[[], int]:
    """The cycle that it is."""
    return ctypes.CFUNCTYPE(ctypes.c_int64)(compile_module(CLOCK, "irc_clock"))


@pytest.fixture
def until() -> Iterator[ctypes.c_int64]:
    """The cycle until which the machine is taken for busy; as it was afterwards."""
    words = [ctypes.c_int64.from_address(BESIDE.address + place) for place in (UNTIL, PERIOD)]
    before = [word.value for word in words]
    yield words[0]
    for word, value in zip(words, before, strict=True):
        word.value = value


def requests() -> int:
    """Return how often the first thread beside OpenMP's was asked for a share."""
    return ctypes.c_int32.from_address(BESIDE.address + LINE).value


def counting(threads: int) -> Segment:
    return load_segment([COUNT], [KernelCall(0, ((0, 0),))], threads)


def test_a_busy_machine_changes_no_number(until: ctypes.c_int64, clock: Callable[[], int]) -> None:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        module = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.Softmax(-1))
        x = torch.randn(256, 256)
        with torch.no_grad():
            run = irc.compile(module.eval())
            until.value = 0
            quiet, before = run(x), requests()
            for _ in range(50):
                until.value = end = clock() + LONGEST // 2
                assert torch.equal(run(x), quiet)
                assert until.value == end  # threads of its own are not waited for, nor timed
    finally:
        torch.set_num_threads(threads)
    assert BESIDE.num_threads >= 2
    assert requests() >= before + 50
    torch.testing.assert_close(quiet, module(x))


def test_a_counter_that_began_anew_is_no_busy_machine(
    until: ctypes.c_int64, clock: Callable[[], int]
) -> None:
    text = HELD.replace('"template": "rows"', f'"template": "rows", "pieces": {PIECES}')
    segment = load_segment([text], [KernelCall(0, ((0, 0),))], 2)
    for ahead, asked in ((LONGEST // 2, 1), (2 * LONGEST, 0), (1 << 62, 0), (-1, 0)):
        cells, before = (ctypes.c_int64 * 2)(), requests()
        until.value = clock() + ahead
        segment.run_pointers([ctypes.addressof(cells)])
        assert list(cells) == [1, 2 * PIECES - 1]
        assert requests() == before + asked


def test_only_threads_that_are_awake_can_be_late(
    until: ctypes.c_int64, clock: Callable[[], int]
) -> None:
    """Threads that slept must be woken, which takes long on a machine without other programs."""
    last = ctypes.c_int64.from_address(BESIDE.address + LAST)
    first, second = KernelCall(0, ((0, 0),)), KernelCall(1, ((0, 0),))

    def busy_after(*calls: KernelCall) -> bool:
        until.value = last.value = 0
        load_segment([COUNT, LATE], calls, 2).run_pointers([ctypes.addressof(cells)])
        return until.value > clock()

    cells = (ctypes.c_int64 * 2)()
    assert not any(busy_after(second) for _ in range(5))
    assert any(busy_after(first, second) for _ in range(20))


def test_callers_on_two_threads(until: ctypes.c_int64, clock: Callable[[], int]) -> None:
    """One has the threads beside OpenMP's, or OpenMP's; the other may do its shares alone."""
    segment = counting(FEW + 1)

    def call(cells: ctypes.Array[ctypes.c_int64]) -> list[int]:
        for i in range(300):
            until.value = clock() + LONGEST // 2 if i % 8 else 0
            segment.run_pointers([ctypes.addressof(cells)])
        return list(cells)

    with ThreadPoolExecutor(2) as callers:
        counted = list(callers.map(call, [(ctypes.c_int64 * (FEW + 1))() for _ in range(4)]))
    assert counted == [[300 * (FEW + 1)] * (FEW + 1)] * 4


@pytest.mark.parametrize("threads", [2, FEW, FEW + 1])
def test_small_calls_on_few_threads_are_left_whole(
    threads: int, until: ctypes.c_int64, clock: Callable[[], int]
) -> None:
    segment, cells, before = counting(threads), (ctypes.c_int64 * threads)(), requests()
    until.value = clock() + LONGEST // 2
    segment.run_pointers([ctypes.addressof(cells)])
    assert list(cells) == [threads] * threads
    assert requests() - before == (threads > FEW)


def test_a_host_of_many_cores(
    until: ctypes.c_int64, clock: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []
    monkeypatch.setattr(BESIDE, "want", lambda threads, _: wanted.append(threads))
    segment, cells = counting(384), (ctypes.c_int64 * 384)()
    until.value = clock() + LONGEST // 2  # none of these threads is there
    segment.run_pointers([ctypes.addressof(cells)])
    assert list(cells) == [384] * 384
    monkeypatch.setattr("irc.backends.cpu.segment.MOST", 2)
    few, cells = counting(384), (ctypes.c_int64 * 384)()
    few.run_pointers([ctypes.addressof(cells)])
    assert list(cells) == [2, 2] + [0] * 382
    assert wanted == [384, 2]

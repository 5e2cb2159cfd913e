"""Slow ranks: told by how long they compute, where all take equally long for a step."""

from __future__ import annotations

import time

import pytest

from irc.runtime.pace import Pace, Stopwatch, slow_ranks, slowness


@pytest.mark.parametrize(
    ("computes", "slow"),
    [
        ([10, 10, 10, 39], [3]),
        ([10, 11, 9, 12], []),
        ([0.1, 0.1, 0.9], []),  # less than can be told apart
        ([30, 10, 10, 10, 39], [0, 4]),
        ([10], []),
    ],
)
def test_which_ranks_are_slow(computes: list[float], slow: list[int]) -> None:
    paces = [Pace(rank, ms * 1e-3, 0.0) for rank, ms in enumerate(computes)]
    assert [pace.rank for pace in slow_ranks(paces)] == slow
    assert bool(slowness(paces)) == bool(slow)


def test_a_step_that_compiled_does_not_count() -> None:
    watch = Stopwatch()
    watch.waiting(lambda: time.sleep(0.02))()
    watch.ended(counts=False)
    watch.waiting(lambda: time.sleep(0.01))()
    watch.ended()
    (pace,) = watch.paces()
    assert pace.waits_s >= 0.01
    assert pace.computes_s < 10 * pace.waits_s
    assert watch.paces() == [Pace(0, 0.0, 0.0)]

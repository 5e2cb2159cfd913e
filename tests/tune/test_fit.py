"""Fits of measured curves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irc.tune.fit import Point, fit_collective, non_negative

SIZES = (64, 4096, 1 << 20, 4 << 20)


def curve(launch: float, latency: float, speed: float, rounds: int) -> list[Point]:
    return [
        Point(p, n, launch + rounds * (p - 1) * (latency + n / p / speed))
        for p in (2, 4)
        for n in SIZES
    ]


def test_an_exact_curve_is_found() -> None:
    fit = fit_collective("all_reduce", curve(3e-4, 5e-5, 2e9, 2))
    assert (fit.launch_s, fit.latency_s, fit.bytes_per_s) == pytest.approx((3e-4, 5e-5, 2e9))


def test_one_disturbed_sample_does_not_move_the_fit_much() -> None:
    points = curve(3e-4, 5e-5, 2e9, 1)
    points[1] = points[1]._replace(seconds=points[1].seconds * 5)
    fit = fit_collective("all_gather", points)
    assert fit.bytes_per_s == pytest.approx(2e9, rel=0.2)
    assert fit.launch_s + fit.latency_s < 2.5 * 3.5e-4


@given(st.lists(st.floats(1e-6, 1.0), min_size=8, max_size=8))
def test_whatever_was_measured_the_fit_never_falls(seconds: list[float]) -> None:
    shapes = [(p, n) for p in (2, 4) for n in SIZES]
    points = [Point(p, n, s) for (p, n), s in zip(shapes, seconds, strict=True)]
    fit = fit_collective("all_to_all", points)
    assert min(fit.launch_s, fit.latency_s) >= 0
    assert fit.bytes_per_s > 0


@given(st.lists(st.floats(-10, 10), min_size=5, max_size=5))
def test_no_feasible_neighbour_is_better(wanted: list[float]) -> None:
    rows = np.array([[1, 1, 2], [1, 3, 1], [1, 1, 5], [1, 3, 0], [1, 2, 2]], dtype=float)
    goal = np.array(wanted)
    best = non_negative(rows, goal)
    assert (best >= 0).all()
    error = np.sum((rows @ best - goal) ** 2)
    for axis in range(3):
        for step in (-1e-3, 1e-3):
            other = best.copy()
            other[axis] = max(0.0, other[axis] + step)
            assert np.sum((rows @ other - goal) ** 2) >= error - 1e-6

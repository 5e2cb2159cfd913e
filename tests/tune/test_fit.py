"""Fits of measured curves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irc.cluster.links import Fit, Link
from irc.cluster.load import find_cluster
from irc.cluster.presets import PRESETS
from irc.cluster.text import to_toml
from irc.cluster.topology import Cluster
from irc.cost.collectives import collective_s
from irc.dialects.placement import Mesh
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


def test_four_ranks_on_two_cores_have_half_a_core_each() -> None:
    """A step takes them twice as long, of which a price of the same host knows."""
    crowded = {2: 1, 4: 2}
    points = [
        Point(p, n, 3e-4 + crowded[p] * (p - 1) * (5e-5 + n / p / 2e9))
        for p in (2, 4)
        for n in SIZES
    ]
    fit = fit_collective("all_gather", points, cores=2)
    assert (fit.launch_s, fit.latency_s, fit.bytes_per_s) == pytest.approx((3e-4, 5e-5, 2e9))
    host = replace(PRESETS["this-host"].device, cores=2)
    link = Link(4, 0.0, 1e9, fits={"all_gather": fit})
    for point in points:
        axis = Cluster("host", host, (link,)).axis_link(Mesh.of({"data": point.ranks}), "data")
        assert collective_s("all_gather", axis, point.num_bytes, 1e9) == pytest.approx(
            point.seconds
        )


def test_a_file_says_how_many_cores_a_fit_is_of(tmp_path: Path) -> None:
    """A file of before this was counted has no cores, and means what it meant."""
    fit = Fit(1e-4, 1e-5, 1e9, 2)
    link = Link(4, 0.0, 1e9, fits={"all_gather": fit})
    host = Cluster("host", PRESETS["this-host"].device, (link,))
    text = to_toml(host)
    assert "cores = 2" in text.split("[link.fits.all_gather]")[1]
    for written, crowded in ((text, 2.0), (text.replace("cores = 2\n", ""), 1.0)):
        (tmp_path / "host.toml").write_text(written)
        read = find_cluster(str(tmp_path / "host.toml"))
        axis = read.axis_link(Mesh.of({"data": 4}), "data")
        assert collective_s("all_gather", axis, 0, 1e9) == pytest.approx(1e-4 + crowded * 3e-5)


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

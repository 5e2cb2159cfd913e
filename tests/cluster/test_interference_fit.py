"""Tables of interference are fitted to what people measure, as spreadsheets write it."""

from pathlib import Path

import pytest

from irc.cluster.interference_fit import fitted, points_of


def test_files_of_spreadsheets(tmp_path: Path) -> None:
    """With a mark of the byte order, and spaces behind commas."""
    path = tmp_path / "points.csv"
    path.write_text("compute, link, together\n1, 1, 1.5\n", encoding="utf-8-sig")
    (point,) = points_of(f"{path}")
    assert (point.alone["link"], point.together) == (1e-3, 1.5e-3)


def test_one_point_of_two_factors(tmp_path: Path) -> None:
    """It tells them not apart; any table that gives its time will do."""
    path = tmp_path / "points.csv"
    path.write_text("compute,link,together\n1,0,0.1\n1,1,1.2\n")
    points = points_of(f"{path}")
    table = fitted(points)
    assert table.seconds(points[1].alone) == pytest.approx(1.2e-3, rel=1e-3)

"""Tables of what runs at a time: rates, fits, and the command that fits one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from irc.cli import main
from irc.cluster.interference import KINDS, Interference, slowest_of
from irc.cluster.interference_fit import Point, fitted, points_of, together_of
from irc.cluster.load import parse_cluster

SETS = [{0, 1}, {0, 2}, {1, 2}, {0, 1, 2}]


def drawn(seed: int) -> tuple[Interference, np.ndarray, list[dict[str, float]]]:
    """Return a table of three kinds, its factors as an array, and work of each alone."""
    draw = random.Random(seed)
    factors = np.ones((8, 3))
    rows: list[dict[str, float]] = []
    for kinds in SETS:
        row = {KINDS[i]: round(draw.uniform(1, 4), 3) for i in sorted(kinds)}
        rows.append(row)
        for i in kinds:
            factors[sum(1 << k for k in kinds), i] = row[KINDS[i]]
    work = [
        {KINDS[i]: draw.uniform(0.1, 9) for i in range(3) if draw.random() < 0.8} for _ in range(60)
    ]
    return Interference.of(rows), factors, [alone for alone in work if alone]


@pytest.mark.parametrize("seed", range(5))
def test_many_points_at_once_are_as_one_by_one(seed: int) -> None:
    table, factors, work = drawn(seed)
    alone = np.array([[each.get(kind, 0.0) for kind in KINDS[:3]] for each in work])
    assert together_of(alone, factors) == pytest.approx([table.seconds(each) for each in work])
    for each in work:
        # Never less than the longest alone, nor than a table of less interference says.
        assert table.seconds(each) >= max(each.values()) * (1 - 1e-12)
        slower = slowest_of([table, Interference.of([{"compute": 4.0, "link": 4.0}])])
        assert slower.seconds(each) >= table.seconds(each) * (1 - 1e-9)


def test_a_fit_gives_back_the_table_that_the_points_are_of() -> None:
    table, _, work = drawn(1)
    again = fitted([Point(each, table.seconds(each)) for each in work])
    for each in work:
        assert again.seconds(each) == pytest.approx(table.seconds(each), rel=2e-3)


def test_the_command_fits_a_table_for_a_cluster_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Interference.of([{"compute": 1.25, "link": 2.0}])
    lines = ["compute,link,together", "4,,4"]
    for compute, link in ((1, 1), (4, 1), (1, 3), (2, 2), (5, 4)):
        seconds = table.seconds({"compute": compute, "link": link})
        lines.append(f"{compute},{link},{seconds}")
    path = tmp_path / "points.csv"
    path.write_text("\n".join(lines))
    assert main(["cluster", "interference", str(path)]) == 0
    said = capsys.readouterr().out
    assert "5 measurements" in said
    device = "name = 'x'\npeak_tflops = { f32 = 1 }\nmemory_gb = 1\nmemory_gb_per_s = 1\n"
    link = "[[link]]\ndevices = 2\ngb_per_s = 1\nlatency_us = 1\n"
    rates = parse_cluster(f"[device]\n{device}{said}{link}").device.interference.rates(
        ["compute", "link"]
    )
    assert rates == pytest.approx({"compute": 0.8, "link": 0.5}, rel=1e-3)


def test_factors_that_points_do_not_tell_apart() -> None:
    """Any table that gives their times will do."""
    same = Point({"compute": 1e-3, "link": 1e-3}, 1.2e-3)
    assert fitted([same, same]).seconds(same.alone) == pytest.approx(1.2e-3, rel=1e-3)


def test_a_file_of_a_spreadsheet(tmp_path: Path) -> None:
    """With a mark of the byte order, and spaces behind commas."""
    path = tmp_path / "points.csv"
    path.write_text("compute, link, together\n1, 1, 1.5\n1, 2, 3\n", encoding="utf-8-sig")
    assert points_of(f"{path}")[0] == Point({"compute": 1e-3, "link": 1e-3}, 1.5e-3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("compute,gpu,together\n1,2,3\n", "column 'gpu'"),
        ("compute,link,together\n1,2,x\n", "'x'"),
        ("compute,link,together\n1,2,3,4\n", "a value too many"),
        ("compute,link,together\n1,,1\n", "no line has two kinds"),
        ("compute,link,together\n1,2,3\n", "1 measurements for 2 factors"),
        ("compute,link,together\n1,2,-3\n", "times are positive"),
        ("", "no line"),
    ],
)
def test_measurements_that_cannot_be_read_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "points.csv"
    path.write_text(text)
    assert main(["cluster", "interference", str(path)]) != 0
    assert said in capsys.readouterr().err
    assert main(["cluster", "interference"]) != 0

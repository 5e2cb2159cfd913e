"""The table of a search: what works, beside what was pinned, and what does not and why."""

from __future__ import annotations

from dataclasses import replace

from irc.cluster.load import find_cluster
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.report.planned import plan_table, planned
from irc.search.configurations import Configuration, Outline
from irc.search.everything import Outcome
from irc.search.judge import Judged, Verdict
from irc.search.tried import Left

OUTLINE = Outline(1e15, "bf16", 2e9, 2**26, layers=16, samples=32, launches=100)


def test_a_table_of_a_search() -> None:
    best = Judged(Configuration(Mesh.parse("data=8")), Verdict(1.0, 2**30, 0.0, 0.1))
    layout = Configuration(Mesh.parse("pipe=2,tensor=4"), 8, "1f1b", "full", "tp+sp")
    pinned = Judged(layout, Verdict(2.0, 2**31, 0.25), is_pinned=True)
    error = IrcError(
        "sharding-infeasible", "too large", help="budget that works is memory_bytes=99"
    )
    lacking = Judged(Configuration(Mesh.parse("tensor=8")), error=error)
    outcome = Outcome(best, (best, pinned, lacking), 40, "an interrupt", bound_s=0.4)
    report = planned(
        outcome, OUTLINE, find_cluster("8xH100"),
        program="net.py:build", objective="throughput", tokens=4096,
    )  # fmt: skip
    first, second, last = report.rows
    assert first.mfu == 3e15 / (8 * 989e12)
    assert (first.items_per_s, first.exposed) == (4096.0, 0.1)
    assert (second.bubble, second.pinned) == (0.25, True)
    assert (last.needs_bytes, last.why_not) == (99, "too large")
    text = plan_table(report)
    assert "early, by an interrupt" in text
    assert "tokens/s" in text
    assert "pinned  pipe=2,tensor=4 as tp+sp" in text
    assert "99 B" in text
    assert "60.0 % at most: products alone take 400" in text
    assert report.as_json()["gap"] == 0.6
    below = planned(
        replace(outcome, bound_s=1.5), OUTLINE, find_cluster("8xH100"), program="net.py:build",
        objective="throughput",
    )  # fmt: skip
    assert below.gap is None
    assert "products alone" not in plan_table(below)


def test_what_was_left_alone_is_said_with_what_it_takes() -> None:
    best = Judged(Configuration(Mesh.parse("data=8")), Verdict(1.0, 2**30))
    left = tuple(
        (Configuration(Mesh.parse(f"pipe={n},data={8 // n}"), 4), Left(1.5, is_bound=n < 8))
        for n in (2, 4, 8)
    )
    report = planned(
        Outcome(best, (best,), 40, left=left), OUTLINE, find_cluster("8xH100"),
        program="net.py:build", objective="throughput",
    )  # fmt: skip
    text = plan_table(report)
    assert "2 configurations, whose steps take 1.500 s at least" in text
    assert "1 configuration, whose step takes about 1.500 s or more by a closed form" in text
    assert [each.is_bound for each in report.left] == [True, True, False]
    assert "left" in report.as_json()


def test_money_is_of_what_has_a_price() -> None:
    """Of unequal devices some may have none."""
    cluster = find_cluster("8xH100")
    priced = replace(cluster.device, price_per_hour=3.6)
    cluster = replace(cluster, unequal=((priced, 4), (cluster.device, 4)))
    four, eight = (
        Judged(Configuration(Mesh.parse(f"data={n}")), Verdict(1.0, 2**30)) for n in (4, 8)
    )
    for rows in ((four, eight), (eight, four)):
        outcome = Outcome(rows[0], rows, 0)
        report = planned(outcome, OUTLINE, cluster, program="net.py:build", objective="cost")
        assert {row.devices: row.money_per_step for row in report.rows} == {4: 0.004, 8: None}
        assert "money/step" in plan_table(report)

"""The difference of two configurations, decision by decision."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.report.decisions import as_plain, difference_lines
from irc.search.configurations import Configuration
from irc.search.differences import difference
from irc.search.judge import Judged, Verdict

HAND = Configuration(Mesh.parse("pipe=2,data=2"), 2, "gpipe", "full")
BEST = Configuration(Mesh.parse("data=2,tensor=2"), 4, layout="fsdp+tp+sp")


def by_price(own: Configuration) -> Judged:
    """Judge by a sum of what each decision costs."""
    step = {2: 1.0, 4: 0.6}[own.micro_batches] + (0.5 if own.recompute == "full" else 0.0)
    bubble = 0.25 if own.pipe > 1 else 0.0
    return Judged(own, Verdict(step + bubble, 10, bubble / (step + bubble), 0.1))


def refusing(mesh: str) -> Callable[[Configuration], Judged]:
    def judged(own: Configuration) -> Judged:
        if str(own.mesh) == mesh and own.micro_batches == 2:
            return Judged(own, error=IrcError("pipeline-memory", "it holds too much"))
        return by_price(own)

    return judged


def test_decisions_add_up() -> None:
    diff = difference(by_price(HAND), by_price(BEST), by_price)
    assert [own.what for own in diff.decisions] == ["mesh", "micro-batches", "recompute"]
    assert [own.step_s for own in diff.decisions] == pytest.approx([-0.25, -0.4, -0.5])
    assert [own.bubble_s for own in diff.decisions] == pytest.approx([-0.25, 0.0, 0.0])
    text = "\n".join(difference_lines(diff))
    assert "data=2,tensor=2 as fsdp+tp+sp" in text
    assert "-1.150 s" in text.splitlines()[-1]
    plain = as_plain(diff)
    assert plain["after"] == str(BEST)


def test_a_decision_that_alone_has_no_plan_is_taken_with_the_next() -> None:
    diff = difference(by_price(HAND), by_price(BEST), refusing("data=2,tensor=2"))
    assert [own.what for own in diff.decisions] == ["mesh and micro-batches", "recompute"]
    assert sum(own.step_s for own in diff.decisions) == pytest.approx(0.6 - 1.75)


def test_of_one_configuration_there_is_none() -> None:
    diff = difference(by_price(HAND), by_price(HAND), by_price)
    assert diff.decisions == ()
    assert difference_lines(diff)[-1].split()[-1] == "+0"

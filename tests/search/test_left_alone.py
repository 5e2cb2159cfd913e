"""What is left alone for a bound is priced after all, where the plan that beat it falls short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from irc.search.configurations import Configuration
from irc.search.everything import Search
from irc.search.judge import Verdict
from irc.search.limits import Limits
from tests.search.test_everything import CLUSTER, Priced, needs

BEST, SECOND = "data=16", "data=8,tensor=2"
ROOM = 5 * 10**9


def says(configuration: Configuration) -> Verdict:
    """Return prices, of which the second is a little more behind than prices are off."""
    return Verdict({BEST: 1.0, SECOND: 1.06}.get(str(configuration), 2.0), ROOM)


def has_no_plan(_: Verdict) -> Verdict:
    raise needs(11 * 10**9)


def is_slower(price: Verdict) -> Verdict:
    return replace(price, step_s=1.15)


def is_as_priced(price: Verdict) -> Verdict:
    return price


@dataclass
class Bounded(Priced):
    """Knows what each step takes at least, and plans the one of the best price in some way."""

    whole: Callable[[Verdict], Verdict] = is_as_priced

    def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
        return says(configuration).step_s

    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        self.planned.append(configuration)
        price = says(configuration)
        return self.whole(price) if str(configuration) == BEST else price


@pytest.mark.parametrize("whole", [has_no_plan, is_slower])
def test_the_next_one_is_planned_where_the_best_price_falls_short(
    whole: Callable[[Verdict], Verdict],
) -> None:
    judge = Bounded(says, budget=10**10, whole=whole)
    outcome = Search(judge, CLUSTER, Limits()).run(16)
    assert outcome.best.verdict is not None
    assert (str(outcome.best.configuration), outcome.best.verdict.step_s) == (SECOND, 1.06)
    assert all(why.seconds > 1.06 for _, why in outcome.left)


def test_it_is_left_alone_where_the_best_price_holds() -> None:
    judge = Bounded(says, budget=10**10)
    outcome = Search(judge, CLUSTER, Limits()).run(16)
    assert str(outcome.best.configuration) == BEST
    assert SECOND in [str(own) for own, why in outcome.left if why.is_bound]
    assert SECOND not in map(str, [*judge.asked, *judge.planned])

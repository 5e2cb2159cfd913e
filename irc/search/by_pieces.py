"""The search by prices from pieces of a model of equal layers.

Stages are put together from pieces (:mod:`irc.search.blocks`) and simulated. Only the best few are
planned whole, and the plans' simulated steps say which is the best: priced ones that are so much
longer that the error of prices does not make up for it are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import inf

from irc.search.ahead import num_ahead
from irc.search.configurations import (
    Configuration,
    Outline,
    at_once,
    customary,
    neighbours,
    stored_split,
)
from irc.search.judge import Judged
from irc.search.searched_order import in_best_order
from irc.search.seeds import seeds, smallest
from irc.search.trials import Trials
from irc.search.within_less import plan_tighter
from irc.search.worth import ALIKE_ERROR, PRICE_ERROR, Worth, is_in_fewer

MOST_PRICED = 40
"""So many configurations on one number of devices are priced from pieces."""

PLANNED = 3
"""So many of them at most are planned whole, of those that have a plan."""

NEAR = 1.25
"""An estimate of so many times that of the best one is not priced for being beside it."""


def search_by_pieces(trials: Trials, devices: int) -> bool:
    """Search on one number of devices by prices; return False where nothing came of it."""
    if not trials.judge.in_pieces():
        return False
    most = len(trials.judged) + MOST_PRICED
    trials.prices, trials.most = True, most + PLANNED
    try:
        _Climb(trials, trials.judge.outline(), devices, most).run()
    finally:
        trials.prices = False
    if not plan_best(trials, devices, min(PLANNED, trials.limits.most_judged)):
        return False
    plan_tighter(trials, trials.best())
    return True


def plan_best(trials: Trials, devices: int, most: int = PLANNED) -> bool:
    """Plan the best of what was priced; return whether one of them has a plan.

    Where a plan is dearer than its price, or there is none, what was left alone for a bound that is
    not behind any more is priced after all.
    """
    whole = _Whole(trials, devices)
    trials.judge.end()  # no other price is likely to be asked for
    if most > 1 and (priced := trials.priced(devices)):
        _begin_whole(trials, priced[:most])
    while len(whole.planned) < most and whole.plan_next():
        whole.reopen()
    return bool(whole.planned)


@dataclass
class _Whole:
    """What is planned whole of what was priced on a number of devices.

    Attributes:
        planned: what has a plan.
        ratio: the least of a plan's cost over that of its price; infinity before there is one.
    """

    trials: Trials
    devices: int
    planned: list[Judged] = field(default_factory=list[Judged])
    ratio: float = inf

    def plan_next(self) -> bool:
        """Plan the best that is left; return False where none can be better than what is."""
        trials = self.trials
        if not (priced := trials.priced(self.devices)):
            return False
        own, (wrong, cost, *_) = priced[0], trials.cost(priced[0])
        if (wrong, self._likely(cost)) > self._least():
            return False
        if self.planned:
            trials.check_time()
        assert own.verdict is not None
        judged = trials.plan(own.configuration, is_pinned=own.is_pinned)
        judged = replace(judged, priced_s=own.verdict.step_s)
        trials.judged[own.configuration] = judged
        if judged.verdict is not None:
            self.planned.append(judged)
            self.ratio = min(self.ratio, trials.cost(judged)[1] / cost)
        return True

    def reopen(self) -> None:
        """Price what was left alone for a bound, where that may be below what has a plan."""
        trials, least = self.trials, self._least()
        every = [
            own
            for own, left in trials.left.items()
            if left.is_bound and own.mesh.num_ranks == self.devices
            if (False, self._likely(left.seconds)) <= least
        ]
        for own in every:
            del trials.left[own]
        most = len(trials.judged) + MOST_PRICED
        worth = Worth(trials, trials.judge.outline(), self.devices, most, PRICE_ERROR)
        trials.prices = True
        try:
            for own in every:
                if trials.prices:
                    trials.attempt(own, is_worth=worth.is_worth, beat_s=worth.beat_s)
        finally:
            trials.prices = False

    def _least(self) -> tuple[bool, float]:
        return min(map(self.trials.cost, self.planned), default=(True, inf))[:2]

    def _likely(self, cost: float) -> float:
        """Return what the plan of a price costs at least, by how far off others were."""
        likely = cost * (1 - PRICE_ERROR)
        if not self.planned:
            return likely
        alike = cost * self.ratio * (1 - ALIKE_ERROR)
        # Prices that proved dearer than their error allows are corrected by what they are off.
        is_dear = self.ratio < 1 - PRICE_ERROR
        return alike if is_dear else max(likely, min(cost, alike))


def _begin_whole(trials: Trials, priced: Sequence[Judged]) -> None:
    """Begin the plans that will be asked for behind that of the best price.

    These are of those that are as good by a little less than what prices are off from each other,
    and of the best one with all parameters in parts.
    """
    (wrong, least, *_), *others = map(trials.cost, priced)
    near = [
        own.configuration
        for own, cost in zip(priced[1:], others, strict=True)
        if (cost[0], cost[1] * (1 - ALIKE_ERROR)) <= (wrong, least)
    ]
    split = stored_split(priced[0].configuration)
    trials.begin([*near, *([] if split is None else [split])])


@dataclass(frozen=True)
class _Climb:
    """Prices the first few by the closed form, then what differs from the best in one choice."""

    trials: Trials
    outline: Outline
    devices: int
    most: int

    @cached_property
    def worth(self) -> Worth:
        """What is worth a price."""
        return Worth(self.trials, self.outline, self.devices, self.most)

    def run(self) -> None:
        trials = self.trials
        self._attempt([seed for seed in self._first() if not trials.objection(seed)])
        if not trials.fits(self.devices):
            self._fit()
        best = trials.priced(self.devices)
        while best and trials.prices:
            self._around(best[0])
            now = trials.priced(self.devices)
            if now[0] is best[0]:
                break
            best = now
        if trials.prices and (ordered := in_best_order(trials, self.devices)) is not None:
            self._attempt([ordered])

    def _attempt(self, configurations: Sequence[Configuration]) -> None:
        """Price configurations in order; the next ones are begun while one is priced."""
        trials = self.trials
        for place, own in enumerate(configurations):
            later = (
                each
                for number, each in enumerate(configurations[place + 1 :], place + 1)
                if self._is_likely(each, configurations[place:number])
            )
            trials.judge.begin(islice(later, num_ahead()), is_whole=False)
            worth = self.worth
            trials.attempt(own, is_worth=worth.is_worth, beat_s=worth.beat_s)

    def _is_likely(self, configuration: Configuration, earlier: Sequence[Configuration]) -> bool:
        """Whether a configuration will be priced, by what is known so far.

        Args:
            configuration: to be priced.
            earlier: what is priced before it, of which as much will fit as may.
        """
        trials = self.trials
        return (
            configuration not in trials.judged
            and not any(is_in_fewer(configuration, own) for own in earlier)
            and trials.is_allowed(configuration)
            and self.worth.behind(configuration, 0.0) is None
            and trials.refusal(configuration) is None
        )

    def _first(self) -> list[Configuration]:
        """Return what is priced first, in order: each by its estimate."""
        own = seeds(self.trials, self.outline, self.devices)
        whole = [
            *customary(self.outline, self.trials.cluster, self.devices),
            *at_once(self.outline, self.devices),
        ]
        first = min(map(self.worth.estimate, own), default=inf)
        near = [each for each in whole if self.worth.estimate(each) <= NEAR * first]
        return sorted((*own, *near), key=lambda each: (self.worth.estimate(each), str(each)))

    def _fit(self) -> None:
        """Price what holds least, until something fits."""
        trials = self.trials
        least = smallest(trials, self.outline, self.devices)
        right = [each for each in least if not trials.objection(each)]
        for each in sorted(right, key=self.worth.estimate):
            if len(trials.judged) < self.most and trials.prices and not trials.fits(self.devices):
                trials.attempt(each)

    def _around(self, best: Judged) -> None:
        """Price what differs from the best in one choice, and may be better."""
        limit = NEAR * self.worth.estimate(best.configuration)

        def is_near(other: Configuration) -> bool:
            is_wrong = not best.objection and self.trials.objection(other)
            return self.worth.estimate(other) <= limit and not is_wrong

        self._attempt(list(filter(is_near, neighbours(best.configuration, self.outline))))

"""What a search has tried, which of it is the best, and how it tries more.

A configuration is priced from pieces of the model while prices are asked for, and planned whole
otherwise; what came of it is noted. One that does not fit into the memory is tried again as pieces
say that it fits, or with everything recomputed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from math import inf
from typing import TypeVar

from irc.cluster.topology import Cluster
from irc.errors import IrcError
from irc.search.ahead import num_ahead
from irc.search.bounds import least_bytes, least_s
from irc.search.configurations import FULL, Configuration, Outline, configurations, estimated_s
from irc.search.judge import OF_CONFIGURATION, OF_MEMORY, Judge, Judged, Verdict
from irc.search.limits import Limits
from irc.search.objections import absent_batch, objection
from irc.search.status import Progress, Status
from irc.search.tried import Left, Tried

T = TypeVar("T")


class TimeIsUp(Exception):  # noqa: N818 - no fault: the user set the limit
    """The time that the user allows is over, and something has a plan."""


@dataclass
class Trials(Tried):
    """All that one search tried, and how it tries more.

    Attributes:
        judge: plans and simulates.
        cluster: the machines.
        limits: how far the search goes.
        is_training: stages and micro-batches are of a step of training alone.
        devices: the most that are used.
        progress: is told before each piece of work what is done next.
        judged: what came of each configuration.
        prices: configurations are priced from pieces, not planned whole.
        considered: configurations that were compared by the closed form.
        left: what was not priced, or not made smaller, for what it takes at least.
        most: that will be judged, at most.
    """

    judge: Judge
    cluster: Cluster
    limits: Limits
    is_training: bool
    devices: int
    progress: Progress | None = None
    judged: dict[Configuration, Judged] = field(default_factory=dict[Configuration, Judged])
    prices: bool = False
    considered: int = 0
    left: dict[Configuration, Left] = field(default_factory=dict[Configuration, Left])
    most: int = 0
    _began: float = field(default_factory=time.monotonic)

    def attempt(
        self,
        configuration: Configuration,
        *,
        is_pinned: bool = False,
        is_worth: Callable[[Configuration, float], bool] = lambda _, least_s: True,
        beat_s: Callable[[], float] = lambda: inf,
    ) -> None:
        """Try a configuration; where it does not fit, made smaller.

        Args:
            configuration: to try.
            is_pinned: the user stated it.
            is_worth: says of each whether to try it, and of the first, where it does not fit,
                whether to make it smaller: told the seconds that it takes at least.
            beat_s: the seconds of which one that is made smaller takes less, to be of use.
        """
        if not is_pinned and not self.is_allowed(configuration):
            return

        def is_open(own: Configuration, *, is_fitted: bool = False) -> bool:
            return is_worth(own, self._least_s(own, is_fitted=is_fitted))

        # What is behind by its estimate alone is not asked for what it takes at least.
        is_new = configuration not in self.judged
        if is_new and not (is_worth(configuration, 0.0) and is_open(configuration)):
            return
        first = self._tried(configuration, is_pinned=is_pinned)
        if is_pinned or not self.is_training or first.error is None:
            return
        if first.error.code not in OF_MEMORY:
            return
        if self.prices and not is_open(configuration, is_fitted=True):
            return
        # As pieces say that it fits; without them, with everything computed again.
        ask = partial(self.judge.fitting, configuration, beat_s())
        smaller = self._said(ask) if self.prices else None
        if smaller is None and self.prices and not is_open(configuration, is_fitted=True):
            return
        if smaller is None or self._tried(smaller).error is not None:
            # What keeps less than nothing, and more than all, is a neighbour of the latter.
            whole = replace(configuration, recompute=FULL)
            if whole in self.judged or is_open(whole):
                self._tried(whole)

    def check_room(self, configuration: Configuration) -> None:
        """Refuse a configuration that cannot fit, whatever its plan.

        Raises:
            IrcError: ``sharding-infeasible``.
        """
        budget = self.judge.budget_bytes(configuration)
        least = least_bytes(self.judge.outline(), configuration)
        if budget is not None and least > budget:
            what = "parameters and states" if self.is_training else "parameters"
            ranks = configuration.mesh.num_ranks
            on = f"at least one of {ranks} devices" if ranks > 1 else "one device"
            raise IrcError(
                "sharding-infeasible",
                f"{what} alone take {least} bytes on {on}, which may hold {budget}",
            )

    def refusal(self, configuration: Configuration) -> IrcError | None:
        """Return why a configuration has no plan, where that is known without one."""
        try:
            if self.is_training:
                absent_batch(configuration, self.judge.outline())
            self.check_room(configuration)
        except IrcError as error:
            return error
        return None

    def begin(self, configurations: Iterable[Configuration]) -> None:
        """Let the next of some configurations be planned whole while others are.

        Args:
            configurations: in the order in which they are tried.
        """
        likely = (
            each
            for each in configurations
            if self.is_unplanned(each) and self.is_allowed(each) and self.refusal(each) is None
        )
        self.judge.begin(islice(likely, num_ahead()), is_whole=True)

    def _tried(self, configuration: Configuration, *, is_pinned: bool = False) -> Judged:
        judged = self.judged.get(configuration)
        if judged is None or (judged.is_priced and not self.prices):
            self.check_time()
            judged = self.plan(configuration, is_pinned=is_pinned)
        return judged

    def _least_s(self, own: Configuration, *, is_fitted: bool) -> float:
        if not self.prices:
            return 0.0
        return self._said(partial(self.judge.least_s, own, is_fitted=is_fitted)) or 0.0

    @staticmethod
    def _said(ask: Callable[[], T]) -> T | None:
        """Return what a judge says; None where the configuration cannot be."""
        try:
            return ask()
        except IrcError as error:
            if error.code not in OF_CONFIGURATION:
                raise
            return None

    def plan(self, configuration: Configuration, *, is_pinned: bool = False) -> Judged:
        """Price a configuration, or plan it whole, and note what came of it."""
        self.tell(f"{'pricing' if self.prices else 'planning'} {configuration}")
        verdict, error, wrong = None, self.refusal(configuration), ""
        try:
            if error is None:
                verdict = self._verdict(configuration)
                wrong = self.objection(configuration, is_pinned=is_pinned)
        except IrcError as raised:
            error = raised
        if error is not None and error.code not in OF_CONFIGURATION:
            raise error
        judged = Judged(configuration, verdict, error, is_pinned, wrong, self.prices)
        self.judged[configuration] = judged
        return judged

    def _verdict(self, configuration: Configuration) -> Verdict:
        if self.prices:
            if (priced := self.judge.price(configuration)) is not None:
                return priced
            # Pieces say nothing: from here on all is planned whole.
            self.prices = False
        return self.judge.judge(configuration)

    def planned(self, configuration: Configuration) -> Judged:
        """Return what comes of a configuration, which is planned whole unless it was."""
        known = self.judged.get(configuration)
        if known is None or known.is_priced:
            self.check_time()
            return self.plan(configuration)
        return known

    def objection(self, configuration: Configuration, *, is_pinned: bool = False) -> str:
        """Return what is wrong with a step; a call has no stages to choose instead."""
        if not self.is_training:
            return ""
        return objection(configuration, self.cluster, is_pinned=is_pinned)

    def estimate(self, outline: Outline, configuration: Configuration) -> float:
        """Return about what a step takes, by the closed form."""
        return estimated_s(outline, self.cluster, configuration)

    def configurations(self, outline: Outline, devices: int) -> Iterator[Configuration]:
        """Yield steps with stages or micro-batches that the user allows."""
        return filter(self.is_allowed, configurations(outline, devices))

    def is_allowed(self, configuration: Configuration) -> bool:
        """Whether it has as many micro-batches as the user wants."""
        return self.limits.micro_batches in (None, configuration.micro_batches)

    def tell(self, doing: str) -> None:
        """Say what is done next."""
        if self.progress is not None:
            number = len(self.judged)
            most = max(self.most, number)
            self.progress(Status(number, most, self.best(), doing, self.bound_s))

    @cached_property
    def bound_s(self) -> float:
        """What no plan is faster than, on all devices."""
        return least_s(self.judge.outline(), self.cluster, self.devices)

    @property
    def time_limit(self) -> str:
        """What ends it that is out of time, in words."""
        return f"the time limit of {self.limits.time_limit_s:g} s"

    def check_time(self) -> None:
        """Raise TimeIsUp where the time is over and something was tried."""
        limit = self.limits.time_limit_s
        if limit is not None and self.judged and time.monotonic() - self._began >= limit:
            raise TimeIsUp

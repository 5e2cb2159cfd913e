"""The search over everything that a user may choose of a step: the best configuration, judged.

Steps with stages or micro-batches are put in order by a closed form
(:mod:`irc.search.configurations`), best of each mesh; the first few are tried, then configurations
that differ from the best in one choice as long as that helps. Where one does not fit into the
memory, it is tried again with everything recomputed; where none fits, in the most micro-batches of
each mesh (:mod:`irc.search.trials`).

A model of equal layers is priced from pieces of it (:mod:`irc.search.by_pieces`), all others are
planned whole (:mod:`irc.search.by_plans`); the plans' simulated steps say which is the best.

Nothing depends on a clock but a time limit that the user sets, which ends the search between two
plans with the best one so far; so does an interrupt where the caller says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from irc.cluster.topology import Cluster
from irc.search.by_pieces import plan_best, search_by_pieces
from irc.search.by_plans import search_by_plans
from irc.search.configurations import Configuration, divisors
from irc.search.differences import Difference, difference
from irc.search.infeasible import lacks_room, nothing_fits
from irc.search.judge import Judge, Judged
from irc.search.least_budget import plan_least
from irc.search.limits import Limits
from irc.search.status import Progress
from irc.search.trials import TimeIsUp, Trials
from irc.search.tried import Left


@dataclass(frozen=True)
class Outcome:
    """What a search says.

    Attributes:
        best: of those with a plan.
        judged: all that were planned, best first; those without a plan last, in the order in which
            they were tried.
        considered: configurations that were priced by the closed form.
        ended: why it ended early; empty where it did not.
        differences: of what the user stated and the best, decision by decision.
        priced: what was priced from pieces alone, best first.
        bound_s: what no plan is faster than (:mod:`irc.search.bounds`).
        left: what was not priced, or not made smaller, for what its step takes, shortest first.
    """

    best: Judged
    judged: tuple[Judged, ...]
    considered: int
    ended: str = ""
    differences: tuple[Difference, ...] = ()
    priced: tuple[Judged, ...] = ()
    bound_s: float = 0.0
    left: tuple[tuple[Configuration, Left], ...] = ()


@dataclass(frozen=True)
class Search:
    """One search.

    Attributes:
        judge: plans and simulates.
        cluster: the machines.
        limits: how far it goes.
        is_training: stages and micro-batches are of a step of training alone.
        progress: is told before each piece of work how far the search is.
    """

    judge: Judge
    cluster: Cluster
    limits: Limits = field(default_factory=Limits)
    is_training: bool = True
    progress: Progress | None = None

    def run(self, devices: int, pinned: Iterable[Configuration] = ()) -> Outcome:
        """Return the best configuration on so many devices.

        Args:
            devices: to use; for ``latency`` and ``cost`` the most.
            pinned: configurations that are planned for comparison, and may win.

        Raises:
            IrcError: ``plan-infeasible`` where nothing has a plan; what is wrong with the model.
        """
        try:
            return self._run(devices, pinned)
        finally:
            self.judge.end()

    def _run(self, devices: int, pinned: Iterable[Configuration]) -> Outcome:
        ended, differences = "", ()
        trials = Trials(
            self.judge, self.cluster, self.limits, self.is_training, devices, self.progress
        )
        try:
            for configuration in pinned:
                trials.attempt(configuration, is_pinned=True)
            for count in self._counts(devices):
                self._search_on(trials, count)
            differences = _differences(trials)
        except TimeIsUp:
            ended = trials.time_limit
        except KeyboardInterrupt:
            if not self.limits.keeps_interrupted or trials.best() is None:
                raise
            ended = "an interrupt"
        best = trials.best()
        if best is not None and best.is_priced:
            # It ended before the first was planned whole, and the answer is a plan.
            plan_best(trials, best.configuration.mesh.num_ranks, most=1)
            best = trials.best()
        if best is None or best.is_priced:
            raise nothing_fits(trials, ended)
        planned, priced = _shown(trials)
        return Outcome(
            best,
            planned,
            trials.considered,
            ended,
            differences,
            priced,
            trials.bound_s,
            _left(trials),
        )

    def _search_on(self, trials: Trials, devices: int) -> None:
        """Search on one number of devices."""
        if lacks_room(trials, devices):
            return
        if self.is_training and search_by_pieces(trials, devices):
            return
        search_by_plans(trials, devices)
        if trials.is_short() and not trials.is_planned():
            plan_least(trials, devices)

    def _counts(self, devices: int) -> list[int]:
        if self.limits.objective in ("throughput", "memory"):
            return [devices]
        return divisors(devices)[::-1]


def _shown(trials: Trials) -> tuple[tuple[Judged, ...], tuple[Judged, ...]]:
    """Return what was planned, and what was priced alone, best first."""
    # What the search asked within less than the user allows need not be had.
    every = trials.judged.values()
    others = {own.verdict for own in every if own.configuration.memory_bytes is None}
    shown = [
        own
        for own in every
        if own.configuration.memory_bytes is None or (own.verdict and own.verdict not in others)
    ]
    order = sorted(shown, key=trials.cost)
    planned = tuple(own for own in order if not own.is_priced or own.verdict is None)
    priced = tuple(own for own in order if own.is_priced and own.verdict is not None)
    return planned, priced


def _left(trials: Trials) -> tuple[tuple[Configuration, Left], ...]:
    """Return what was left alone, shortest first; not what has a price since."""
    known = {own.configuration for own in trials.judged.values() if own.verdict is not None}
    own = ((each, why) for each, why in trials.left.items() if each not in known)
    return tuple(sorted(own, key=lambda each: (each[1].seconds, str(each[0]))))


def _differences(trials: Trials) -> tuple[Difference, ...]:
    """Explain by how much the best is better than what the user stated.

    What is judged on the way from one to the other may be better still.
    """
    while (best := trials.best()) is not None:
        stated = [own for own in trials.judged.values() if own.is_pinned and own.verdict]
        differences = tuple(
            difference(own, best, trials.planned) for own in stated if own is not best
        )
        if trials.best() is best:
            return differences
    return ()

"""The search over everything that a user may choose of a step: the best configuration, judged.

Meshes of one program are searched by the integer program (:mod:`irc.search.meshes`); what people
lay out by hand is planned beside them. Steps with stages or micro-batches are put in order by a
closed form (:mod:`irc.search.configurations`), best of each mesh; the first few are planned, and
the plan's simulated step says which is the best. Then configurations that differ from the best in
one choice are tried as long as that helps. Where one does not fit into the memory, it is tried
again with everything recomputed; where none fits, in the most micro-batches of each mesh.

Nothing depends on a clock but a time limit that the user sets, which ends the search between two
plans with the best one so far; so does an interrupt where the caller says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, Protocol, TypeAlias

from irc.cluster.topology import Cluster
from irc.cost.money import per_hour
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.configurations import (
    FULL,
    NOTHING,
    Configuration,
    Outline,
    configurations,
    customary,
    divisors,
    estimated_s,
    neighbours,
    tighter,
)
from irc.search.differences import Difference, difference
from irc.search.objections import absent_batch, objection

Objective: TypeAlias = Literal["throughput", "latency", "memory", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("throughput", "latency", "memory", "cost")

OF_MEMORY = frozenset({"sharding-infeasible", "pipeline-memory"})
OF_CONFIGURATION = OF_MEMORY | {
    "mesh-axes", "mesh-axis-indivisible", "mesh-mismatch", "pipeline-stages",
    "pipeline-unsupported", "schedule-size",
}  # fmt: skip
"""Errors that say that one configuration cannot be; all others are of the model or the options."""

SEEDS = 4
"""So many configurations with stages or micro-batches are planned in the order of the estimates."""

MOST_JUDGED = 20
"""So many plans are made of steps on one number of devices."""

HOPELESS = 2.0
"""An estimate of so many times the best one is not followed."""


@dataclass(frozen=True)
class Verdict:
    """What the simulator says of a plan.

    Attributes:
        step_s: of a step, or a call.
        num_bytes: that a device holds at the worst moment.
        bubble: the share of a step in which a rank waits for others, in the mean over ranks.
        exposed_s: for which compute waits for collectives, of a rank, in the mean.
    """

    step_s: float
    num_bytes: int
    bubble: float = 0.0
    exposed_s: float = 0.0


@dataclass(frozen=True)
class Judged:
    """A configuration, and what came of it.

    Attributes:
        configuration: what was planned.
        verdict: None where there is no plan.
        error: why there is none.
        is_pinned: the user stated it, for comparison.
        objection: what is wrong with it, for which any other plan is preferred; empty: nothing.
    """

    configuration: Configuration
    verdict: Verdict | None = None
    error: IrcError | None = None
    is_pinned: bool = False
    objection: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a search says.

    Attributes:
        best: of those with a plan.
        judged: all, best first; those without a plan last, in the order in which they were tried.
        considered: configurations that were priced by the closed form.
        ended: why it ended early; empty where it did not.
        differences: of what the user stated and the best, decision by decision.
    """

    best: Judged
    judged: tuple[Judged, ...]
    considered: int
    ended: str = ""
    differences: tuple[Difference, ...] = ()


Progress: TypeAlias = Callable[[int, Judged | None, str], None]
"""Is told how many plans were judged, the best one, and what is done next."""


class Judge(Protocol):
    """What a search asks: it captures, plans and simulates."""

    def outline(self) -> Outline:
        """Return what is known of the forward pass of the whole batch."""
        ...

    def meshes(self, devices: int, recompute: str) -> Sequence[Mesh]:
        """Return the best meshes of one program, best first.

        Raises:
            IrcError: ``sharding-infeasible``.
        """
        ...

    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        """Plan a configuration and simulate it.

        Args:
            configuration: to plan.
            brief: where it does not fit say so alone, and not what would, which takes long.

        Raises:
            IrcError: of the configuration, or of the model.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """How far a search goes.

    Attributes:
        objective: ``throughput`` is the shortest step on all devices, ``latency`` that on any
            number of them, ``memory`` the fewest bytes on a device, ``cost`` the least money for a
            step, on any number of them: without prices, the fewest seconds of devices.
        time_limit_s: no plan is begun after so long; None: as long as it takes.
        most_judged: plans on one number of devices.
        keeps_interrupted: an interrupt ends the search with the best plan so far, where there is
            one; otherwise it is raised.
        price_per_hour: of a device, in the place of what the cluster states.
        micro_batches: of a step, where the user fixes them.
    """

    objective: Objective = "throughput"
    time_limit_s: float | None = None
    most_judged: int = MOST_JUDGED
    keeps_interrupted: bool = False
    price_per_hour: float | None = None
    micro_batches: int | None = None


class _Ended(Exception):  # noqa: N818 - no fault: the time is up
    pass


@dataclass
class Search:
    """One search.

    Args:
        judge: plans and simulates.
        cluster: the machines.
        limits: how far it goes.
        is_training: stages and micro-batches are of a step of training alone.
        progress: is told before each piece of work how many plans were judged, the best one, and
            what is done next.
    """

    judge: Judge
    cluster: Cluster
    limits: Limits = field(default_factory=Limits)
    is_training: bool = True
    progress: Progress | None = None
    _judged: dict[Configuration, Judged] = field(default_factory=dict[Configuration, Judged])
    _considered: int = 0
    _began: float = field(default_factory=time.monotonic)

    def run(self, devices: int, pinned: Iterable[Configuration] = ()) -> Outcome:
        """Return the best configuration on so many devices.

        Args:
            devices: to use; for ``latency`` and ``cost`` the most.
            pinned: configurations that are planned for comparison, and may win.

        Raises:
            IrcError: ``plan-infeasible`` where nothing has a plan; what is wrong with the model.
        """
        ended, differences = "", ()
        try:
            for configuration in pinned:
                self._try(configuration, is_pinned=True)
            for count in self._counts(devices):
                self._on(count)
            differences = self._differences()
        except _Ended:
            ended = f"the time limit of {self.limits.time_limit_s:g} s"
        except KeyboardInterrupt:
            if not self.limits.keeps_interrupted or self._best() is None:
                raise
            ended = "an interrupt"
        best = self._best()
        if best is None:
            raise self._nothing(devices, ended)
        # What the search asked within less than the user allows need not be had.
        every = self._judged.values()
        shown = [own for own in every if own.verdict or own.configuration.memory_bytes is None]
        order = sorted(shown, key=self._cost)
        return Outcome(best, tuple(order), self._considered, ended, differences)

    def _differences(self) -> tuple[Difference, ...]:
        """Explain by how much the best is better than what the user stated.

        What is judged on the way from one to the other may be better still.
        """
        while (best := self._best()) is not None:
            stated = [own for own in self._judged.values() if own.is_pinned and own.verdict]
            found = [difference(own, best, self.judged) for own in stated if own is not best]
            if self._best() is best:
                return tuple(found)
        return ()

    def judged(self, configuration: Configuration) -> Judged:
        """Return what comes of a configuration, which is planned unless it was."""
        known = self._judged.get(configuration)
        return known or self._judge(configuration, is_pinned=False)

    def _counts(self, devices: int) -> list[int]:
        if self.limits.objective in ("throughput", "memory"):
            return [devices]
        return divisors(devices)[::-1]

    def _cost(self, judged: Judged) -> tuple[bool, float, int, int]:
        """Return what is least for the best."""
        own, wrong = judged.verdict, judged.objection != ""
        devices, count = judged.configuration.mesh.num_ranks, judged.configuration.micro_batches
        if own is None:
            return True, inf, 0, 0
        match self.limits.objective:
            case "memory":
                return wrong, float(own.num_bytes), devices, count
            case "cost":
                hourly = per_hour(self.cluster, devices, self.limits.price_per_hour) or devices
                return wrong, own.step_s * hourly, devices, count
            case _:
                return wrong, own.step_s, devices, count

    def _objection(self, configuration: Configuration, *, is_pinned: bool = False) -> str:
        """Return what is wrong with a step; a call has no stages to choose instead."""
        if not self.is_training:
            return ""
        return objection(configuration, self.cluster, is_pinned=is_pinned)

    def _best(self) -> Judged | None:
        planned = [each for each in self._judged.values() if each.verdict is not None]
        return min(planned, key=self._cost, default=None)

    def _on(self, devices: int) -> None:
        """Search on one number of devices."""
        most = len(self._judged) + self.limits.most_judged
        recompute, meshes = self._meshes(devices)
        ones = [Configuration(mesh, recompute=recompute) for mesh in meshes]
        # What an expert would not do is left for where nothing else fits.
        late = [each for each in ones if self._objection(each)]
        for place, each in enumerate(own for own in ones if own not in late):
            if place == 0 or len(self._judged) < most:
                self._try(each)
        if devices > 1 and self._are_indivisible(meshes, recompute):
            # Its samples are whole on every device, so that any batch will do.
            whole = Configuration(Mesh((("tensor", devices),)), recompute=recompute)
            if self._objection(whole):
                late.append(whole)
            else:
                self._try(whole)
        if not self.is_training:
            self._try_tighter(self._best())
            return
        outline = self.judge.outline()
        hands = customary(outline, self.cluster, devices)
        by_hand = [replace(each, recompute=recompute) for each in hands]
        seeds = self._seeds(outline, devices)
        for seed in (*seeds[:1], *by_hand, *seeds[1:]):
            if len(self._judged) < most:
                self._try(seed)
        if not self._fits(devices):
            smallest = self._smallest(outline, devices)
            late += [each for each in smallest if self._objection(each)]
            for least in (each for each in smallest if each not in late):
                if len(self._judged) < most and not self._fits(devices):
                    self._try(least)
            for last in late[:SEEDS]:
                if not self._fits(devices):
                    self._try(last)
        best = self._best()
        while best is not None and best.configuration.mesh.num_ranks == devices:
            for other in neighbours(best.configuration, outline):
                if len(self._judged) < most and (best.objection or not self._objection(other)):
                    self._try(other)
            if self._best() is best:
                self._try_tighter(best)
            if (now := self._best()) is best:
                return
            best = now

    def _try_tighter(self, best: Judged | None) -> None:
        """Plan the best within less than it holds: no budget is to give a faster plan than none."""
        if best is None or best.verdict is None:
            return
        within = tighter(best.configuration, best.verdict.num_bytes)
        if within is not None and within not in self._judged:
            self._judge(within, is_pinned=False)

    def _are_indivisible(self, meshes: Sequence[Mesh], recompute: str) -> bool:
        """True where meshes were tried, and each would have divided what does not divide so."""
        tried = [self._judged.get(Configuration(mesh, recompute=recompute)) for mesh in meshes]
        errors = [each.error for each in tried if each is not None]
        return bool(errors) and all(
            error is not None and error.code not in OF_MEMORY for error in errors
        )

    def _meshes(self, devices: int) -> tuple[str, Sequence[Mesh]]:
        """Return the best meshes of one program, and what it recomputes so that it fits."""
        if devices == 1:
            return NOTHING, [Mesh(())]
        if self.limits.micro_batches not in (None, 1):
            return NOTHING, []
        self._check_time()
        one = Configuration(Mesh((("data", devices),)))
        policies = (NOTHING, FULL) if self.is_training else (NOTHING,)
        for recompute in policies:
            self._tell(f"searching meshes of {devices} devices")
            try:
                return recompute, self.judge.meshes(devices, recompute)
            except IrcError as error:
                if error.code not in OF_CONFIGURATION:
                    raise
                if recompute != policies[-1]:
                    self._judged[one] = Judged(one, error=error)
        # It names the constraints in conflict, and the smallest budget.
        return policies[-1], [one.mesh]

    def _seeds(self, outline: Outline, devices: int) -> list[Configuration]:
        """Return what is planned first: the best of each mesh by the closed form, in order."""
        best: dict[Mesh, tuple[float, Configuration]] = {}
        for each in self._configurations(outline, devices):
            self._considered += 1
            if self._objection(each):
                continue
            seconds = estimated_s(outline, self.cluster, each)
            if each.mesh not in best or seconds < best[each.mesh][0]:
                best[each.mesh] = seconds, each
        order = sorted(best.values(), key=lambda own: (own[0], str(own[1])))
        return [each for seconds, each in order[:SEEDS] if seconds <= HOPELESS * order[0][0]]

    def _configurations(self, outline: Outline, devices: int) -> Iterator[Configuration]:
        every = configurations(outline, devices)
        return (each for each in every if self._is_allowed(each))

    def _is_allowed(self, configuration: Configuration) -> bool:
        return self.limits.micro_batches in (None, configuration.micro_batches)

    def _fits(self, devices: int) -> bool:
        every = self._judged.values()
        return any(own.verdict and own.configuration.mesh.num_ranks == devices for own in every)

    def _smallest(self, outline: Outline, devices: int) -> list[Configuration]:
        """Return of each mesh what holds least: all recomputed, in the most micro-batches.

        Where it fits, its neighbours have fewer.
        """
        most: dict[Mesh, Configuration] = {}
        for each in self._configurations(outline, devices):
            known = most.setdefault(each.mesh, each)
            if each.micro_batches > known.micro_batches:
                most[each.mesh] = each
        every = [replace(each, recompute=FULL) for each in most.values()]
        tried = [each.mesh for each, own in self._judged.items() if own.error]
        # First those meshes which the closed form likes.
        return sorted(every, key=lambda own: (own.mesh not in tried, str(own)))

    def _try(self, configuration: Configuration, *, is_pinned: bool = False) -> None:
        """Plan a configuration; where it does not fit, with everything recomputed."""
        if not is_pinned and not self._is_allowed(configuration):
            return
        attempts = [configuration]
        if self.is_training and not is_pinned:
            # What keeps less than nothing, and more than all, is a neighbour of the latter.
            attempts.append(replace(configuration, recompute=FULL))
        for each in attempts:
            judged = self._judged.get(each) or self._judge(each, is_pinned=is_pinned)
            if judged.error is None or judged.error.code not in OF_MEMORY:
                return

    def _judge(self, configuration: Configuration, *, is_pinned: bool) -> Judged:
        self._check_time()
        self._tell(f"planning {configuration}")
        try:
            if self.is_training:
                absent_batch(configuration, self.judge.outline())
            verdict = self.judge.judge(configuration)
            wrong = self._objection(configuration, is_pinned=is_pinned)
            judged = Judged(configuration, verdict, is_pinned=is_pinned, objection=wrong)
        except IrcError as error:
            if error.code not in OF_CONFIGURATION:
                raise
            judged = Judged(configuration, error=error, is_pinned=is_pinned)
        self._judged[configuration] = judged
        return judged

    def _tell(self, doing: str) -> None:
        if self.progress is not None:
            self.progress(len(self._judged), self._best(), doing)

    def _check_time(self) -> None:
        limit = self.limits.time_limit_s
        if limit is not None and self._judged and time.monotonic() - self._began >= limit:
            raise _Ended

    def _nothing(self, devices: int, ended: str) -> IrcError:
        """Return the error that says why nothing has a plan."""
        tried = [(each.configuration, each.error) for each in self._judged.values() if each.error]
        because = [f"{own}: {error.message}" for own, error in tried]
        short = [own for own, error in tried if error.code in OF_MEMORY]
        help_ = "use more devices, or a batch that they share equally"
        if ended:
            because.append(f"it ended at {ended}")
        elif short and (error := self._explained(short)) is not None:
            because += [note for note in error.because if note.startswith("group")]
            budgets = {own: smallest_budget(each) for own, each in tried}
            budgets[self._simplest(short)] = smallest_budget(error)
            known = [(least, own) for own, least in budgets.items() if least is not None]
            if known:
                least, own = min(known, key=lambda each: (each[0], *self._order(each[1])))
                help_ = f"{least} bytes do for {own}; or {help_}"
        return IrcError(
            "plan-infeasible",
            f"nothing that was tried has a plan on {devices} device{'s' if devices > 1 else ''}",
            because=because,
            help=help_,
        )

    def _simplest(self, short: Sequence[Configuration]) -> Configuration:
        """Return the configuration that is explained: of one program, with the most recompute."""
        return min(short, key=self._order)

    def _order(self, own: Configuration) -> tuple[bool, int]:
        return own.is_staged, {FULL: 0, NOTHING: 2}.get(own.recompute, 1)

    def _explained(self, short: Sequence[Configuration]) -> IrcError | None:
        """Return what is in conflict, and the smallest budget, of the simplest configuration."""
        try:
            self.judge.judge(self._simplest(short), brief=False)
        except IrcError as error:
            return error
        return None


def smallest_budget(error: IrcError) -> int | None:
    """Return the bytes that an error of memory says would do; None where it says none."""
    _, marker, rest = error.help.partition("memory_bytes=")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if marker and digits else None

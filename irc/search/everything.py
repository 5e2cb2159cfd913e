"""The search over everything that a user may choose of a step: the best configuration, judged.

Steps with stages or micro-batches are put in order by a closed form
(:mod:`irc.search.configurations`), best of each mesh; the first few are tried, then configurations
that differ from the best in one choice as long as that helps. Where one does not fit into the
memory, it is tried again with everything recomputed; where none fits, in the most micro-batches of
each mesh.

A step of a model of equal layers is tried on a few of them: its stages are put together from the
planned pieces (:mod:`irc.search.blocks`) and simulated. Only the best few are planned whole, and
the plans' simulated steps say which is the best: priced ones that are so much longer that the error
of prices does not make up for it are left alone. Where pieces say nothing, all that is tried is
planned whole, beside meshes of one program that the integer program finds
(:mod:`irc.search.meshes`) and what people lay out by hand.

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
    at_once,
    configurations,
    customary,
    divisors,
    estimated_s,
    neighbours,
    stored_split,
    tighter,
)
from irc.search.differences import Difference, difference
from irc.search.objections import absent_batch, objection

Objective: TypeAlias = Literal["throughput", "latency", "memory", "cost"]
OBJECTIVES: tuple[Objective, ...] = ("throughput", "latency", "memory", "cost")

OF_MEMORY = frozenset({"sharding-infeasible", "pipeline-memory"})
OF_CONFIGURATION = OF_MEMORY | {
    "chunk-whole", "mesh-axes", "mesh-axis-indivisible", "mesh-mismatch", "pipeline-stages",
    "pipeline-unsupported", "schedule-size",
}  # fmt: skip
"""Errors that say that one configuration cannot be; all others are of the model or the options."""

SEEDS = 4
"""So many configurations with stages or micro-batches are planned in the order of the estimates."""

MOST_JUDGED = 20
"""So many plans are made of steps on one number of devices."""

MOST_PRICED = 40
"""So many configurations on one number of devices are priced from pieces."""

BEHIND = 1.15
"""What seems to take so many times the best one is not priced: estimates are so far off."""

LEAST_KNOWN = 2
"""So many prices say by how much estimates are short of prices."""

PLANNED = 3
"""So many of them at most are planned whole, of those that have a plan."""

PRICE_ERROR = 0.05
"""Of the step of a whole plan: so far off are prices from pieces, as tests hold them to."""

NEAR = 1.25
"""An estimate of so many times that of the best one is not priced for being beside it."""

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
        is_priced: the verdict is put together from pieces of the model; nothing is planned whole.
        priced_s: what pieces said of one that was planned whole since; None where they did not.
    """

    configuration: Configuration
    verdict: Verdict | None = None
    error: IrcError | None = None
    is_pinned: bool = False
    objection: str = ""
    is_priced: bool = False
    priced_s: float | None = None


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
    """

    best: Judged
    judged: tuple[Judged, ...]
    considered: int
    ended: str = ""
    differences: tuple[Difference, ...] = ()
    priced: tuple[Judged, ...] = ()


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

    def in_pieces(self) -> bool:
        """Whether the model has layers that pieces of it can stand for."""
        ...

    def price(self, configuration: Configuration) -> Verdict | None:
        """Return what pieces of the model say of a configuration; None where they say nothing.

        Raises:
            IrcError: of the configuration, or of the model.
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
    _is_priced: bool = False
    _considered: int = 0
    _devices: int = 0
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
        self._devices = devices
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
        if best is not None and best.is_priced:
            # It ended before the first was planned whole, and the answer is a plan.
            self._plan_best(best.configuration.mesh.num_ranks, most=1)
            best = self._best()
        if best is None or best.is_priced:
            raise self._nothing(devices, ended)
        # What the search asked within less than the user allows need not be had.
        every = self._judged.values()
        others = {own.verdict for own in every if own.configuration.memory_bytes is None}
        shown = [
            own
            for own in every
            if own.configuration.memory_bytes is None or (own.verdict and own.verdict not in others)
        ]
        order = sorted(shown, key=self._cost)
        planned = tuple(own for own in order if not own.is_priced or own.verdict is None)
        priced = tuple(own for own in order if own.is_priced and own.verdict is not None)
        return Outcome(best, planned, self._considered, ended, differences, priced)

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
        if known is None or known.is_priced:
            return self._judge(configuration, is_pinned=False)
        return known

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
                return wrong, own.step_s * self._hourly(devices), devices, count
            case _:
                return wrong, own.step_s, devices, count

    def _hourly(self, devices: int) -> float:
        """Return what devices cost: money where all that there are have a price, or themselves."""
        price = self.limits.price_per_hour
        if per_hour(self.cluster, self._devices, price) is None:
            return devices
        return per_hour(self.cluster, devices, price) or devices

    def _objection(self, configuration: Configuration, *, is_pinned: bool = False) -> str:
        """Return what is wrong with a step; a call has no stages to choose instead."""
        if not self.is_training:
            return ""
        return objection(configuration, self.cluster, is_pinned=is_pinned)

    def _best(self) -> Judged | None:
        """Return the best of what was planned; while all are priced, of what was."""
        known = [each for each in self._judged.values() if each.verdict is not None]
        planned = [each for each in known if not each.is_priced]
        return min(planned or known, key=self._cost, default=None)

    def _on(self, devices: int) -> None:
        """Search on one number of devices."""
        if self.is_training and self._on_pieces(devices):
            return
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
        own = best.configuration
        split = stored_split(own) if self.is_training else None
        for within in (split, tighter(own, best.verdict.num_bytes)):
            known = None if within is None else self._judged.get(within)
            if within is not None and (known is None or known.is_priced):
                self._plan(within, is_pinned=False)

    def _on_pieces(self, devices: int) -> bool:
        """Search on one number of devices by prices from pieces; False where nothing came of it."""
        if not self.judge.in_pieces():
            return False
        outline, most = self.judge.outline(), len(self._judged) + MOST_PRICED
        self._is_priced = True
        try:
            self._climb(outline, devices, most)
        finally:
            self._is_priced = False
        if not self._plan_best(devices, min(PLANNED, self.limits.most_judged)):
            return False
        self._try_tighter(self._best())
        return True

    def _climb(self, outline: Outline, devices: int, most: int) -> None:
        """Price the first few by the closed form, then what differs from the best in one choice."""
        seeds = self._seeds(outline, devices)
        whole = [*customary(outline, self.cluster, devices), *at_once(outline, devices)]
        first = min((self._estimate(outline, seed) for seed in seeds), default=inf)
        near = [each for each in whole if self._estimate(outline, each) <= NEAR * first]
        order = sorted((*seeds, *near), key=lambda own: (self._estimate(outline, own), str(own)))
        for seed in order:
            if self._is_worth(outline, seed, devices, most) and not self._objection(seed):
                self._try(seed)
        if not self._fits(devices):
            smallest = [each for each in self._smallest(outline, devices)
                        if not self._objection(each)]  # fmt: skip
            for least in sorted(smallest, key=lambda own: self._estimate(outline, own)):
                if len(self._judged) < most and self._is_priced and not self._fits(devices):
                    self._try(least)
        best = self._best_priced(devices)
        while best and self._is_priced:
            own = best[0].configuration
            limit = NEAR * self._estimate(outline, own)
            for other in neighbours(own, outline):
                is_wrong = not best[0].objection and self._objection(other)
                is_near = self._estimate(outline, other) <= limit and not is_wrong
                if is_near and self._is_worth(outline, other, devices, most):
                    self._try(other)
            now = self._best_priced(devices)
            if now[0] is best[0]:
                return
            best = now

    def _is_worth(
        self, outline: Outline, configuration: Configuration, devices: int, most: int
    ) -> bool:
        """Whether to price a configuration.

        Not where even by the price that was least beside its estimate it would be far behind the
        best one.
        """
        if len(self._judged) >= most or not self._is_priced:
            return False
        known = self._best_priced(devices)
        if len(known) < LEAST_KNOWN or self.limits.objective not in ("throughput", "latency"):
            return True
        steps = [(each.configuration, each.verdict.step_s) for each in known if each.verdict]
        ratio = min(step_s / self._estimate(outline, own) for own, step_s in steps)
        return ratio * self._estimate(outline, configuration) < BEHIND * steps[0][1]

    def _estimate(self, outline: Outline, configuration: Configuration) -> float:
        return estimated_s(outline, self.cluster, configuration)

    def _best_priced(self, devices: int) -> list[Judged]:
        """Return what was priced on so many devices, best first."""
        own = [each for each in self._judged.values() if each.is_priced and each.verdict]
        return sorted(
            (each for each in own if each.configuration.mesh.num_ranks == devices), key=self._cost
        )

    def _plan_best(self, devices: int, most: int = PLANNED) -> bool:
        """Plan the best of what was priced; return whether one of them has a plan."""
        planned: list[Judged] = []
        for each in self._best_priced(devices):
            wrong, cost, *_ = self._cost(each)
            least = min(map(self._cost, planned), default=(True, inf))[:2]
            if len(planned) == most or (wrong, cost * (1 - PRICE_ERROR)) > least:
                break
            if planned:
                self._check_time()
            assert each.verdict is not None
            judged = self._plan(each.configuration, is_pinned=each.is_pinned)
            judged = replace(judged, priced_s=each.verdict.step_s)
            self._judged[each.configuration] = judged
            planned += [judged] if judged.verdict is not None else []
        return bool(planned)

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
            judged = self._judged.get(each)
            if judged is None or (judged.is_priced and not self._is_priced):
                judged = self._judge(each, is_pinned=is_pinned)
            if judged.error is None or judged.error.code not in OF_MEMORY:
                return

    def _judge(self, configuration: Configuration, *, is_pinned: bool) -> Judged:
        self._check_time()
        return self._plan(configuration, is_pinned=is_pinned)

    def _plan(self, configuration: Configuration, *, is_pinned: bool) -> Judged:
        """Price a configuration, or plan it whole, and note what came of it."""
        self._tell(f"{'pricing' if self._is_priced else 'planning'} {configuration}")
        try:
            if self.is_training:
                absent_batch(configuration, self.judge.outline())
            verdict, error = self._verdict(configuration), None
            wrong = self._objection(configuration, is_pinned=is_pinned)
        except IrcError as raised:
            if raised.code not in OF_CONFIGURATION:
                raise
            verdict, error, wrong = None, raised, ""
        judged = Judged(configuration, verdict, error, is_pinned, wrong, self._is_priced)
        self._judged[configuration] = judged
        return judged

    def _verdict(self, configuration: Configuration) -> Verdict:
        if self._is_priced:
            if (priced := self.judge.price(configuration)) is not None:
                return priced
            # Pieces say nothing: from here on all is planned whole.
            self._is_priced = False
        return self.judge.judge(configuration)

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
        if not tried and self.limits.micro_batches is not None:
            samples = self.judge.outline().samples
            because.append(
                f"the step is to have {self.limits.micro_batches} micro-batches, and nothing cuts "
                f"a batch of {samples} samples into so many"
            )
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

"""Looking for the order of a step that takes the least time, by the simulator of steps.

The functions of the stages stay as they are; what is chosen is in which order each rank runs them,
and for how many actions a message has a slot before it is read (*ahead*): with more slots a slow
link is given the next message while the one before is waited for. The most promising orders
(:mod:`irc.schedule.shortlist`) are simulated within the memory of their ranks, and the best one is
changed where its ranks idle for as long as the number of simulations allows. Deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from irc.errors import IrcError
from irc.schedule.actions import Schedule
from irc.schedule.named import generate
from irc.schedule.shortlist import changes, is_like, plays, shortlist
from irc.schedule.tape_writer import tapes_of
from irc.schedule.timeline import Times
from irc.simulate.costs import Transfer
from irc.simulate.priced import Priced
from irc.simulate.schedule import Simulation

WORK = 9000
"""Actions that are simulated in a search, about: they take a second on one core."""
LEAST, MOST = 6, 120
"""Orders that are simulated at least, and at most."""
AHEAD = (1, 2, 3, 4)
"""For how many actions a message may have a slot before it is read."""
COMPARED = ("1f1b", "zb-h1", "zb-h2")
"""Schedules by name that a choice is compared with: it is never slower in the simulation."""
OF_ORDERS = frozenset({"schedule-deadlock", "schedule-order", "schedule-slots", "schedule-size"})
"""Errors that say that one order cannot be."""


@dataclass(frozen=True)
class Order:
    """An order of a step that was simulated.

    Attributes:
        schedule: the order.
        ahead: for how many actions a message has a slot before it is read.
        origin: where it comes from: a schedule's name, or how it was made.
        simulation: of the step.
        held_bytes: by rank, all that it holds.
    """

    schedule: Schedule
    ahead: int
    origin: str
    simulation: Simulation
    held_bytes: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """What the step takes."""
        return self.simulation.seconds


@dataclass(frozen=True)
class Orders:
    """What a search of orders chose.

    Attributes:
        best: the order that takes the least time.
        named: seconds of the step under schedules with a name, of those that fit.
        tried: orders that were simulated.
    """

    best: Order
    named: Mapping[str, float]
    tried: int


@dataclass
class Search:
    """A search of the orders of a step.

    Attributes:
        step: what its parts take.
        like: an order of the same stages on the same ranks.
        fixed: by rank, bytes that it holds in any order: weights, and what functions work in.
        budgets: by rank, bytes that it may hold; None: any.
        named: seconds of the step by name, added to.
        tried: orders that were simulated.
    """

    step: Priced
    like: Schedule
    fixed: Sequence[float]
    budgets: Sequence[float | None]
    named: dict[str, float] = field(default_factory=dict[str, float])
    tried: int = 0

    def best(self, names: Mapping[str, Schedule]) -> Order | None:
        """Return the best order; None where none fits.

        Args:
            names: schedules with a name that are compared, in the form of ``like``.
        """
        best = None
        if all(schedule.ranks != self.like.ranks for schedule in names.values()):
            # Its memory is known to be enough where a plan was made in it; no other one's is.
            best = self._tried(self.like, 1, self.like.name or "a list")
        for name, schedule in names.items():
            order = self._tried(schedule, 1, name)
            if order is not None:
                self.named[name] = order.seconds
                best = _better(best, order)
        first: list[Order] = []
        for origin, schedule in self._shortlist()[: self._most // 2]:
            order = None
            for ahead in (AHEAD[1], AHEAD[0]) if self._times.transfer else (AHEAD[0],):
                order = order or self._tried(schedule, ahead, origin)
            if order is not None:
                first.append(order)
        for order in sorted(first, key=lambda order: order.seconds)[:3]:
            best = _better(best, order)
            for ahead in AHEAD if self._times.transfer else ():
                if ahead != order.ahead and self.tried < self._most:
                    best = _better(best, self._tried(order.schedule, ahead, order.origin))
        return best if best is None else self._improved(best)

    @cached_property
    def _joined(self) -> Priced:
        return self.step.joined()

    @cached_property
    def _most(self) -> int:
        """How many orders are simulated at most."""
        return max(LEAST, min(MOST, WORK // max(1, sum(map(len, self.like.ranks)))))

    @cached_property
    def _times(self) -> Times:
        """What stages take, and a message on the slowest way."""
        costs, stages = self.step.costs, self.like.num_stages
        times = [[costs.stage(s).of(kind) for s in range(stages)] for kind in "FIWB"]
        ways = list(self._messages())
        return Times(
            *times,
            transfer=max((way.seconds + way.latency_s for way in ways), default=0.0),
            wire=max((way.seconds for way in ways), default=0.0),
            shares_ports=self.step.device is not None,
        )

    def _messages(self) -> Iterator[Transfer]:
        """Yield what goes between two stages after a function, as one message."""
        whole: dict[tuple[int, int], list[Transfer]] = {}
        for route in self.step.wiring.routes:
            ends = route.producer, route.consumer
            if self.like.rank_of[ends[0]] != self.like.rank_of[ends[1]]:
                whole.setdefault(ends, []).append(self.step.ways(route.name, *ends))
        for ways in whole.values():
            latency = max(way.latency_s for way in ways)
            yield Transfer(sum(way.seconds for way in ways), latency)

    def _shortlist(self) -> list[tuple[str, Schedule]]:
        limits, share = self._limits()
        return shortlist(self._times, self.like, limits, share)

    def _limits(self) -> tuple[tuple[float, ...], float]:
        """Return about how many micro-batches' activations ranks can hold, and W's part of them."""
        saved = [0.0] * len(self.like.ranks)
        until_weights = whole = 0.0
        for stage, functions in enumerate(self.step.wiring.functions):
            makes = functions["F"].makes if "F" in functions else ()
            late = functions["W"].reads if "W" in functions else ()
            for name in makes:
                size = self.step.sizes.get((stage, name), 0.0)
                saved[self.like.rank_of[stage]] += size
                whole += size
                until_weights += size if name in late else 0.0
        count = float(self.like.num_micro_batches)
        # What is moved out has a few slots in any order.
        has_few = self.step.moves is not None
        limits = tuple(
            count
            if budget is None or not size or has_few
            else max(1.0, min(count, (budget - held) / size))
            for size, held, budget in zip(saved, self.fixed, self.budgets, strict=True)
        )
        return limits, until_weights / whole if whole else 0.0

    def _tried(self, schedule: Schedule, ahead: int, origin: str) -> Order | None:
        """Simulate an order; None where it does not fit, or where ranks wait for ever."""
        try:
            tapes = tapes_of(schedule, self._joined.wiring, ahead=ahead)
        except IrcError as error:
            if error.code not in OF_ORDERS:
                raise
            return None
        sizes = self._joined.sizes
        held = tuple(
            own + sum(count * sizes.get(key, 0.0) for key, count in tape.slots.items())
            for own, tape in zip(self.fixed, tapes, strict=True)
        )
        limits = zip(held, self.budgets, strict=True)
        if any(budget is not None and most > budget for most, budget in limits):
            return None
        self.tried += 1
        return Order(schedule, ahead, origin, self._joined.simulate(schedule, tapes), held)

    def _improved(self, best: Order) -> Order:
        """Change the order where ranks idle, for as long as that helps."""
        origin = f"{best.origin}, improved"
        looked = self.tried
        while looked < self._most:
            for changed in changes(best.simulation.played()):
                looked += 1
                order = None
                if plays(changed, self._times):
                    order = self._tried(changed, best.ahead, origin)
                if order is not None and order.seconds < best.seconds * (1 - 1e-9):
                    best = order
                    break
                if looked >= self._most:
                    return best
            else:
                return best
        return best


def _better(best: Order | None, other: Order | None) -> Order | None:
    """Return the faster of two orders; of two that take as long, the one that holds less."""
    if other is None or best is None:
        return best if other is None else other
    if abs(other.seconds - best.seconds) <= 1e-9 * best.seconds:
        return other if max(other.held_bytes) < max(best.held_bytes) else best
    return other if other.seconds < best.seconds else best


def compared(like: Schedule) -> dict[str, Schedule]:
    """Return the schedules by name that a choice is compared with, of those that are of a form."""
    named: dict[str, Schedule] = {}
    ranks, count = len(like.ranks), like.num_micro_batches
    chunks = like.num_stages // ranks
    for name in COMPARED if chunks == 1 else (f"interleaved:{chunks}", "zb-v"):
        try:
            schedule = generate(name, ranks=ranks, micro_batches=count)
        except IrcError:
            continue  # it does not exist in these sizes
        if is_like(schedule, like):
            named[name] = schedule
    return named


def best_of(searches: Sequence[Search], names: Sequence[Mapping[str, Schedule]]) -> Orders | None:
    """Return the best order of several forms of a step; None where none fits.

    Args:
        searches: of each form, as with whole and with split backwards.
        names: of each, the schedules with a name that are compared.
    """
    best, named, tried = None, dict[str, float](), 0
    for search, own in zip(searches, names, strict=True):
        best = _better(best, search.best(own))
        named |= search.named
        tried += search.tried
    if best is None:
        return None
    return Orders(best, named, tried)

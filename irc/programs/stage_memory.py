"""Whether the ranks of a pipeline have the memory that its stages and its schedule need.

What a rank holds is known before it runs: what it loads, slots x bytes of what functions hand on,
and the largest arena. Stages on one rank share its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.errors import IrcError
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.schedule.actions import Schedule
from irc.search.on_mesh import budget_bytes
from irc.simulate.parts import Held, held_at
from irc.training.stage_runs import StageRuns


def budget_of(options: Options) -> int:
    """Return the bytes that a rank may hold: as the user says, or what the cluster's devices have.

    Args:
        options: of a stage.
    """
    if options.memory_bytes is not None:
        return options.memory_bytes
    cluster = find_cluster(options.cluster)
    return budget_bytes(ClusterCost(cluster, options.mesh, within=options.within))


def shares_of(
    plan: PartsPlan, budgets: Sequence[int], searches: Sequence[Mapping[str, Any]]
) -> list[int | None] | None:
    """Return what each part may hold so that those of one rank fit together; None where they do.

    A search knows bytes without alignment, and not which collectives of an update will be under way
    at a time, so that a part alone may be over, too.

    Args:
        plan: whose parts may each take the whole budget.
        budgets: of a rank at each place of the pipe axis.
        searches: by part, what the search says of it; the same of those made from one.

    Returns:
        Bytes by part; None for one that may go on to take the whole budget.
    """
    if plan.part_mesh.num_ranks == 1:
        return None
    shares: list[int | None] = [None] * len(plan.parts)
    unseen = _Unseen(plan, searches)
    for place, budget in enumerate(budgets):
        parts, held = plan.parts_at(place), held_at(plan, place)
        if held.num_bytes() <= budget:
            continue
        if len(parts) == 1:
            part = next(iter(parts.values()))
            # All that are made from one are over by as much, and are one again.
            shares[part] = _least(shares[part], budget - unseen.num_bytes(part, budget))
            continue
        own = {
            part: _of_part(plan, part) + _registers(held, [stage]) for stage, part in parts.items()
        }
        for part, size in own.items():
            # One part's arena is the others' too.
            share = (budget - held.arena) * size / sum(own.values())
            shares[part] = _least(shares[part], int(share + held.arena))
    return shares if any(own is not None for own in shares) else None


def _least(known: int | None, num_bytes: int) -> int:
    return num_bytes if known is None else min(known, num_bytes)


@dataclass(frozen=True)
class _Unseen:
    """Bytes that searches of parts do not know of."""

    plan: PartsPlan
    searches: Sequence[Mapping[str, Any]]

    def num_bytes(self, part: int, budget: int) -> int:
        """Return by how much more a part holds than its search says, or than its budget.

        Args:
            part: alone on its ranks.
            budget: of its ranks; it holds more.
        """
        search = self.searches[part]
        # What is made from another part may have fewer slots than the search that it goes by.
        first = next(i for i, other in enumerate(self.searches) if other is search)
        held = held_at(self.plan, self.plan.place_of(first)).num_bytes()
        said = search.get("bytes_held")
        if said is None or said >= held:
            return held_at(self.plan, self.plan.place_of(part)).num_bytes() - budget
        return held - said


def _of_part(plan: PartsPlan, part: int) -> float:
    weights = {
        loaded.plan.buffers[index].name: loaded.plan.buffers[index].size_bytes
        for loaded in plan.parts[part].values()
        for index in loaded.plan.weights
    }
    return float(sum(weights.values()))


def _registers(held: Held, stages: Sequence[int]) -> float:
    return sum(n * size for (stage, _), (n, size) in held.registers.items() if stage in stages)


def check_memory(plan: PartsPlan, budgets: Sequence[int], stored: int | None = None) -> None:
    """Check that every rank holds no more than it has.

    Args:
        plan: the plan.
        budgets: bytes at any moment, by place of the pipe axis.
        stored: bytes of weights, states and sums of gradients; None for any.

    Raises:
        IrcError: ``pipeline-memory`` with the fewest bytes and the most micro-batches in flight
            that work.
    """
    held = [held_at(plan, place) for place in range(len(plan.ranks))]
    place = max(range(len(held)), key=lambda place: held[place].num_bytes() - budgets[place])
    worst, budget = held[place], budgets[place]
    _check_stored(plan, held, stored)
    if worst.num_bytes() <= budget:
        return
    stages = ", ".join(map(str, sorted(plan.parts_at(place))))
    flight = max((count for count, _ in worst.registers.values()), default=1)
    registers = _registers(worst, sorted(plan.parts_at(place)))
    fitting = most_in_flight(flight, lambda most: worst.num_bytes(most) <= budget)
    raise IrcError(
        "pipeline-memory",
        f"a rank of stage {stages} holds {worst.num_bytes()} bytes, and may hold {budget}",
        because=[
            f"weights, states and sums of gradients: {int(worst.weights)} bytes",
            f"{flight} slots of what functions hand on: {int(registers)} bytes",
            f"what functions work in: {int(worst.arena)} bytes",
        ],
        help=_advice(worst.num_bytes(), fitting, moves=not plan.facts.offload and flight > 3),
    )


def _check_stored(plan: PartsPlan, held: Sequence[Held], stored: int | None) -> None:
    place = max(range(len(held)), key=lambda place: held[place].weights)
    least = int(held[place].weights)
    if stored is None or least <= stored:
        return
    stages = ", ".join(map(str, sorted(plan.parts_at(place))))
    raise IrcError(
        "pipeline-memory",
        f"a rank of stage {stages} holds {least} bytes all the time, and may hold {stored}",
        because="those are weights, states and sums of gradients",
        help=f"the smallest budget that works is stored_bytes={least}; more stages, or an axis "
        "beside pipe, hold less each",
    )


def too_small(
    error: IrcError, stage: int, schedule: Schedule, runs: StageRuns, fits: Callable[[int], bool]
) -> IrcError:
    """Return the error of a stage for which no placement fits.

    Args:
        error: of the search, with the smallest budget.
        stage: which.
        schedule: of all.
        runs: how it runs the stage.
        fits: whether a placement fits with so many slots at most.
    """
    flight = max(runs.slots.values(), default=1)
    fitting = most_in_flight(flight, fits)
    return IrcError(
        "pipeline-memory",
        f"stage {stage}: {error.message}",
        because=[
            *error.because,
            f"schedule '{schedule.name or 'of a file'}' keeps up to {flight} micro-batches of it",
        ],
        help=f"{error.help}; {_slots_text(fitting)}",
    )


def most_in_flight(flight: int, fits: Callable[[int], bool]) -> int:
    """Return the most slots below ``flight`` that fit, 0 for none: fewer never need more."""
    low, high = 0, flight
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _advice(least: int, fitting: int, *, moves: bool) -> str:
    # One of each value is used, one on its way out, and one on its way back.
    other = '; or keep three of them at most by offload="disk"' if moves else ""
    return f"the smallest budget that works is memory_bytes={least}; {_slots_text(fitting)}{other}"


def _slots_text(fitting: int) -> str:
    if not fitting:
        return "no schedule fits into this one: a single slot of each value is too much"
    return f"with this one, a schedule that keeps at most {fitting} micro-batches at a time fits"

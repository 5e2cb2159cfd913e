"""How a schedule runs each stage: how often, and in how many places what functions hand on lies.

Slots depend on the schedule and on which functions make and read a value, not on how it is placed:
they are known before a stage is searched, from the functions that it will be split into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from irc.dialects.builder import arguments, entry, results
from irc.programs.stage_step import GRADIENT, StageStep
from irc.schedule.actions import Schedule
from irc.schedule.tape_writer import tapes_of
from irc.schedule.tapes import Function, Route, Wiring
from irc.training.call_parts import split_calls
from irc.training.functions import split_functions
from irc.training.stage_runs import MICRO_BATCH, StageRuns, between
from irc.training.stages import BOUNDARY, Crossing


def runs_of_stages(
    schedule: Schedule,
    steps: Sequence[StageStep],
    crossings: Sequence[Crossing],
    splits: Sequence[bool],
) -> list[StageRuns]:
    """Return how each stage's functions run on a rank of it.

    Args:
        schedule: of all ranks.
        steps: of the stages, level flow; they stay as they are.
        crossings: what goes between them.
        splits: by stage, whether backward is I and W.

    Raises:
        IrcError: ``schedule-order``, ``schedule-deadlock``.
    """
    functions = [_functions(step, is_split) for step, is_split in zip(steps, splits, strict=True)]
    routes = [
        Route(name, producer, consumer, register)
        for crossing in crossings
        for name, producer, consumer in ways_of(crossing, steps)
        if any(name in f.reads for f in functions[consumer].values())
        for register in [_register(steps[producer], name)]
    ]
    wiring = Wiring(tuple(functions), tuple(routes), frozenset(route.name for route in routes))
    tapes = tapes_of(schedule, wiring)
    found: list[StageRuns] = []
    for part, is_split in enumerate(splits):
        taken = [path[part] for path in schedule.paths]
        names = {n for f in functions[part].values() for n in (*f.reads, *f.makes)}
        slots = {
            name: max(
                tapes[schedule.rank_of[stage]].slots.get((stage, name), 0) for stage in set(taken)
            )
            for name in sorted(names)
        }
        # Two copies of a model have some of the micro-batches each.
        most = max(map(taken.count, taken))
        found.append(StageRuns(most, merged=not is_split, slots=slots))
    return found


def ways_of(crossing: Crossing, steps: Sequence[StageStep]) -> list[tuple[str, int, int]]:
    """Return the name, producer and consumer of a value, and of its gradient where one goes."""
    ways = [(crossing.name, crossing.producer, crossing.consumer)]
    back = f"{GRADIENT}{crossing.name}"
    if back in steps[crossing.consumer].sent:
        ways.append((back, crossing.consumer, crossing.producer))
    return ways


def _functions(step: StageStep, is_split: bool) -> Mapping[str, Function]:
    """Return what functions hand on: by name what crosses stages, the rest by who reads it last."""
    module = step.module.clone()
    if is_split:
        split_calls(module)
    found = split_functions(module, splits_backward=is_split).modules
    kinds = [kind for kind in found if kind in MICRO_BATCH]
    pairs = list(combinations(kinds, 2))
    made: dict[str, Function] = {}
    for kind in kinds:
        func = entry(found[kind])
        reads = [name for role, name, _ in arguments(func) if role == BOUNDARY]
        makes = [name for role, name in results(func) if role == BOUNDARY]
        # What crosses stages, and is read again in its own.
        reads += [n for role, n, _ in arguments(func) if role == "saved" and _crosses(n)]
        made[step.kinds.get(kind, kind)] = Function(
            (*reads, *(between(*pair) for pair in pairs if pair[1] == kind)),
            (*makes, *(between(*pair) for pair in pairs if pair[0] == kind)),
        )
    return made


def _crosses(name: str) -> bool:
    return name.startswith(("cut", GRADIENT))


def _register(step: StageStep, name: str) -> str:
    """Return under which name a stage hands on a value: one that goes to two has the first's."""
    func = entry(step.module)
    end = func.body.block.last_op
    assert end is not None
    named = zip(results(func), end.operands, strict=True)
    sent = {n: value for (role, n), value in named if role == BOUNDARY}
    return next(n for n, value in sent.items() if value is sent[name])

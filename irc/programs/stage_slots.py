"""How a schedule runs each stage: how often, and in how many places what functions hand on lies.

Slots depend on the schedule and on which functions make and read a value, not on how it is placed:
they are known before a stage is searched, from the functions that it will be split into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry, results
from irc.programs.offload import moving_all
from irc.programs.skips import Way
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
    around: Sequence[Way] = (),
    *,
    moves: bool = False,
) -> list[StageRuns]:
    """Return how each stage's functions run on a rank of it.

    Args:
        schedule: of all ranks.
        steps: of the stages, level flow; they stay as they are.
        crossings: what goes between them.
        splits: by stage, whether backward is I and W.
        around: ways around stages that micro-batches skip.
        moves: whether values leave their slots while no function uses them.

    Raises:
        IrcError: ``schedule-order``, ``schedule-deadlock``.
    """
    functions = [_functions(step, is_split) for step, is_split in zip(steps, splits, strict=True)]
    ways = [way for crossing in crossings for way in ways_of(crossing, steps)]
    routes = [
        Route(way.name, way.producer, way.consumer, register, way.over)
        for way in (*ways, *around)
        if any(way.name in f.reads for f in functions[way.consumer].values())
        for register in [_register(steps[way.producer], way.sent)]
    ]
    wiring = Wiring(tuple(functions), tuple(routes), frozenset(route.name for route in routes))
    tapes = tapes_of(schedule, moving_all(wiring) if moves else wiring)
    runs: list[StageRuns] = []
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
        skipped = sum(part in each for each in schedule.skips)
        most = max(map(taken.count, taken)) - skipped
        runs.append(StageRuns(most, merged=not is_split, slots=slots))
    return runs


def ways_of(crossing: Crossing, steps: Sequence[StageStep]) -> list[Way]:
    """Return the ways of a value, and of its gradient where one goes."""
    name, back = crossing.name, f"{GRADIENT}{crossing.name}"
    ways = [Way(name, crossing.producer, crossing.consumer, name)]
    if back in steps[crossing.consumer].sent:
        ways.append(Way(back, crossing.consumer, crossing.producer, back))
    return ways


def _functions(step: StageStep, is_split: bool) -> Mapping[str, Function]:
    """Return what functions hand on: by name what crosses stages, the rest by who reads it last."""
    if is_split:
        module = step.module.clone()
        split_calls(module)
    else:
        module = ModuleOp([entry(step.module).clone()])
    modules = split_functions(module, splits_backward=is_split, entries_alone=True).modules
    kinds = [kind for kind in modules if kind in MICRO_BATCH]
    pairs = list(combinations(kinds, 2))
    functions: dict[str, Function] = {}
    for kind in kinds:
        func = entry(modules[kind])
        reads = [name for role, name, _ in arguments(func) if role == BOUNDARY]
        makes = [name for role, name in results(func) if role == BOUNDARY]
        # What crosses stages, and is read again in its own.
        reads += [n for role, n, _ in arguments(func) if role == "saved" and _crosses(n)]
        functions[step.kinds.get(kind, kind)] = Function(
            (*reads, *(between(*pair) for pair in pairs if pair[1] == kind)),
            (*makes, *(between(*pair) for pair in pairs if pair[0] == kind)),
        )
    return functions


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

"""The functions of all stages, placed and planned, within the memory of their ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry
from irc.dialects.placement import Mesh, Placement
from irc.errors import IrcError
from irc.passes.slice_batch import SliceBatchPass
from irc.pipeline import Options, run_passes
from irc.pipeline.default import passes_by_part
from irc.pipeline.make import (
    function_plan,
    lower_function,
    lowered_plan,
    named_to_cut,
)
from irc.pipeline.places import chosen, of_one_rank
from irc.pipeline.preload import preload
from irc.plan.load import LoadedPlan
from irc.plan.schema import placement_of
from irc.plan.training import SPLIT
from irc.plugin import parse_passes
from irc.programs.equal_stages import Names, Renaming
from irc.programs.placing import Stage, placed
from irc.programs.renamed_plan import renamed_plan
from irc.programs.stage_memory import budget_of, too_small
from irc.programs.stage_step import StageStep
from irc.schedule.actions import Schedule
from irc.search.ahead import Ahead
from irc.search.children import can_fork, most_processes
from irc.search.shared import sharing
from irc.sharding.chunk_pins import refuse_unknown
from irc.training.functions import Functions, split_functions
from irc.training.stage_runs import StageRuns

LIMIT_COSTS = 1e-3
"""A plan that the memory makes dearer by this part at most is as good as one that it does not."""


@dataclass(frozen=True)
class StagePlan:
    """One stage, planned.

    Attributes:
        registers: of what crosses functions, by the name of what is sent
            (:class:`irc.training.functions.Functions`).
        plans: of each function, by kind.
        collectives: ids of those that are cut by name, where some are.
        search: what the search says of it; empty where there was nothing to choose.
    """

    registers: Mapping[str, str]
    plans: Mapping[str, LoadedPlan]
    collectives: frozenset[str]
    search: Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """A stage that was planned, which equal ones are made from."""

    names: Names
    runs: StageRuns
    plan: StagePlan

    def serves(self, names: Names, runs: StageRuns, budget: int) -> bool:
        """Return whether a stage of the same text has the same plan.

        The cheapest plan is that of both, whatever slots they have, where it fits into the memory.
        Where it did not fit, one that keeps less may do better with what it has left, unless what
        fits is as cheap.
        """
        search = self.plan.search
        if not search:
            return True
        renaming = self.names.to(names)
        own = {renaming.value(name): count for name, count in self.runs.slots.items()}
        is_dear = search["bytes_limit"] is not None and search.get("limit_costs", 1) > LIMIT_COSTS
        if is_dear or set(own) != set(runs.slots):
            return own == runs.slots
        more = max((runs.slots[name] / max(n, 1) for name, n in own.items()), default=1.0)
        return search["bytes_held"] * max(more, 1.0) <= budget


KnownStages: TypeAlias = dict[object, list[Known]]
"""Stages that were planned, by what equal ones have in common."""


def plan_stages(
    steps: Sequence[StageStep],
    runs: Sequence[StageRuns],
    options: Options,
    pins: Sequence[str],
    shared: Collection[str],
    schedule: Schedule,
    budgets: Sequence[int | None] | None = None,
    clusters: Sequence[str] = (),
    known: KnownStages | None = None,
) -> list[StagePlan]:
    """Place and plan every stage, the first one first.

    Args:
        steps: of the stages, level flow; they stay as they are.
        runs: how the schedule runs each.
        options: of a stage.
        pins: what the user fixes of each.
        shared: weights that several stages have: later ones put them where the first did.
        schedule: of all.
        budgets: bytes that a rank may hold of each; None: all that it may hold.
        clusters: what each sees, where stages are on unequal devices; by default that of options.
        known: stages that were planned before, under other budgets; added to.

    Raises:
        IrcError: ``pipeline-memory``; ``option-value`` where micro-batches are to be sliced; what
            the passes raise.
    """
    _refuse_slices(options)
    known = {} if known is None else known
    lying: dict[str, str] = {}
    planned: list[StagePlan] = []

    def stage(number: int) -> Stage:
        here = {name for _, name, _ in arguments(entry(steps[number].module))}
        own = [f'"{name}" = {where}' for name, where in lying.items() if name in here]
        budget = None if budgets is None else budgets[number]
        budget = options.memory_bytes if budget is None else budget
        text = "\n".join(filter(None, [pins[number], *own]))
        cluster = clusters[number] if clusters else options.cluster
        chosen = replace(options, memory_bytes=budget, pins=text, cluster=cluster)
        return Stage.of(number, steps[number], runs[number], chosen)

    # Within a budget a search may take minutes, and the first stage that does not fit ends it all.
    is_bound = options.memory_bytes is not None or budgets is not None
    first = [] if shared or is_bound else [stage(number) for number in range(len(steps))]
    # Tiles are timed by one process at a time.
    with Ahead(begins=not options.tune) as ahead, sharing():
        if can_fork() and not options.tune:
            # What is said of stages is in the cut by now, and no pass of a stage takes it.
            preload(replace(options, pins=""))
            _plan_ahead(first, schedule, ahead)
        for number in range(len(steps)):
            own = first[number] if first else stage(number)
            budget = own.options.memory_bytes
            if budget is None:
                budget = budget_of(replace(options, cluster=own.options.cluster))
            equal = next(
                (k for k in known.get(own.key, ()) if k.serves(own.names, own.runs, budget)), None
            )
            if equal is not None:
                plan = _renamed(equal.plan, equal.names.to(own.names))
            else:
                plan = ahead.take(number, partial(_plan_stage, own, schedule, ahead))
                known.setdefault(own.key, []).append(Known(own.names, own.runs, plan))
            planned.append(plan)
            lying |= {n: p for n, p in _weight_placements(plan.plans).items() if n in shared}
    if only := named_to_cut(passes_by_part(replace(options, pins="")).function):
        # What no function of a stage has, the program has not.
        ids = {name for plan in planned for name in plan.collectives}
        refuse_unknown(only, ids, ids)
    return planned


def _plan_ahead(stages: Sequence[Stage], schedule: Schedule, ahead: Ahead) -> None:
    """Plan distinct stages in child processes, and as many in this one.

    Of equal stages the first is planned. The last one that is left is planned here: its functions
    are shared out.
    """
    left = [*{own.key: own for own in reversed(stages)}.values()]
    left.sort(key=lambda own: own.number)
    while left:
        for _ in range(min(most_processes(), len(left)) - 1):
            own = left.pop(0)
            ahead.begin(own.number, partial(_plan_stage, own, schedule, ahead))
        own = left.pop(0)
        ahead.prepare(own.number, partial(_plan_stage, own, schedule, ahead))


def _plan_stage(own: Stage, schedule: Schedule, ahead: Ahead) -> StagePlan:
    """Plan a stage; child processes plan functions of it where processors are idle.

    Raises:
        IrcError: ``pipeline-memory``; what the passes raise.
    """
    plain = replace(own.options, pins="")
    alone = replace(plain, mesh=Mesh(()), passes=tuple(of_one_rank(plain.passes)))
    functions, search = _place(own, schedule)
    batch = {kind: _whole_plan(m.clone(), alone) for kind, m in own.step.batch.items()}

    def job(kind: str) -> Callable[[], _Function]:
        return partial(_plan_function, functions.modules[kind], plain)

    sizes = {kind: sum(1 for _ in module.walk()) for kind, module in functions.modules.items()}
    for kind in sorted(sizes, key=sizes.__getitem__, reverse=True):
        ahead.begin((own.number, kind), job(kind))
    each = {kind: ahead.take((own.number, kind), job(kind)) for kind in functions.modules}
    plans = {kind: function.plan for kind, function in each.items()}
    named = frozenset(name for function in each.values() for name in function.collectives)
    return StagePlan(functions.registers, {**plans, **batch}, named, search)


def _refuse_slices(options: Options) -> None:
    """Refuse slices of a batch: a step of stages goes in micro-batches, each of which stays whole.

    Raises:
        IrcError: ``option-value``.
    """
    own, _ = chosen(options.passes)
    for each in (each for text in own for each in parse_passes(text)):
        if isinstance(each, SliceBatchPass):
            replace(each, is_part=True).check()


def _renamed(plan: StagePlan, names: Renaming) -> StagePlan:
    """Return the plan of a stage that differs from a planned one in names alone."""
    registers = {
        names.value(name): names.value(register) for name, register in plan.registers.items()
    }
    plans = {kind: renamed_plan(each, names) for kind, each in plan.plans.items()}
    return StagePlan(registers, plans, frozenset(map(names.op, plan.collectives)), plan.search)


def _place(own: Stage, schedule: Schedule) -> tuple[Functions, Mapping[str, Any]]:
    """Place a stage on its mesh as a schedule runs it, and split it into functions."""
    step, runs = own.step, own.runs

    def fits(slots: int) -> bool:
        fewer = {name: min(count, slots) for name, count in runs.slots.items()}
        try:
            placed(step, own.options, replace(runs, slots=fewer))
        except IrcError as error:
            if error.code != "sharding-infeasible":
                raise
            return False
        return True

    try:
        module, search = placed(step, own.options, runs)
    except IrcError as error:
        # Pins that contradict each other are no matter of slots.
        if error.code != "sharding-infeasible" or "memory_bytes" not in error.help:
            raise
        raise too_small(error, own.number, schedule, runs, fits) from error
    functions = split_functions(module, splits_backward=not runs.merged)
    named = {step.kinds.get(kind, kind): each for kind, each in functions.modules.items()}
    return replace(functions, modules=named), search


@dataclass(frozen=True)
class _Function:
    """A function of a stage, planned, and ids of its collectives that are cut by name."""

    plan: LoadedPlan
    collectives: frozenset[str]


def _plan_function(module: ModuleOp, options: Options) -> _Function:
    passes = passes_by_part(options).function
    lowered = lower_function(module, passes, options, SPLIT)
    return _Function(lowered_plan(lowered, options), lowered.collectives)


def _weight_placements(part: Mapping[str, LoadedPlan]) -> dict[str, str]:
    """Return how weights lie: a stage that reads one of them too has to put it there."""
    placements: dict[str, str] = {}
    for loaded in part.values():
        plan = loaded.plan
        for index in plan.weights:
            buffer = plan.buffers[index]
            placement = placement_of(buffer)
            if buffer.role != "parameter" or not plan.device_mesh.axes:
                continue
            whole = Placement.replicated(plan.device_mesh.names)
            placements[buffer.name] = str(placement if placement.axes else whole)
    return placements


def _whole_plan(module: ModuleOp, options: Options) -> LoadedPlan:
    """Plan a function that every rank computes whole."""
    _, before, after = passes_by_part(options)
    run_passes(module, before, verify_each=options.verify_each)
    return function_plan(module, after, options)

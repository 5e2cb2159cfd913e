"""From the captured forward pass of one micro-batch to a plan of several programs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from xdsl.dialects.builtin import ModuleOp

from irc.constraints.layouts import TENSOR
from irc.constraints.pins import constraint_text
from irc.constraints.stages import fixed_stages, parse_stages
from irc.constraints.steps import names_ops
from irc.dialects.builder import arguments, entry, results
from irc.dialects.flow import tensor
from irc.dialects.placement import Mesh
from irc.dialects.text import dump
from irc.errors import IrcError
from irc.pipeline import Options, run_passes
from irc.pipeline.places import chosen
from irc.pipeline.training import Training
from irc.plan import json_text
from irc.plan.load import LoadedPlan
from irc.plan.parts import (
    PIPE,
    PartsPlan,
    make_parts,
    with_files,
)
from irc.plan.parts_facts import ChannelFacts, PartsFacts, irc_version, schedule_digest
from irc.plan.schema import AxisCut
from irc.plan.training import HEAD, SEARCHED, STAGED, stage_file
from irc.program import Program
from irc.programs.offload import with_offload
from irc.programs.schedules import splits_backward
from irc.programs.skips import Way, ways_around
from irc.programs.slice_steps import slice_steps
from irc.programs.stage_devices import clusters_by_place, clusters_by_stage, differ
from irc.programs.stage_memory import budget_of, check_memory, shares_of
from irc.programs.stage_pins import pins_of_stages
from irc.programs.stage_plans import KnownStages, StagePlan, plan_stages
from irc.programs.stage_slots import runs_of_stages, ways_of
from irc.programs.stage_step import GRADIENT, StageStep, stage_step
from irc.schedule.actions import Schedule
from irc.schedule.copies import copies_of, swapped_forwards
from irc.schedule.notation import print_schedule
from irc.schedule.skips import with_skips
from irc.schedule.slices import ranks_of_slices, with_slices
from irc.training.entry import globs, loss_index, matches
from irc.training.head import take_head
from irc.training.optimizers import OPTIMIZERS
from irc.training.projections import in_slices, slices_in
from irc.training.recipe import Recipe
from irc.training.stages import Stages, stages_of
from irc.training.vocabulary import slices_of


def make_parts_plan(
    program: Program,
    recipe: Recipe,
    options: Options,
    schedule: Schedule,
    stages: str = "",
    *,
    part: float | None = None,
    cut: str = "",
) -> PartsPlan:
    """Plan a step of training as stages in a schedule.

    Args:
        program: the forward pass of one micro-batch; its module is changed.
        recipe: how it is trained, with the inputs that are cut.
        options: of the pipeline of passes; the mesh is the whole one, with an axis ``pipe``.
        schedule: as :func:`schedule_for` gives it.
        stages: where stages begin, by names of parameters; empty: the best cut.
        part: of the batch that the micro-batch is; by default they share it equally.
        cut: constraints on stages in the place of the user's.

    Raises:
        IrcError: ``pipeline-stages``, ``pipeline-unsupported``, ``pipeline-memory``,
            ``loss-unknown``; what the passes raise.
    """
    text, schedule = print_schedule(schedule), with_skips(schedule)
    module = program.module
    loss = loss_of(module, recipe)
    inputs = tuple(program.input_names)
    clusters = clusters_by_stage(options.cluster, options.mesh, with_slices(schedule))
    cut_options: dict[str, object] = {
        "count": len(schedule.paths[0]),
        "cluster": options.cluster,
        "stages": stages,
        "pins": cut or options.pins,
    }
    trained, scale = trained_of(program, recipe), part or 1 / schedule.num_micro_batches
    losses: dict[str, object] = {"min_bytes": -1} if schedule.vocabulary else {}
    if differ(clusters):
        cut_options["clusters"] = ";".join(clusters[: len(schedule.paths[0])])
    split = split_option(options, recipe)
    training = Training(stream=losses, split=split, cut=cut_options)
    run_passes(module, training.of_model)
    projections = slices_in(entry(module))
    trained |= {n for name in trained & projections.keys() for n in projections[name].names}
    recipe = in_slices(recipe, projections)
    count = len(ranks_of_slices(schedule))
    if count:
        _check_optimizer(recipe)
    head = take_head(module, loss, count) if count else None
    run_passes(module, training.of_cut)
    staged, model_stages = dump(module), stages_of(module)
    files, slices = {STAGED: staged}, None
    if head is not None:
        files[HEAD] = dump(head)
        model_stages, slices = slices_of(head, model_stages, count, schedule.vocabulary)
    shared = shared_of(model_stages)
    moved = _moved_elsewhere(shared, schedule)
    _check_states(model_stages, schedule)
    hidden = {c.name for c in slices.crossings if c.is_smooth} if slices else set[str]()
    steps = steps_of(
        model_stages, recipe, trained, shared, moved, "" if slices else loss, scale, hidden
    )
    schedule = with_slices(schedule)
    crossings = model_stages.crossings
    if slices is not None:
        steps += slice_steps(slices, len(steps), recipe, trained, loss=loss, scale=scale)
        crossings += slices.crossings
    if options.keep_ir:
        files |= {stage_file(stage): step.text for stage, step in enumerate(steps)}
    inner = Mesh(tuple(axis for axis in options.mesh.axes if axis[0] != PIPE))
    own = replace(options, mesh=inner, within=options.mesh)
    splits = [splits_backward(schedule, stage) for stage in range(len(steps))]
    types = [_types(step.module) for step in steps]
    weights = {**projections, **(slices.weights if slices else {})}
    sliced = {name: own.names for name, own in weights.items()}
    pins = pins_of_stages(options.pins, inner, [step.module for step in steps], sliced)
    kinds = {name: kind for own in types for name, kind in own.items()}
    around = ways_around(schedule, crossings, kinds)
    moves = bool(options.offload)
    runs = runs_of_stages(schedule, steps, crossings, splits, around, moves=moves)

    ways = [way for crossing in crossings for way in ways_of(crossing, steps)]
    fixed = fixed_stages(
        parse_stages(*constraint_text(options.pins)), stages, len(model_stages.modules)
    )

    known: KnownStages = {}

    def plan(budgets: Sequence[int | None] | None) -> tuple[PartsPlan, list[StagePlan]]:
        plans = plan_stages(steps, runs, own, pins, shared, schedule, budgets, clusters, known)
        if any(each.search for each in plans):
            searched = [_searched(step, e.search) for step, e in zip(steps, plans, strict=True)]
            files[SEARCHED] = json_text.dump({"stages": searched})
        registers, parts = [each.registers for each in plans], [each.plans for each in plans]
        facts = PartsFacts(
            mesh=str(options.mesh),
            schedule=schedule_digest(text),
            parts=tuple({kind: plan.hash for kind, plan in part.items()} for part in parts),
            channels=_channels([*ways, *around], registers, parts, types),
            shared=shared,
            inputs=(*inputs, "lr"),
            cut=recipe.split,
            loss=loss,
            fixed=(*fixed, *[""] * (len(steps) - len(fixed))),
            slices=weights,
            irc=irc_version(),
        )
        if options.offload:
            return with_offload(facts, text, tuple(parts), options.offload), plans
        return make_parts(facts, text, tuple(parts)), plans

    places = clusters_by_place(options.cluster, options.mesh)
    planned, stage_plans = plan(None)
    room = [budget_of(replace(own, cluster=each)) for each in places]
    if (shares := shares_of(planned, room, [each.search for each in stage_plans])) is not None:
        planned, _ = plan(shares)
    check_memory(planned, room, own.stored_bytes)
    return with_files(planned, files)


def _searched(step: StageStep, search: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a search says of a stage's functions, by the schedule's letters."""
    return {step.kinds.get(kind, kind): own for kind, own in search.get("functions", {}).items()}


def loss_of(module: ModuleOp, recipe: Recipe) -> str:
    """Return the name of the result that is trained on."""
    func = entry(module)
    return results(func)[loss_index(func, recipe.loss)][1]


def split_option(options: Options, recipe: Recipe) -> dict[str, object] | None:
    """Return the options of ``split-projections`` for a step; None where it is left out.

    They stay as they are where the mesh divides no matrices, where an optimiser works on whole
    weights, and where constraints name ops of the program as it was captured.
    """
    kind = OPTIMIZERS[recipe.kind]
    divides = any(size > 1 and axis in TENSOR for axis, size in options.mesh.axes)
    if not divides or kind.factors or not kind.moves or names_ops(options.pins):
        return None
    _, left_out = chosen(options.passes)
    return None if "split-projections" in left_out else {"mesh": str(options.mesh)}


def trained_of(program: Program, recipe: Recipe) -> set[str]:
    """Return the names of the parameters that move."""
    frozen = globs(recipe.frozen)
    return {
        name
        for role, name, _ in arguments(entry(program.module))
        if role == "parameter" and not matches(name, frozen)
    }


def shared_of(model_stages: Stages) -> dict[str, tuple[int, ...]]:
    """Return the parameters that several stages read, with these stages."""
    holders: dict[str, list[int]] = {}
    for stage, module in enumerate(model_stages.modules):
        for role, name, _ in arguments(entry(module)):
            if role == "parameter":
                holders.setdefault(name, []).append(stage)
    return {name: tuple(stages) for name, stages in holders.items() if len(stages) > 1}


def _check_optimizer(recipe: Recipe) -> None:
    """Refuse an optimiser that has to see whole what the stages hold in slices.

    Raises:
        IrcError: ``pipeline-unsupported``.
    """
    kind = OPTIMIZERS[recipe.kind]
    if kind.factors or not kind.moves:
        name = recipe.kind if kind.moves else "an optimiser that runs eagerly"
        raise IrcError(
            "pipeline-unsupported",
            f"{name} works on whole weights, and this schedule cuts the vocabulary into slices",
            help="choose another schedule (irc schedule list), or an optimiser such as adamw",
        )


def _moved_elsewhere(
    shared: Mapping[str, Sequence[int]], schedule: Schedule
) -> dict[int, set[str]]:
    """Return, by stage, the parameters that an earlier stage on the same ranks moves.

    Raises:
        IrcError: ``pipeline-unsupported`` where two stages are on the same ranks in one copy of the
            model alone.
    """
    places = [
        {schedule.rank_of[path[part]] for path in schedule.paths}
        for part in range(len(schedule.paths[0]))
    ]
    moved: dict[int, set[str]] = {}
    for name, holders in shared.items():
        for i, stage in enumerate(holders):
            before = set[int]().union(*(places[h] for h in holders[:i]))
            if places[stage] <= before:
                moved.setdefault(stage, set()).add(name)
            elif places[stage] & before:
                raise IrcError(
                    "pipeline-unsupported",
                    f"'{name}' is in stages {', '.join(map(str, holders))}, of which only some "
                    "copies share a rank",
                    help="untie it, or choose a schedule with one copy of the model",
                )
    return moved


def _check_states(model_stages: Stages, schedule: Schedule) -> None:
    """Refuse buffers that move where a schedule has two copies of the model, or swaps its batch."""
    for stage, module in enumerate(model_stages.modules):
        moved = next((name for role, name in results(entry(module)) if role == "state"), None)
        if moved is None:
            continue
        if len(copies_of(schedule)) > 1:
            raise IrcError(
                "pipeline-unsupported",
                f"the model moves its buffer '{moved}', and schedule '{schedule.name}' has two "
                "copies of each stage, which see different micro-batches",
                help="choose a schedule with one copy of the model",
            )
        if (swapped := swapped_forwards(schedule, stage)) is not None:
            before, after = swapped
            raise IrcError(
                "pipeline-unsupported",
                f"the model moves its buffer '{moved}', and schedule '{schedule.name}' runs "
                f"micro-batch {before} before {after} in stage {stage}",
                because="it would end as it does for a batch in another order",
                help="run the forwards of that stage in the order of the micro-batches",
            )


def steps_of(
    model_stages: Stages,
    recipe: Recipe,
    trained: Collection[str],
    shared: Mapping[str, Sequence[int]],
    moved: Mapping[int, Collection[str]],
    loss: str,
    scale: float,
    hidden: Collection[str],
) -> list[StageStep]:
    """Return the steps of the model's stages; ``hidden`` are rows that slices of its head read."""
    steps: list[StageStep] = []
    expected = set(hidden)
    last = len(model_stages.modules) - 1
    # From the last: a stage gets gradients for what later ones send back.
    for stage in range(last, -1, -1):
        step = stage_step(
            model_stages.modules[stage],
            [c for c in model_stages.crossings if stage in (c.producer, c.consumer)],
            expected,
            recipe,
            trained,
            scale=scale,
            loss=loss if stage == last else "",
            uncounted=[n for n, holders in shared.items() if stage in holders[1:]],
            elsewhere=moved.get(stage, ()),
        )
        expected |= {n.removeprefix(GRADIENT) for n in step.sent if n.startswith(GRADIENT)}
        steps.insert(0, step)
    return steps


def _types(module: ModuleOp) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of the entry's arguments by name, whole."""
    kinds = {name: tensor(value) for _, name, value in arguments(entry(module))}
    return {name: (kind.static_shape(), kind.dtype) for name, kind in kinds.items()}


def _channels(
    ways: Sequence[Way],
    registers: Sequence[Mapping[str, str]],
    parts: Sequence[Mapping[str, LoadedPlan]],
    types: Sequence[Mapping[str, tuple[tuple[int, ...], str]]],
) -> tuple[ChannelFacts, ...]:
    channels: list[ChannelFacts] = []
    for way in ways:
        name, producer, consumer = way.name, way.producer, way.consumer
        if name not in types[consumer]:
            continue  # nothing reads it there
        shape, dtype = types[consumer][name]
        register = registers[producer][way.sent]
        before = _placement(parts[producer], register, "outputs")
        after = _placement(parts[consumer], name, "inputs")
        ends = name, producer, consumer
        channels.append(ChannelFacts(*ends, register, shape, dtype, before, after, way.over))
    return tuple(channels)


def _placement(
    part: Mapping[str, LoadedPlan], name: str, side: Literal["inputs", "outputs"]
) -> tuple[AxisCut, ...]:
    for loaded in part.values():
        plan = loaded.plan
        for index in plan.inputs if side == "inputs" else plan.outputs:
            if plan.buffers[index].name == name:
                return plan.buffers[index].placement
    return ()

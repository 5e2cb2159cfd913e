"""What writes plans: ``irc.export_plan``, ``irc.export_entries``, and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from irc.choices import (
    DEFAULT_SCHEDULE,
    Dynamic,
    dynamic_option,
    layout_option,
    micro_batches_option,
    names_option,
    offload_option,
    programs_option,
    recipe_option,
    refuse_pipeline,
)
from irc.collection import collection_held
from irc.constraints.pins import Pins, pins_option
from irc.constraints.steps import called_pins, pinned_count
from irc.errors import IrcError
from irc.logs import PROGRESS
from irc.pipeline import Options
from irc.plan.save import check_target
from irc.report.any_plan import PlanText
from irc.report.summary import summary
from irc.searched import (
    AUTO,
    chosen_for,
    cluster_in_order,
    price_of_stored,
    refuse_beside_auto,
    refuse_open,
)
from irc.sharding.mesh import parse_mesh
from irc.training.optimizers import EAGER
from irc.training.precision import PrecisionOption
from irc.training.recipe import OptimizerOption, Recipe
from irc.written import Output, save, write, write_step

if TYPE_CHECKING:
    from torch import nn

    from irc.plan.parts import PartsPlan
    from irc.schedule.actions import Schedule


@collection_held()
def export_plan(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    mesh: str = "",
    backend: str = "cpu",
    cluster: str = "this-host",
    passes: Sequence[str] = (),
    rules: Sequence[str] = (),
    pins: Pins = "",
    force: bool = False,
    native: str = "",
    dynamic: Dynamic = None,
    optimizer: OptimizerOption | None = None,
    loss: str | Callable[..., Any] | None = None,
    frozen: str = "",
    micro_batches: int | None = None,
    accumulate: int | None = None,
    schedule: str | Path = DEFAULT_SCHEDULE,
    stages: str = "",
    recompute: str = "none",
    memory_bytes: int | None = None,
    stored_bytes: int | None = None,
    regather: bool = False,
    stored_price: float = 0.0,
    offload: str = "",
    precision: PrecisionOption = None,
    layout: str = "",
    devices: int | None = None,
    to: str = "",
) -> str:
    """Compile a PyTorch module to a plan folder that ``irc run`` and torchrun start.

    With an optimiser it is a plan of training steps: ``irc run`` makes some of them, and holds
    losses, parameters and states against PyTorch's autograd and optimiser. With an axis ``pipe`` in
    the mesh, or ``micro_batches``, it is a plan of several programs: stages in a schedule.

    Args:
        module: a module or function.
        args: example arguments: their shapes are compiled for.
        kwargs: example keyword arguments.
        out: the folder; it must not hold anything yet, unless ``force``.
        mesh: axes of the mesh; ``auto``: the fastest on the cluster's devices, as ``irc plan``
            searches it, and of a step of training its micro-batches, schedule and recompute too.
        backend: what writes the kernels.
        cluster: prices the plan.
        passes: plug-in passes to run; ``no-order`` and its like leave out one of irc's own.
        rules: files of rewrite rules.
        pins: constraints, as :func:`compile` takes them.
        force: replace a plan in the folder.
        native: kinds of processors that the plan holds machine code for, which :mod:`irc.runtime`
            runs without torch, or ``none``; by default all that irc knows.
        dynamic: sizes that the plan leaves open, as :func:`compile` takes them; on one device, with
            the backend cpu.
        optimizer: for a plan of training, as :func:`compile_step` takes it.
        loss: what is trained on, as :func:`compile_step` takes it; the last of ``args`` are its
            targets.
        frozen: globs of parameters that stay as they are.
        micro_batches: of a step, as :func:`compile_step` takes it.
        accumulate: another name of ``micro_batches``.
        schedule: its name or file, or ``search``, as :func:`compile_step` takes it.
        stages: where stages begin; by default the best cut.
        recompute: what the backward pass computes again.
        memory_bytes: the most that a device may hold at any moment.
        stored_bytes: the most that it may hold all the time.
        regather: do not save for backward what was gathered, but gather it again.
        stored_price: seconds of a step that a byte counts as that is held all the time: the dearer,
            the more lies in parts. A search over everything sets it where memory is short.
        offload: where what forward saves of a micro-batch lies until backward reads it, as
            :func:`compile_step` takes it.
        precision: dtypes that are stored, computed and summed in, as :func:`compile_step` takes
            them; ``parameters`` changes those of the module.
        layout: what the axes of the mesh are for, as :func:`compile` takes it: ``ddp``, ``fsdp``,
            ``tp``, or several with ``+`` between; by default what is fastest.
        devices: of the cluster, that ``mesh="auto"`` is to use; by default all.
        to: stop at a level of the IR or behind a pass, by name, and write the program into ``out``,
            a file that ends in ``.mlir``, from which ``irc compile --from`` goes on; ``-`` returns
            the text alone.

    Returns:
        A summary of the plan: text, and in a notebook a picture of the plan.
    """
    from irc.frontends.torch.capture import capture
    from irc.frontends.torch.in_precision import store

    if mesh == AUTO:
        micro_batches = micro_batches_option(micro_batches, accumulate)
        refuse_beside_auto(micro_batches, f"{schedule}", stages, recompute)
        refuse_open(dynamic, layout)
        if not to:
            check_target(Path(out), force=force)
        best = chosen_for(
            module, args, kwargs, devices, backend=backend, cluster=cluster, passes=passes,
            rules=rules, pins=pins, memory_bytes=memory_bytes, stored_bytes=stored_bytes,
            regather=regather, optimizer=optimizer, loss=loss, frozen=frozen, precision=precision,
        )  # fmt: skip
        chosen, cluster = best.configuration, cluster_in_order(cluster, best)
        mesh, schedule, recompute = str(chosen.mesh), chosen.schedule, chosen.recompute
        micro_batches, accumulate = chosen.micro_batches if chosen.is_staged else None, None
        layout, memory_bytes = chosen.layout, chosen.memory_bytes or memory_bytes
        stored_price = price_of_stored(cluster, chosen)
    elif devices is not None:
        raise IrcError(
            "option-value",
            f"devices={devices} is for mesh='{AUTO}'; the mesh '{mesh}' says how many there are",
            help=f"leave out devices, or choose mesh='{AUTO}'",
        )
    options = Options(
        mesh=parse_mesh(mesh),
        backend=backend,
        cluster=cluster,
        passes=names_option("passes", passes),
        rules=names_option("rules", rules),
        pins=called_pins(pins) if optimizer is None else pins_option(pins),
        memory_bytes=memory_bytes,
        stored_bytes=stored_bytes,
        regather=regather,
        stored_price=stored_price,
        layout=layout_option(layout, mesh),
        dynamic=dynamic_option(dynamic, mesh),
    )
    output = Output(out, native, force, to)
    if dynamic and optimizer is not None:
        raise IrcError(
            "option-value",
            "a plan of training has fixed sizes",
            help="leave out dynamic",
        )
    micro_batches = micro_batches_option(micro_batches, accumulate)
    if optimizer is not None:
        micro_batches = pinned_count(micro_batches, pins)
        count = programs_option(options.mesh, micro_batches, f"{schedule}", stages)
        recipe = recipe_option(
            module, loss, optimizer, frozen, count or 1, recompute, precision, pins
        )
        if recipe.kind == EAGER:
            raise IrcError(
                "option-value",
                f"{type(optimizer).__name__} is not compiled, and a plan has no Python of its own",
                help="choose an optimiser that a plan computes: optimizer='adamw'",
            )
        options = replace(
            options,
            sums=recipe.precision.sums,
            offload=offload_option(offload, count, backend),
        )
        output.check(options)
        store(module, recipe.precision)
        if count is not None:
            pipelining = f"{schedule}", stages
            return _write_parts(module, args, kwargs, recipe, loss, options, pipelining, output)
        return _write_training(module, args, kwargs, recipe, loss, options, output)
    if loss is not None or frozen or recompute != "none" or precision is not None:
        raise IrcError(
            "option-value",
            "loss, frozen, recompute and precision are of a plan of training",
            help='name an optimiser: optimizer="adamw", or --train adamw',
        )
    refuse_pipeline(options.mesh, micro_batches, f"{schedule}", stages, offload)
    output.check(options)
    if options.dynamic is not None:
        from irc.calls.open_module import open_module

        output.refuse_phase("with dynamic= there is one for each of several sizes", "leave it out")
        opened, program = open_module(module, args, dict(kwargs or {}), options)
        return save(opened, program, options, output)
    program = capture(module, args, dict(kwargs or {})).program
    return write(program, options, output)


def _write_training(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    recipe: Recipe,
    loss: object,
    options: Options,
    output: Output,
) -> str:
    import torch

    from irc.calls.feeding import axes_called_so
    from irc.calls.step_plan import captured_micro_batch, check_device, training_options
    from irc.dialects.text import dump
    from irc.plan.training import training_files

    check_device(module, planned=True)
    called = None if loss is None or isinstance(loss, str) else cast("Callable[..., Any]", loss)
    with torch.no_grad():
        captured, split = captured_micro_batch(module, called, recipe, args, dict(kwargs or {}))
    recipe = replace(recipe, split=split)
    options = replace(options, samples=axes_called_so(options.mesh))
    program = captured.program
    files = training_files(recipe, dump(program.module))
    options = training_options(program, recipe, options, module)
    return write_step(program, options, files, output)


def _write_parts(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    recipe: Recipe,
    loss: object,
    options: Options,
    pipelining: tuple[str, str],
    output: Output,
) -> PlanText:
    import torch

    from irc.calls.pipelined import stages_recipe
    from irc.calls.step_plan import captured_micro_batch, check_device, uneven_samples
    from irc.dialects.text import dump
    from irc.plan.parts import PIPE, with_files
    from irc.plan.parts_files import save_parts
    from irc.plan.training import FORWARD, smaller_file, training_files
    from irc.programs.in_order import check_order, plan_in_order
    from irc.programs.make import make_parts_plan
    from irc.programs.uneven import make_uneven_plan
    from irc.report.parts import parts_summary

    output.refuse_phase(
        "a step in stages or micro-batches is of several",
        "leave out --to; each function's program is in ir/ of its part of the plan",
    )
    named, stages = pipelining
    mesh = options.mesh
    ranks = mesh.size(PIPE) if PIPE in mesh.names else 1
    count = recipe.micro_batches
    check_order(named, ranks, count)  # before the long work
    check_device(module, planned=True)
    called = None if loss is None or isinstance(loss, str) else cast("Callable[..., Any]", loss)
    batch, options = (recipe, args, dict(kwargs or {})), replace(options, keep_ir=True)
    samples = uneven_samples(*batch[1:], recipe.micro_batches)
    with torch.no_grad():
        captured, split = captured_micro_batch(module, called, *batch)
        less = captured_micro_batch(module, called, *batch, less=1)[0] if samples else None
    smaller = less.program if less else None
    recipe = stages_recipe(module, captured, replace(recipe, split=split))
    program = captured.program
    files = training_files(recipe, dump(program.module))
    tensors = program.tensors
    if smaller is not None:
        files[smaller_file(FORWARD)] = dump(smaller.module)
        tensors = {**smaller.tensors, **tensors}

    def make(schedule: Schedule) -> PartsPlan:
        how = recipe, options, schedule, stages
        if smaller is None:
            return make_parts_plan(program.copy(), *how)
        return make_uneven_plan(program.copy(), smaller.copy(), samples, *how)

    plan = plan_in_order(named, ranks, count, make, options)
    plan = with_files(plan, files)
    PROGRESS.info("files")
    save_parts(output.place, plan, tensors, force=output.force)
    return PlanText(parts_summary(plan, program.source), output.place)


@collection_held()
def export_entries(
    entries: Mapping[str, Sequence[Any]],
    *,
    out: str | Path,
    mesh: str = "",
    backend: str = "cpu",
    cluster: str = "this-host",
    pins: Pins = "",
    runs: Mapping[str, int] | None = None,
    force: bool = False,
) -> str:
    """Write several entry points of one model into one folder: a plan each, the weights once.

    Args:
        entries: as :func:`compile_entries` takes them; a name is the name of a plan's folder.
        out: the folder; ``irc run OUT/ENTRY`` and ``irc.load("OUT/ENTRY")`` take a plan from it.
        mesh: axes of the mesh.
        backend: what writes the kernels.
        cluster: prices the plans.
        pins: constraints, as :func:`compile_entries` takes them.
        runs: how often each entry runs, relative to the others.
        force: replace such a folder.

    Returns:
        A summary of each plan.
    """
    from irc.calls.entries import export_entries as export_all
    from irc.plan.shared import ENTRIES

    check_target(Path(out), force=force, marker=ENTRIES)
    options = Options(
        mesh=parse_mesh(mesh), backend=backend, cluster=cluster, pins=called_pins(pins)
    )
    exported = export_all(entries, options, out, runs, force=force)
    return "\n\n".join(
        f"entry       {name}\n{summary(plan, cluster, program)}"
        for name, (plan, program) in exported.items()
    )

"""The pipeline: which passes run, in which order, and what checks them.

``default_pipeline`` reads from top to bottom; everything else here runs passes and verifies their
work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from irc.backends.launch.target import launch_files
from irc.cluster.load import find_cluster
from irc.constraints.pins import constraint_text, parse_constraints
from irc.cost.actions import ActionCost
from irc.dialects.dominance import verify_module
from irc.dialects.levels import levels_of
from irc.dialects.placement import Mesh
from irc.dialects.task import KernelOp
from irc.dialects.text import context, dump
from irc.errors import InternalError, IrcError
from irc.foreign_pass import apply_foreign
from irc.kernels.gpu.limits import GPUS
from irc.pass_levels import levels_after, require_level
from irc.pass_places import insert_all
from irc.plan.build import build_plan
from irc.plan.load import LoadedPlan
from irc.plan.ranges import input_ranges
from irc.plan.save import make_plan as bundle
from irc.plugin import find_backend, find_pass, package_of, parse_passes
from irc.program import Program
from irc.runtime.segments import DEVICE_BACKENDS, NATIVE_BACKENDS
from irc.simulate.plan import predicted_seconds

if TYPE_CHECKING:
    import torch


VerifyEach: TypeAlias = Literal["ir", "exec"] | None
OnStage: TypeAlias = Callable[[str, ModuleOp], None]

THIS_HOST = "this-host"
"""The preset that is the machine at hand: its prediction is held against what is measured."""


@dataclass(frozen=True)
class Options:
    """What the user chose.

    Attributes:
        mesh: named axes; the empty mesh is one device.
        backend: what writes the kernels: ``cpu``, ``triton``, ``cuda`` or a plug-in's.
        target: what kernels are mapped for (``cpu``, ``sm_90``); by default the backend's first.
        cluster: a preset's name or a TOML file; prices communication and compute.
        sizes: numbers for named sizes.
        passes: plug-in passes to run, each where its ``after`` says: ``name`` or
            ``name{option=1}``.
        rules: files of rewrite rules (grammar/rewrite.lark), tried before irc's own.
        pins: constraints, or the name of a file of them (grammar/sharding.lark).
        memory_bytes: what a device may hold at any moment; by default what the cluster's have.
        stored_bytes: what it may hold all the time: parameters, states, buffers, constants.
        regather: what a training step gathers is not saved for backward but gathered again.
        recompute: of a training step, what is computed again (pass ``recompute``; ``auto``: as much
            as it takes to fit); empty: as the program says.
        dynamic: which sizes of a module's inputs are left open: None, True for all that it does not
            fix, or as torch.export takes them.
        any_rows: kernels are to be those of any number of rows, not the best for one.
        tune: time the tiles of GPU kernels that no table has yet.
        verify_each: verify the IR after each pass, or run it before and after and compare.
    """

    mesh: Mesh = field(default_factory=lambda: Mesh(()))
    backend: str = "cpu"
    target: str = ""
    cluster: str = THIS_HOST
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    passes: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    pins: str = ""
    memory_bytes: int | None = None
    stored_bytes: int | None = None
    regather: bool = False
    recompute: str = ""
    dynamic: Any = None
    any_rows: bool = False
    tune: bool = False
    verify_each: VerifyEach = None


def default_pipeline(options: Options) -> list[ModulePass]:
    """Return the passes from captured flow to ordered kernels, in order.

    Each line is one decision (ARCHITECTURE section 9); nothing after a line makes it again.
    """
    distributed = options.mesh.num_ranks > 1
    pipeline: list[tuple[str, dict[str, object]]] = []
    if options.sizes:
        text = ",".join(f"{name}={size}" for name, size in options.sizes.items())
        pipeline.append(("bind-sizes", {"sizes": text}))
    pipeline.append(("canonicalize", {}))
    pipeline.append(("rewrite", {"rules": options.rules} if options.rules else {}))
    if options.recompute:
        again: dict[str, object] = {"mesh": str(options.mesh), "cluster": options.cluster}
        again["pins"] = options.pins
        if options.memory_bytes is not None:
            again["memory_bytes"] = options.memory_bytes
        pipeline.append(("recompute", {"policy": options.recompute, **again}))
    if not options.any_rows:
        pipeline.append(("stream-cross-entropy", {}))
    if distributed:
        choices = {"mesh": str(options.mesh), "cluster": options.cluster, "pins": options.pins}
        limits = {"memory_bytes": options.memory_bytes, "stored_bytes": options.stored_bytes}
        given: dict[str, object] = {k: v for k, v in choices.items() if v}
        if options.regather:
            given["regather"] = True
        bounds = {k: v for k, v in limits.items() if v is not None}
        pipeline.append(("auto-shard", {**given, **bounds}))
        pipeline.append(("lower-boxing", {}))
    else:
        _refuse_pins(options.pins)
    target = options.target or _target(options)
    pipeline.append(("lower-externs", {"target": target}))
    weights: dict[str, object] = {"weights_only": True} if target in GPUS else {}
    pipeline.append(("pack-quantized", {"target": target, **weights}))
    any_rows: dict[str, object] = {"any_rows": True} if options.any_rows else {}
    pipeline.append(("merge-matmuls", any_rows))
    fusion = {"pins": options.pins, "target": "" if target == "cpu" else target}
    pipeline.append(("fuse", {**{k: v for k, v in fusion.items() if v}, **any_rows}))
    pipeline.append(("map-tasks", {"target": target, **any_rows}))
    if target in GPUS:
        pipeline.append(("split-reduction", {"target": target}))
        if device := _device(options):
            timed: dict[str, object] = {"times": True} if options.tune else {}
            given = {"target": target, "device": device, "backend": options.backend}
            pipeline.append(("tune-tiles", {**given, **timed}))
    # Kernels of any size have no lengths to be parts by, and a plug-in's backend may not know them.
    if options.backend in NATIVE_BACKENDS and not options.any_rows:
        pipeline.append(("merge-launches", {"target": target}))
    if distributed:
        pipeline.append(("order", {}))
    passes = [find_pass(name)(**given) for name, given in pipeline]
    insert_all(passes, [each for text in options.passes for each in parse_passes(text)])
    return passes


def _target(options: Options) -> str:
    """Return what kernels are mapped for: the GPU at hand where the plan is for this machine."""
    targets = find_backend(options.backend).targets
    if options.backend not in DEVICE_BACKENDS or options.cluster != THIS_HOST:
        return targets[0]
    from irc.runtime.device import target_at_hand

    return target_at_hand(options.backend, targets)


def _device(options: Options) -> str:
    """Return the name of the GPU whose tuned tiles count; empty where the plan is for no GPU here.

    Raises:
        IrcError: ``device-missing`` where tiles are to be timed and there is no GPU.
    """
    from irc.tune.tiles import TUNED_BACKENDS

    if options.backend not in TUNED_BACKENDS or options.cluster != THIS_HOST:
        return ""
    from irc.runtime.device import device_of, name_at_hand

    if options.tune:
        device_of(options.backend)
    return name_at_hand(options.backend)


def _refuse_pins(pins: str) -> None:
    """Refuse constraints where there is nothing to place.

    Raises:
        IrcError: ``mesh-mismatch``.
    """
    text, source = constraint_text(pins)
    statements = parse_constraints(text, source)
    if statements:
        raise IrcError(
            "mesh-mismatch",
            f"'{statements[0]}' places something among ranks, and the mesh has one",
            where=statements[0].where,
            help='choose a mesh, as in mesh="data=2,tensor=2", or leave the constraints out',
        )


def run_passes(
    module: ModuleOp,
    passes: Sequence[ModulePass],
    *,
    verify_each: VerifyEach = None,
    on_stage: OnStage | None = None,
) -> None:
    """Run passes in place.

    Args:
        module: the program; changed.
        passes: what runs, in order.
        verify_each: ``ir`` verifies after each pass; ``exec`` also runs the program before and
            after on the same random inputs and compares.
        on_stage: called after each pass with its name and the module.

    Raises:
        IrcError: from a pass; ``pass-level`` for a pass on a program of another level;
            ``pass-failed`` for a plug-in's that raises, or leaves an invalid program;
            ``check-failed`` where ``exec`` finds other numbers.
        InternalError: a pass of irc broke the IR.
    """
    ctx, levels = context(), levels_of(module) if passes else ()
    for each in passes:
        require_level(each, levels)
        before = _execution(module) if verify_each == "exec" else None
        if (package := package_of(type(each))) == "irc":
            each.apply(ctx, module)
        else:
            apply_foreign(each, package, ctx, module)
        levels = levels_after(each, levels, module)
        if verify_each is not None and package == "irc":
            _verify(module, each)
        if before is not None:
            before.compare(module, each.name)
        if on_stage is not None:
            on_stage(each.name, module)


def _verify(module: ModuleOp, after: ModulePass) -> None:
    try:
        verify_module(module)
    except (VerifyException, ValueError) as error:
        raise InternalError(f"pass {after.name} broke the program: {error}") from error


def _execution(module: ModuleOp) -> Execution:
    from irc.interpret.levels import execute, random_inputs

    inputs = random_inputs(module)
    return Execution(inputs, execute(module, inputs))


@dataclass
class Execution:
    """A program's inputs and outputs before a pass, to hold against those after it."""

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]

    def compare(self, module: ModuleOp, name: str) -> None:
        """Run the program as it is now and compare.

        Raises:
            IrcError: ``check-failed`` naming the pass and the output.
        """
        from irc.interpret.levels import difference, execute

        for index, (was, now) in enumerate(
            zip(self.outputs, execute(module, self.inputs), strict=True)
        ):
            error = difference(now, was)
            if error > 1e-9:
                raise IrcError(
                    "check-failed",
                    f"pass {name} changed output {index}: relative error {error:.1e} in float64",
                    help=f"report it with the program before the pass: irc opt -p {name}",
                )


def lower(program: Program, options: Options, on_stage: OnStage | None = None) -> None:
    """Run the whole pipeline on a program, in place."""
    if on_stage is not None:
        on_stage("capture", program.module)
    run_passes(
        program.module,
        default_pipeline(options),
        verify_each=options.verify_each,
        on_stage=on_stage,
    )


def make_plan(
    program: Program,
    options: Options,
    *,
    keep_ir: bool = True,
    extra: Mapping[str, str] | None = None,
) -> LoadedPlan:
    """Compile a program to a plan in memory.

    Args:
        program: as a frontend gives it; its module is changed.
        options: what the user chose.
        keep_ir: also keep the text after every pass, which ``irc check`` reads.
        extra: other files of the plan, by name.
    """
    import torch

    backend = find_backend(options.backend)
    texts: dict[str, str] = {}

    def keep(name: str, module: ModuleOp) -> None:
        texts[f"{len(texts):02}-{name}.mlir"] = dump(module)

    ranges = input_ranges(program.module)
    lower(program, options, keep if keep_ir else None)
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    sources = backend.emit_plan_sources(kernels)
    cost = ActionCost(program.module, options.cluster, options.mesh, sources.values())
    here = options.cluster == THIS_HOST
    plan = build_plan(
        program.module,
        backend=options.backend,
        seconds=cost,
        ranges=ranges,
        cluster="" if here else options.cluster,
    )
    # Processes of one host share its cores; devices of a cluster are each their own.
    host = find_cluster(options.cluster).device
    threads = host.threads(options.mesh.num_ranks)
    predicted = predicted_seconds(plan, cores=host.cores or None, threads=threads)
    plan = replace(plan, predicted_s=predicted)
    return bundle(
        plan,
        ir=texts,
        kernels=sources,
        extra={**(launch_files(plan) if keep_ir else {}), **(extra or {})},
        torch_version=torch.__version__,
    )

"""From a captured program to a plan: the whole pipeline, kernels' sources and the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.backends.launch.render import launch_files
from irc.cluster.load import THIS_HOST, find_cluster
from irc.cost.actions import ActionCost
from irc.dialects.printer import Texts
from irc.pipeline.default import passes_by_part
from irc.pipeline.memory import MEMORY, PLACING
from irc.pipeline.options import Options
from irc.pipeline.reproducer import sources_of
from irc.pipeline.run import OnStage, run_passes
from irc.pipeline.training import check_vjp
from irc.plan.build import build_plan
from irc.plan.held import check_budget
from irc.plan.load import LoadedPlan
from irc.plan.ranges import input_ranges
from irc.plan.save import make_plan as bundle
from irc.plan.schema import Plan
from irc.program import Program
from irc.sharding.chunk_pins import PASS as CHUNKING
from irc.sharding.chunk_pins import known_names
from irc.sharding.expert_pins import PASS as CHUNKING_EXPERTS
from irc.simulate.plan import Contention, predict

OF_PARTS = (CHUNKING, CHUNKING_EXPERTS, "slice-batch")
"""Passes that have to know where a program is one of several functions."""


def lower(
    program: Program,
    options: Options,
    on_stage: OnStage | None = None,
    *,
    is_placed: bool = True,
) -> None:
    """Run the whole pipeline on a program, in place.

    Args:
        program: its module is changed.
        options: what the user chose.
        on_stage: called with ``capture`` where the program is all that is to be computed, as a
            whole, and after each pass from there on with its name.
        is_placed: leave out the passes that give values places in an arena where it is False.
    """
    passes = passes_by_part(options)
    if options.training is not None:
        run_passes(program.module, passes.training)
        check_vjp(program.module)
    if on_stage is not None:
        on_stage("capture", program.module)
    rest = [*passes.stage, *passes.function]
    run_passes(
        program.module,
        [each for each in rest if is_placed or each.name not in PLACING],
        verify_each=options.verify_each,
        on_stage=on_stage,
    )


def make_plan(
    program: Program,
    options: Options,
    *,
    keep_ir: bool = True,
    extra: Mapping[str, str] | None = None,
    on_stage: OnStage | None = None,
) -> LoadedPlan:
    """Compile a program to a plan in memory.

    Args:
        program: as a frontend gives it; its module is changed.
        options: what the user chose.
        keep_ir: also keep the text after every pass, which ``irc check`` reads.
        extra: other files of the plan, by name.
        on_stage: called as :func:`lower` has it.
    """
    texts: dict[str, str] = {}
    # Before a vocabulary has padding, which is no word.
    printed, ranges = Texts(), input_ranges(program.module)

    def keep(name: str, module: ModuleOp) -> None:
        if on_stage is not None:
            on_stage(name, module)
        if name == "capture":
            for own, bounds in input_ranges(module).items():
                ranges[own] = min(ranges.get(own, bounds), bounds)
        if keep_ir and name not in MEMORY:  # the plan says what they decide
            texts[f"{len(texts):02}-{name}.mlir"] = f"{printed.of(module)}\n"

    lower(program, options, keep)
    plan, sources = planned(program.module, options, ranges)
    if options.num_ranks == 1:
        check_budget(plan, options.memory_bytes, options.stored_bytes)
    if _has_no_files(options):
        return LoadedPlan(plan, {}, b"")
    return bundle(
        plan,
        ir=texts,
        kernels=sources,
        extra={**(launch_files(plan) if keep_ir else {}), **(extra or {})},
        torch_version=_torch_version(),
    )


def planned(
    module: ModuleOp,
    options: Options,
    ranges: Mapping[str, tuple[int, int]],
) -> tuple[Plan, dict[str, str]]:
    """Turn a module of level task into a plan, priced, and the sources of its kernels by name.

    Args:
        module: level task, behind ``plan-memory``.
        options: what the user chose.
        ranges: of inputs that are indices.
    """
    sources = {} if _has_no_files(options) else sources_of(module, options.backend)
    cost = ActionCost(
        module, options.cluster, options.mesh, sources.values(), within=options.within
    )
    here = options.cluster == THIS_HOST
    plan = build_plan(
        module,
        backend=options.backend,
        seconds=cost,
        ranges=ranges,
        cluster="" if here else options.cluster,
    )
    ranks = options.num_ranks
    contention = Contention.of(find_cluster(options.cluster), options.mesh, ranks)
    predicted = predict(plan, contention=contention, ranks=ranks)
    return replace(plan, predicted_s=predicted.seconds), sources


@dataclass(frozen=True)
class Lowered:
    """A function of a stage, lowered to kernels.

    Attributes:
        module: level task, behind ``plan-memory``.
        texts: of it after each pass that changed something, by file; none where they are not kept.
        collectives: ids of those that the function had before they were cut, where some are named.
    """

    module: ModuleOp
    texts: Mapping[str, str]
    collectives: frozenset[str] = frozenset()


def function_plan(
    module: ModuleOp, passes: Sequence[ModulePass], options: Options, before: str = ""
) -> LoadedPlan:
    """Plan one function of a stage; see :func:`lower_function`."""
    return lowered_plan(lower_function(module, passes, options, before), options)


def lower_function(
    module: ModuleOp, passes: Sequence[ModulePass], options: Options, before: str = ""
) -> Lowered:
    """Bring one function of a stage to kernels, and decide its memory.

    Args:
        module: level spmd; its entry is the function; changed.
        passes: those on functions (:func:`irc.pipeline.default.passes_by_part`).
        options: what the user chose; the mesh is the stage's.
        before: what gave the module, by which its text is kept where texts are.
    """
    texts: dict[str, str] = {}
    printed, last = Texts(), ""

    def keep(name: str, module: ModuleOp) -> None:
        nonlocal last
        if name in MEMORY:
            return
        text = printed.of(module)
        if text != last:  # there are many functions
            texts[f"{len(texts):02}-{name}.mlir"] = f"{text}\n"
        last = text

    if before and options.keep_ir:
        keep(before, module)
    # Of collectives that are named to be cut, others may be in other functions.
    passes = [replace(p, is_part=True) if p.name in OF_PARTS else p for p in passes]
    on_stage = keep if options.keep_ir else None
    names = [each.name for each in passes]
    cut = names.index(CHUNKING) if named_to_cut(passes) else 0
    run_passes(module, passes[:cut], verify_each=options.verify_each, on_stage=on_stage)
    known = known_names(module) if cut else frozenset[str]()
    run_passes(module, passes[cut:], verify_each=options.verify_each, on_stage=on_stage)
    return Lowered(module, texts, known)


def named_to_cut(passes: Sequence[ModulePass]) -> frozenset[str]:
    """Return the ids of collectives that passes are told to cut."""
    told = "+".join(getattr(p, "only", "") for p in passes if p.name == CHUNKING)
    return frozenset(filter(None, told.split("+")))


def lowered_plan(function: Lowered, options: Options) -> LoadedPlan:
    """Plan one function of a stage whose kernels are there.

    Args:
        function: as :func:`lower_function` gives it.
        options: what the user chose; the mesh is the stage's.
    """
    plan, sources = planned(function.module, options, {})
    if _has_no_files(options):
        return LoadedPlan(plan, {}, b"")
    return bundle(plan, ir=function.texts, kernels=sources, torch_version=_torch_version())


def _has_no_files(options: Options) -> bool:
    """Whether a plan is priced alone; kernels that were measured here are known by their text."""
    return options.brief and options.cluster != THIS_HOST


def _torch_version() -> str:
    import torch

    return torch.__version__

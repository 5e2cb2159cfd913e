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
from irc.errors import IrcError
from irc.pipeline.default import Passes, passes_by_part
from irc.pipeline.memory import MEMORY, PLACING
from irc.pipeline.options import Options
from irc.pipeline.reproducer import sources_of
from irc.pipeline.run import OnStage, run_passes
from irc.pipeline.training import check_vjp
from irc.plan.build import build_plan
from irc.plan.held import check_budget, held_bytes, over, said_bytes, smallest_budget
from irc.plan.load import LoadedPlan
from irc.plan.ranges import input_ranges
from irc.plan.save import make_plan as bundle
from irc.plan.schema import Plan
from irc.program import Program
from irc.sharding.chunk_pins import PASS as CHUNKING
from irc.sharding.chunk_pins import known_names
from irc.sharding.expert_pins import PASS as CHUNKING_EXPERTS
from irc.simulate.plan import Contention, predict

ASKED = 4
"""So many budgets at most are tried for one that works, where a mesh has no plan within the user's;
the second or third does."""
NEAR = 128
"""What fits into a budget less this part of it is not told from what does not."""

OF_PARTS = (CHUNKING, CHUNKING_EXPERTS, "slice-batch")
"""Passes that have to know where a program is one of several functions."""


@dataclass
class Lowering:
    """A program on its way down the pipeline, which may stop behind any pass.

    Attributes:
        module: the program; changed.
        options: what the user chose.
        passes: those that run, in order.
        done: how many have run.
        is_whole: whether the program is all that is to be computed, and that was told.
    """

    module: ModuleOp
    options: Options
    passes: Passes
    done: int = 0
    is_whole: bool = False

    def run(self, on_stage: OnStage | None = None, until: int | None = None) -> None:
        """Run passes, in place.

        Args:
            on_stage: called with ``capture`` where the program is all that is to be computed, as a
                whole, and after each pass from there on with its name.
            until: how many are to have run; by default all.
        """
        every = [*self.passes.training, *self.passes.stage, *self.passes.function]
        start, until = len(self.passes.training), len(every) if until is None else until
        run_passes(self.module, every[self.done : min(until, start)])
        if until >= start and not self.is_whole:
            if self.options.training is not None:
                check_vjp(self.module)
            self.is_whole = True
            if on_stage is not None:
                on_stage("capture", self.module)
        run_passes(
            self.module,
            every[max(self.done, start) : until],
            verify_each=self.options.verify_each,
            on_stage=on_stage,
        )
        self.done = until


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
        on_stage: called as :meth:`Lowering.run` has it.
        is_placed: leave out the passes that give values places in an arena where it is False.
    """
    passes = passes_by_part(options)
    if not is_placed:
        placeless = [each for each in passes.function if each.name not in PLACING]
        passes = passes._replace(function=placeless)
    Lowering(program.module, options, passes).run(on_stage)


class Compilation:
    """A program on its way to a plan.

    Args:
        program: as a frontend gives it; its module is changed.
        options: what the user chose.
        extra: other files of the plan, by name.
        keep_ir: also keep the text after every pass, which ``irc check`` reads.
        on_stage: called as :meth:`Lowering.run` has it.

    Attributes:
        program: the same.
        options: the same.
        extra: the same.
        lowering: how far it is.
        texts: of the program after each pass that has run, by file.
        ranges: of inputs that are indices.
    """

    def __init__(
        self,
        program: Program,
        options: Options,
        extra: Mapping[str, str] | None = None,
        *,
        keep_ir: bool = True,
        on_stage: OnStage | None = None,
    ) -> None:
        self.program, self.options, self.extra = program, options, {**(extra or {})}
        self.lowering = Lowering(program.module, options, passes_by_part(options))
        self.texts: dict[str, str] = {}
        # Before a vocabulary has padding, which is no word.
        self.ranges = input_ranges(program.module)
        self._printed, self._keep_ir, self._on_stage = Texts(), keep_ir, on_stage

    def run(self, until: int | None = None) -> None:
        """Run passes, until so many have run; by default all."""
        self.lowering.run(self._keep, until)

    def plan(self) -> LoadedPlan:
        """Run all passes that are left, and return the plan in memory.

        A search of placements knows bytes without alignment, and not what collectives are under way
        at a time: what holds more than it may is planned again within what is left.

        Raises:
            IrcError: ``sharding-infeasible`` where no plan holds as little; what the passes raise.
        """
        limit = self.options.memory_bytes
        is_free = self.options.mesh.num_ranks == 1 or self.lowering.done > 0
        if limit is None or is_free:
            return self._plan()
        first = self.program.module.clone()
        try:
            return self._plan_within(limit, first)
        except IrcError as error:
            if self.options.brief or error.code != "sharding-infeasible":
                raise
            raise self._with_working(error, limit, first) from error

    def _with_working(self, error: IrcError, limit: int, first: ModuleOp) -> IrcError:
        """Return an error with a budget that something is planned within, where it names one.

        What it names is a bound: the search knows it without alignment and collectives under way.
        """
        bound = named = smallest_budget(error)
        for _ in range(ASKED):
            if named is None or named <= limit:
                break
            limit = named
            self._begin_again(first, limit)
            try:
                self._plan_within(limit, first)
            except IrcError as other:
                if other.code != "sharding-infeasible":
                    raise
                named = smallest_budget(other)
                continue
            help_ = error.help.replace(f"memory_bytes={bound}", f"memory_bytes={limit}")
            help_ = help_.replace("works is about", "works is")
            return IrcError(error.code, error.message, error.where, error.because, help_)
        return error

    def _plan_within(self, limit: int, first: ModuleOp) -> LoadedPlan:
        loaded = self._plan()
        least = held = held_bytes(loaded.plan)
        # Within the one there is no plan; within the other there is, which holds too much.
        low, high, within = 0, limit, limit
        while held > limit:
            said = min(said_bytes(self.program.module, within), within)
            high, jump = min(high, said), limit - (held - said)
            within = jump if low < jump < high else (low + high) // 2
            while (again := self._plan_again(first, within)) is None:
                low, within = within, (within + high) // 2
                if high - low <= limit // NEAR:
                    raise over(least, limit)
            loaded, held = again, held_bytes(again.plan)
            least = min(least, held)
        return loaded

    def _plan_again(self, first: ModuleOp, memory_bytes: int) -> LoadedPlan | None:
        """Plan the program as it was given within other bytes; None where there is no such plan."""
        self._begin_again(first, memory_bytes)
        try:
            return self._plan()
        except IrcError as error:
            if error.code != "sharding-infeasible":
                raise
            return None

    def _begin_again(self, first: ModuleOp, memory_bytes: int) -> None:
        self.program.module = first.clone()
        options = replace(self.options, memory_bytes=memory_bytes)
        self.lowering = Lowering(self.program.module, options, passes_by_part(options))
        self.texts.clear()
        self._printed = Texts()

    def _plan(self) -> LoadedPlan:
        self.run()
        options = self.options
        plan, sources = planned(self.program.module, options, self.ranges)
        if options.num_ranks == 1:
            check_budget(plan, options.memory_bytes, options.stored_bytes)
        if _has_no_files(options):
            return LoadedPlan(plan, {}, b"")
        return bundle(
            plan,
            ir=self.texts,
            kernels=sources,
            extra={**(launch_files(plan) if self._keep_ir else {}), **self.extra},
            torch_version=_torch_version(),
        )

    def _keep(self, name: str, module: ModuleOp) -> None:
        if self._on_stage is not None:
            self._on_stage(name, module)
        if name == "capture":
            for own, bounds in input_ranges(module).items():
                self.ranges[own] = min(self.ranges.get(own, bounds), bounds)
        if self._keep_ir and name not in MEMORY:  # the plan says what they decide
            self.texts[f"{len(self.texts):02}-{name}.mlir"] = f"{self._printed.of(module)}\n"


def make_plan(
    program: Program,
    options: Options,
    *,
    keep_ir: bool = True,
    extra: Mapping[str, str] | None = None,
    on_stage: OnStage | None = None,
) -> LoadedPlan:
    """Compile a program to a plan in memory; the arguments are those of :class:`Compilation`."""
    return Compilation(program, options, extra, keep_ir=keep_ir, on_stage=on_stage).plan()


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
    if _has_no_files(options):
        return plan, sources  # who prices it simulates it
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

"""The judges of a search: a configuration is planned as `irc compile` would, and simulated.

A forward pass is captured once for each size of a micro-batch, whatever meshes it is planned for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from xdsl.dialects.builtin import ModuleOp

from irc.calls.batch_sizes import Lines, lines_through
from irc.calls.feeding import axes_called_so
from irc.calls.plan_prices import Prices
from irc.cluster.load import find_cluster, in_order_of
from irc.cluster.topology import Cluster
from irc.collection import collection_held
from irc.constraints.steps import based_on
from irc.dialects.placement import Mesh
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.pipeline import Options, make_plan
from irc.pipeline.places import chosen
from irc.pipeline.run import run_passes
from irc.plan.parts import MICRO_BATCH_KINDS, SMALLER_KINDS, PartsPlan
from irc.plan.schema import Plan
from irc.plugin import builtin_pass
from irc.program import Program
from irc.programs.short_steps import LEAST, MOST
from irc.programs.stage_memory import budget_of
from irc.search.configurations import NOTHING, Configuration, Outline
from irc.search.fitting import stored_price
from irc.search.graph import Inputs, Wishes
from irc.search.judge import OF_CONFIGURATION, Verdict
from irc.search.layers import layers_of, shortened
from irc.search.meshes import Ranking, search_meshes
from irc.search.objections import objection
from irc.search.on_mesh import MARGIN
from irc.search.outline import outline_of
from irc.search.products import moved_by_step, products_of_step
from irc.search.rank_orders import order_of
from irc.search.shared import Shared, sharing
from irc.simulate.choice import step_seconds
from irc.simulate.parts import contention_of, held_at, predict_step
from irc.simulate.plan import Contention, predict
from irc.training.optimizers import OPTIMIZERS
from irc.training.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

    from irc.calls.step_plan import Loss
    from irc.frontends.torch.capture import Captured

MESHES = 2
"""So many meshes of one program are planned: those whose searched steps are the shortest."""


@dataclass
class CallJudge:
    """Judges calls of a program, which has one micro-batch and no stages.

    Args:
        program: as a frontend gives it; it stays as it is.
        options: of the pipeline; the mesh is the configuration's.
        in_order: ranks stay on the devices in order.
    """

    program: Program
    options: Options
    in_order: bool = False
    by_order: dict[tuple[int, ...], CallJudge] = field(
        default_factory=dict[tuple[int, ...], "CallJudge"]
    )

    @property
    def cluster(self) -> Cluster:
        """The machines."""
        return find_cluster(self.options.cluster)

    def outline(self) -> Outline:
        """Return what is known of the program."""
        return self._outline

    @cached_property
    def _outline(self) -> Outline:
        return _as_captured(outline_of(self.program.module), self.options)

    def within(self, memory_bytes: int) -> CallJudge:
        """Return a judge of the same program under another budget."""
        options = replace(self.options, memory_bytes=memory_bytes)
        return replace(self, options=options, by_order={})

    def budget_bytes(self, configuration: Configuration) -> int | None:
        """Return what a rank may hold."""
        return _budget_bytes(self.options, configuration, self.cluster)

    def unpinned(self) -> CallJudge | None:
        """Return a judge without constraints; None where there are none."""
        if not self.options.pins:
            return None
        return replace(self, options=replace(self.options, pins=""), by_order={})

    def in_pieces(self) -> bool:
        """No: a call has one program."""
        return False

    def price(self, configuration: Configuration) -> Verdict | None:
        """Return nothing: a call has one program."""
        del configuration

    def fitting(self, configuration: Configuration) -> Configuration | None:
        """Return nothing: a call computes nothing again."""
        del configuration

    def boundless_s(self, configuration: Configuration) -> float:
        """Return nothing: a call has one program."""
        del configuration
        return 0.0

    @collection_held()
    def meshes(self, devices: int, recompute: str) -> Sequence[Mesh]:
        """Return the best meshes."""
        del recompute
        return best_meshes(_copy(self.program), self.options, devices)

    @collection_held()
    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        """Plan a mesh and simulate a call."""
        return best_order(self, configuration, lambda own: own.plan(configuration, brief=brief))

    def plan(self, configuration: Configuration, *, brief: bool) -> Verdict:
        """Plan a mesh on the devices in order."""
        options = _options(self.options, configuration, self.cluster, brief=brief)
        plan = make_plan(_copy(self.program), options, keep_ir=False).plan
        return verdict_of(plan, self.cluster)


@dataclass
class StepJudge:
    """Judges steps of training.

    Args:
        module: what is trained.
        args: the whole batch.
        kwargs: keyword arguments.
        recipe: how it is trained; micro-batches and recompute are the configuration's.
        loss: a function of the module's output, where the module itself gives none.
        options: of the pipeline; the mesh is the configuration's.
        stages: where stages begin; empty: the best cut.
        in_order: ranks stay on the devices in order.
    """

    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    recipe: Recipe
    loss: Loss | None
    options: Options
    stages: str = ""
    in_order: bool = False
    by_order: dict[tuple[int, ...], StepJudge] = field(
        default_factory=dict[tuple[int, ...], "StepJudge"]
    )
    _captured: dict[int, tuple[Captured, tuple[str, ...]]] = field(
        default_factory=dict[int, "tuple[Captured, tuple[str, ...]]"]
    )
    _shared: Shared = field(default_factory=Shared)

    @cached_property
    def cluster(self) -> Cluster:
        """The machines."""
        return find_cluster(self.options.cluster)

    def outline(self) -> Outline:
        """Return what is known of the forward pass of the whole batch."""
        return self._outline

    @cached_property
    def _outline(self) -> Outline:
        from irc.programs.make import trained_of

        program = self._capture(1)[0].program
        still = {name for name, own in self.module.named_parameters() if not own.requires_grad}
        trained = trained_of(program, self.recipe) - still
        loss = self.recipe.loss
        outline = outline_of(
            program.module,
            products=products_of_step(program.module, trained, loss),
            moved=moved_by_step(program.module, trained, loss),
            optimizer=OPTIMIZERS[self.recipe.kind],
        )
        return _as_captured(outline, self.options)

    def within(self, memory_bytes: int) -> StepJudge:
        """Return a judge of the same step under another budget, with what this one captured."""
        options = replace(self.options, memory_bytes=memory_bytes)
        return replace(self, options=options, by_order={})

    def budget_bytes(self, configuration: Configuration) -> int | None:
        """Return what a rank may hold."""
        return _budget_bytes(self.options, configuration, self.cluster)

    def unpinned(self) -> StepJudge | None:
        """Return a judge without constraints; None where there are none."""
        if not self.options.pins:
            return None
        return replace(self, options=replace(self.options, pins=""), by_order={})

    def in_pieces(self) -> bool:
        """Whether the model has layers enough, and nothing is fixed of single ones."""
        if self.stages or self.options.pins or based_on(NOTHING, self.recipe.recompute) != NOTHING:
            return False
        known = layers_of(self._capture(1)[0].program.module)
        return known is not None and known.count > LEAST

    @collection_held()
    def price(self, configuration: Configuration) -> Verdict | None:
        """Return what pieces of the model say of a step."""
        with sharing(self._shared):
            return best_order(self, configuration, lambda own: own.prices.price(configuration))

    @collection_held()
    def fitting(self, configuration: Configuration) -> Configuration | None:
        """Return a step that is made to fit in the least time; in any order, it holds as much."""
        with sharing(self._shared):
            return self.prices.fitting(configuration)

    @collection_held()
    def boundless_s(self, configuration: Configuration) -> float:
        """Return what pieces of the model say of a step that may hold anything."""
        with sharing(self._shared):
            return self.prices.boundless_s(configuration)

    @cached_property
    def prices(self) -> Prices:
        """What pieces of the model say, of the devices in order."""
        return Prices(self._forward, self._short_forward, self.options, self.cluster)

    def _forward(self, count: int) -> tuple[Program, Recipe]:
        captured, split = self._capture(count)
        return captured.program, self._recipe(captured, split, count)

    def _short_forward(self, count: int) -> tuple[Program, Recipe]:
        """Return the forward pass of a micro-batch with the first few layers alone.

        Where it follows from two others, theirs are shortened first, so that no depth is parsed.
        """
        if count not in self._captured and (like := self._like_others(count, short=True)):
            return like[0].program, self._recipe(*like, count)
        captured, split = self._capture(count)
        own = captured.program
        program = Program(shortened(own.module, MOST), own.tensors, own.source)
        return program, self._recipe(captured, split, count)

    def _recipe(self, captured: Captured, split: tuple[str, ...], count: int) -> Recipe:
        from irc.calls.pipelined import stages_recipe

        recipe = replace(self.recipe, micro_batches=count, split=split)
        return stages_recipe(self.module, captured, recipe)

    @collection_held()
    def meshes(self, devices: int, recompute: str) -> Sequence[Mesh]:
        """Return the best meshes of a step of one program."""
        from irc.train import training_program

        captured, split = self._capture(1)
        recompute = based_on(recompute, self.recipe.recompute)
        recipe = replace(self.recipe, split=split, recompute=recompute)
        program = training_program(
            _copy(captured.program),
            trainable=self.module,
            frozen=recipe.frozen,
            optimizer=recipe.optimizer,
            loss=recipe.loss,
            recompute=recompute,
            stream=True,
        )
        return best_meshes(program, self.options, devices, is_training=True)

    @collection_held()
    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        """Plan a step and simulate it."""
        with sharing(self._shared):
            return best_order(self, configuration, lambda own: own.plan(configuration, brief=brief))

    def plan(self, configuration: Configuration, *, brief: bool) -> Verdict:
        """Plan a step on the devices in order."""
        if configuration.is_staged:
            plan = self._parts(configuration, brief=brief)
            return verdict_of_parts(plan, self.cluster.fit(plan.mesh))
        return verdict_of(self._plan(configuration, brief=brief), self.cluster)

    def _plan(self, configuration: Configuration, *, brief: bool) -> Plan:
        from irc.calls.step_plan import training_plan

        captured, split = self._capture(1)
        again = based_on(configuration.recompute, self.recipe.recompute)
        recipe = replace(self.recipe, split=split, recompute=again)
        options = _options(self.options, configuration, self.cluster, brief=brief)
        options = replace(options, samples=axes_called_so(configuration.mesh))
        return training_plan(_copy(captured.program), recipe, options, self.module).plan

    def _parts(self, configuration: Configuration, *, brief: bool) -> PartsPlan:
        from irc.programs.make import make_parts_plan
        from irc.programs.schedules import schedule_for

        count = configuration.micro_batches
        schedule = schedule_for(configuration.schedule, configuration.pipe, count)
        program, recipe = self._forward(count)
        recipe = replace(recipe, recompute=based_on(configuration.recompute, self.recipe.recompute))
        options = _options(self.options, configuration, self.cluster, brief=brief)
        return make_parts_plan(_copy(program), recipe, options, schedule, self.stages)

    def _capture(self, count: int) -> tuple[Captured, tuple[str, ...]]:
        """Return the forward pass of one of so many micro-batches, and the inputs that are cut."""
        if count not in self._captured:
            self._captured[count] = self._like_others(count) or self._traced(count)
        return self._captured[count]

    def _traced(self, count: int) -> tuple[Captured, tuple[str, ...]]:
        import torch

        from irc.calls.step_plan import captured_step

        recipe = replace(self.recipe, micro_batches=count)
        with torch.no_grad():
            return captured_step(self.module, self.loss, recipe, self.args, self.kwargs)

    def _like_others(
        self, count: int, *, short: bool = False
    ) -> tuple[Captured, tuple[str, ...]] | None:
        """Return a forward pass whose text follows from those of two other sizes; None for none.

        Args:
            count: of micro-batches.
            short: with the first few layers alone.
        """
        if len(self._captured) < 2 or 1 not in self._captured:
            return None
        if self.outline().samples % count:
            return None
        if (lines := self._short_lines if short else self._lines) is None:
            return None
        # All that are cut have the same inputs cut.
        captured, split = next(each for own, each in self._captured.items() if own > 1)
        size, like = self.outline().samples // count, captured.program
        program = Program(load(lines.at(size)), like.tensors, like.source)
        return replace(captured, program=program), split

    @cached_property
    def _lines(self) -> Lines | None:
        """What the first two captures say of any other size."""
        return self._lines_of(lambda module: module)

    @cached_property
    def _short_lines(self) -> Lines | None:
        """What the first two captures, with the first few layers alone, say of any other size."""
        return self._lines_of(lambda module: shortened(module, MOST))

    def _lines_of(self, part: Callable[[ModuleOp], ModuleOp]) -> Lines | None:
        samples = self.outline().samples
        (one, (first, _)), (other, (second, _)) = list(self._captured.items())[:2]
        shapes = [
            {name: value.shape for name, value in each.program.tensors.items()}
            for each in (first, second)
        ]
        # What holds for one sample alone is broadcast, and does not hold for others.
        if shapes[0] != shapes[1] or samples // max(one, other) < 2:
            return None
        texts = [dump(part(each.program.module)) for each in (first, second)]
        return lines_through(texts[0], samples // one, texts[1], samples // other)


J = TypeVar("J", CallJudge, StepJudge)
V = TypeVar("V", Verdict, "Verdict | None")


def best_order(judge: J, configuration: Configuration, ask: Callable[[J], V]) -> V:
    """Return the verdict of the better one of two orders: of the devices, and by their wires.

    An order that the configuration cannot be planned in is the worse one.

    Args:
        judge: of the devices in order.
        configuration: that is judged.
        ask: a judge of whom it is asked.

    Raises:
        IrcError: what asking of the devices in order raises, and what is wrong with more than a
            configuration in the other order.
    """
    plain = ask(judge)
    if plain is None or judge.in_order:
        return plain
    if not (order := order_of(judge.cluster, judge.outline(), configuration)):
        return plain
    if order not in judge.by_order:
        cluster = in_order_of(judge.options.cluster, order)
        options = replace(judge.options, cluster=cluster)
        judge.by_order[order] = replace(judge, options=options, by_order={})
    try:
        other = ask(judge.by_order[order])
    except IrcError as error:
        if error.code not in OF_CONFIGURATION:
            raise
        return plain
    if other is None or other.step_s >= plain.step_s:
        return plain
    return replace(other, order=order)


def _options(
    options: Options, configuration: Configuration, cluster: Cluster, *, brief: bool
) -> Options:
    """Return the options of a configuration; one device is held to the memory that it has."""
    mesh = configuration.mesh
    memory = options.memory_bytes
    if memory is None and mesh.num_ranks == 1 and not configuration.is_staged:
        memory = int(cluster.device.memory_bytes / MARGIN)
    if (within := configuration.memory_bytes) is not None:
        memory = within if memory is None else min(memory, within)
    return replace(
        options,
        mesh=mesh,
        layout=configuration.layout,
        memory_bytes=memory,
        stored_price=stored_price(cluster, configuration),
        brief=brief,
    )


def _budget_bytes(options: Options, configuration: Configuration, cluster: Cluster) -> int | None:
    """Return what each rank may hold; None where unequal devices have what they have."""
    if options.memory_bytes is None and cluster.unequal:
        return None
    return budget_of(replace(options, mesh=configuration.inner, within=configuration.mesh))


def _as_captured(outline: Outline, options: Options) -> Outline:
    """Return an outline without bytes where a user's passes or rules may store weights smaller."""
    own, _ = chosen(options.passes)
    return replace(outline, stored_bytes=0.0, sums_bytes=0.0) if own or options.rules else outline


def _copy(program: Program) -> Program:
    return Program(program.module.clone(), dict(program.tensors), program.source)


def best_meshes(
    program: Program, options: Options, devices: int, *, is_training: bool = False
) -> list[Mesh]:
    """Return the best meshes of a program on so many devices, best first.

    Args:
        program: level flow; changed.
        options: say the cluster and the budgets.
        devices: two or more.
        is_training: a step, of which those come last that an expert would call wrong.

    Raises:
        IrcError: ``sharding-infeasible``.
    """
    ranking = rank_meshes(program.module, options, devices)
    meshes = [each.mesh for each in ranking.tried if isfinite(each.seconds)]
    if is_training:
        cluster = find_cluster(options.cluster)
        meshes.sort(key=lambda mesh: objection(Configuration(mesh), cluster) != "")
    return meshes[:MESHES]


def rank_meshes(
    module: ModuleOp, options: Options, devices: int, inputs: Inputs = "replicated"
) -> Ranking:
    """Rank the meshes of so many devices for a program, near ones by their simulated calls.

    Args:
        module: level flow; changed.
        options: say the cluster and the budgets.
        devices: two or more.
        inputs: how ranks get them: whole, as plans have it, or as is best (``any``).

    Raises:
        IrcError: ``sharding-infeasible``.
    """
    run_passes(module, [builtin_pass("canonicalize")()])
    wishes = Wishes(
        inputs,
        memory_bytes=options.memory_bytes,
        stored_bytes=options.stored_bytes,
        regather=options.regather,
    )
    cluster = find_cluster(options.cluster)
    return search_meshes(module, cluster, devices, wishes, step_s=step_seconds)


def verdict_of(plan: Plan, cluster: Cluster) -> Verdict:
    """Return what the simulator says of a plan of one program."""
    contention = Contention.of(cluster, plan.device_mesh)
    found = predict(plan, contention=contention)
    busy = found.timeline.busy(found.actions).get("compute", 0.0)
    own = [plan.buffers[index] for index in (*plan.weights, *plan.inputs)]
    own += [b for b in plan.buffers if b.storage in ("prepared", "output")]
    held = plan.arena_bytes + sum(buffer.size_bytes for buffer in own)
    return Verdict(found.seconds, held, exposed_s=max(0.0, found.seconds - busy))


def verdict_of_parts(plan: PartsPlan, cluster: Cluster) -> Verdict:
    """Return what the simulator says of a plan of several programs."""
    found = predict_step(plan, cluster)
    contention, exposed = contention_of(plan, cluster), list[float]()
    for place in range(len(plan.ranks)):
        total = 0.0
        for part in plan.parts_at(place).values():
            for kind, loaded in plan.parts[part].items():
                own = predict(loaded.plan, contention=contention)
                bare = own.seconds - own.timeline.busy(own.actions).get("compute", 0.0)
                often = plan.num_micro_batches if kind in MICRO_BATCH_KINDS else 1
                total += max(0.0, bare) * (often if kind not in SMALLER_KINDS else 0)
        exposed.append(total)
    places = range(len(plan.ranks))
    bubbles = [max(0.0, found.bubble(rank)) for rank in places]
    held = max(held_at(plan, place).num_bytes() for place in places)
    return Verdict(found.seconds, held, sum(bubbles) / len(bubbles), sum(exposed) / len(exposed))

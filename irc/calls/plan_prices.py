"""Prices of configurations from pieces of the model: what a search asks before it plans any whole.

A configuration is priced in a second or less, whatever the model's depth and the devices: a few
layers are planned on the mesh of a stage (:mod:`irc.programs.blocks`), the stages of the real cut
are put together from them, and the step of the schedule is simulated. What was planned is kept for
configurations that differ in the schedule alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp

from irc.cluster.topology import Cluster
from irc.cost.model import ClusterCost
from irc.dialects.builder import entry
from irc.errors import IrcError
from irc.pipeline import Options
from irc.pipeline.run import run_passes
from irc.pipeline.training import Training
from irc.program import Program
from irc.programs.blocks import blocks_of
from irc.programs.make import split_option
from irc.programs.schedules import schedule_for, splits_backward
from irc.programs.short_steps import LAYERS, ShortStep, short_step
from irc.programs.stage_memory import budget_of
from irc.search.blocks import UPDATE, Blocks, Content
from irc.search.configurations import Configuration
from irc.search.judge import Verdict
from irc.search.layers import layers_of, shortened
from irc.simulate.assembled import simulate_blocks
from irc.training.recipe import Recipe
from irc.training.stage_choice import Costs, balanced, ops_in_line

Forward: TypeAlias = Callable[[int], tuple[Program, Recipe]]
"""The forward pass of one of so many micro-batches, and how it is trained."""


LARGE = 2**30
"""Bytes of a sum whose links decide, not its latency."""


@dataclass
class Prices:
    """Prices configurations of a step of training with stages, micro-batches or both.

    Args:
        forward: gives the program of a micro-batch.
        options: of the pipeline; the mesh is the configuration's.
        cluster: the machines.
    """

    forward: Forward
    options: Options
    cluster: Cluster
    _blocks: dict[object, tuple[Configuration, Blocks | None]] = field(
        default_factory=dict[object, "tuple[Configuration, Blocks | None]"]
    )
    _short: dict[int, tuple[Program, Recipe] | None] = field(
        default_factory=dict[int, "tuple[Program, Recipe] | None"]
    )
    _steps: dict[tuple[int, str, bool], ShortStep | None] = field(
        default_factory=dict[tuple[int, str, bool], ShortStep | None]
    )
    _cuts: dict[int, tuple[Content, ...]] = field(default_factory=dict[int, tuple[Content, ...]])
    _whole: ModuleOp | None = None

    def price(self, configuration: Configuration) -> Verdict | None:
        """Return what a step takes; None where pieces of the model do not say that.

        Raises:
            IrcError: ``pipeline-memory`` where a rank would hold too much; ``pipeline-stages``;
                what the passes raise.
        """
        own, count = configuration, configuration.micro_batches
        schedule = schedule_for(own.schedule, own.pipe, count)
        paths = set(schedule.paths)
        if len(paths) > 1 or schedule.skips or schedule.vocabulary:
            return None
        parts = len(schedule.paths[0])
        splits = {splits_backward(schedule, part) for part in range(parts)}
        if len(splits) > 1 or (blocks := self._of(own, splits=splits.pop())) is None:
            return None
        cluster = self.cluster.fit(own.mesh)
        contents = self._contents(parts)
        found = simulate_blocks(blocks, contents, schedule, own.inner, cluster)
        held = max(found.held_bytes)
        self._check(held, own)
        hidden = 0.0 if own.is_staged else _hidden_s(blocks, contents[0], own, cluster)
        bubbles = [found.simulation.bubble(rank) for rank in range(len(schedule.ranks))]
        return Verdict(
            found.simulation.seconds - hidden,
            int(held),
            max(0.0, sum(bubbles) / len(bubbles)),
            sum(found.bare_s) / len(found.bare_s) - hidden,
        )

    def _check(self, held: float, configuration: Configuration) -> None:
        inner = configuration.inner
        budget = budget_of(replace(self.options, mesh=inner, within=configuration.mesh))
        if held > budget:
            raise IrcError(
                "pipeline-memory",
                f"a rank holds {int(held)} bytes, and may hold {budget}",
                help=f"the smallest budget that works is memory_bytes={int(held)}",
            )

    def _of(self, configuration: Configuration, *, splits: bool) -> Blocks | None:
        """Return the pieces on the mesh of a stage; those on another ``data`` axis do as well."""
        own = configuration
        data = _data(own)
        rest = tuple(axis for axis in own.inner.axes if axis[0] != "data")
        each = own.micro_batches * data
        key = (
            own.mesh if own.layout else (rest, data > 1),
            each,
            own.recompute,
            own.layout,
            splits,
        )
        if key not in self._blocks:
            self._blocks[key] = own, self._plan(own, splits=splits)
        known, blocks = self._blocks[key]
        if blocks is None or known.mesh == own.mesh or data == 1:
            return blocks
        return blocks.on(_data(known), data, self._data_s(own) / self._data_s(known))

    def _plan(self, own: Configuration, *, splits: bool) -> Blocks | None:
        options = replace(self.options, mesh=own.mesh, layout=own.layout, brief=True)
        short = self._step(own.micro_batches, own.recompute, options)
        return None if short is None else blocks_of(short, options, splits=splits)

    def _step(self, count: int, recompute: str, options: Options) -> ShortStep | None:
        if self.options.pins or (short := self._shortened(count)) is None:
            return None
        program, recipe = short
        split = split_option(options, recipe)
        key = count, recompute, split is not None
        if key not in self._steps:
            self._steps[key] = short_step(program, replace(recipe, recompute=recompute), split)
        return self._steps[key]

    def _data_s(self, configuration: Configuration) -> float:
        """Return what a large sum over the axis ``data`` takes."""
        cost = ClusterCost(self.cluster, configuration.inner, within=configuration.mesh)
        return cost.collective_seconds("all_reduce", LARGE, "data")

    def _shortened(self, count: int) -> tuple[Program, Recipe] | None:
        if count not in self._short:
            program, recipe = self.forward(count)
            layers = layers_of(program.module)
            if layers is None or layers.count <= LAYERS:
                self._short[count] = None
            else:
                if self._whole is None:
                    self._whole = program.module
                module = shortened(program.module, LAYERS)
                self._short[count] = Program(module, program.tensors, program.source), recipe
        return self._short[count]

    def _contents(self, parts: int) -> tuple[Content, ...]:
        """Return what each stage has of the model where it is cut into so many."""
        if parts not in self._cuts:
            assert self._whole is not None
            self._cuts[parts] = contents_of(self._whole, self.options.cluster, parts)
        return self._cuts[parts]


def _data(configuration: Configuration) -> int:
    return configuration.mesh.size("data") if "data" in configuration.mesh.names else 1


def _hidden_s(
    blocks: Blocks, content: Content, configuration: Configuration, cluster: Cluster
) -> float:
    """Return how much of the sums of gradients a step of one program has under its backward.

    It begins each as soon as the gradient is there: as much as the port has time for.
    """
    mesh = configuration.mesh
    if "data" not in mesh.names:
        return 0.0
    port = "nic" if cluster.crosses_nodes(mesh, "data") else "link"
    busy = sum(part for kinds, part in blocks.mixes.get("B", ()) if port in kinds)
    piece = blocks.stage(content)
    return min(piece.bare_s.get(UPDATE, 0.0), piece.seconds["B"] * (1 - busy))


def contents_of(module: ModuleOp, cluster: str, stages: int) -> tuple[Content, ...]:
    """Return the layers of each stage where a model is cut as ``cut-stages`` would.

    Args:
        module: level flow, as captured, with a run of layers; it stays as it is.
        cluster: that prices ops.
        stages: how many.

    Raises:
        IrcError: ``pipeline-stages`` for more of them than there is to share out.
    """
    copy = module.clone()
    run_passes(copy, Training(stream={}).of_model)
    func = entry(copy)
    layers = layers_of(copy)
    assert layers is not None
    stage_of = balanced(func, Costs(copy, cluster), stages)
    last_of = [stage_of[layers.layer(number)[-1]] for number in range(layers.count)]
    line = ops_in_line(func)
    ends = stage_of[line[0]], stage_of[line[-1]]
    return tuple(
        Content(last_of.count(stage), stage == ends[0], stage == ends[1]) for stage in range(stages)
    )

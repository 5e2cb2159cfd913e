"""Pieces of a model, as prices are put together from them, each planned once.

Pieces are a few layers, planned on the mesh of a stage (:mod:`irc.programs.blocks`), or as a step
of one program (:mod:`irc.programs.program_blocks`). They are kept for all configurations whose
stages are alike: those that differ in the schedule, or in how many stages and copies there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from irc.calls.feeding import axes_called_so
from irc.cluster.topology import Cluster
from irc.cost.model import ClusterCost
from irc.pipeline import Options
from irc.program import Program
from irc.programs.blocks import blocks_of
from irc.programs.make import split_option, trained_of
from irc.programs.program_blocks import blocks_of_program
from irc.programs.short_steps import LEAST, ShortStep, layer_ops, short_step
from irc.search.ahead import Ahead
from irc.search.blocks import Blocks
from irc.search.configurations import Configuration
from irc.search.fitting import LARGE, stored_price
from irc.search.judge import BOUNDLESS
from irc.search.layers import layers_of
from irc.simulate.plan import Contention
from irc.training.recipe import Recipe

Forward: TypeAlias = Callable[[int], tuple[Program, Recipe]]
"""The forward pass of one of so many micro-batches, and how it is trained."""


@dataclass
class Pieces:
    """Plans pieces of a model.

    Args:
        short: gives the program of a micro-batch with the first
            :data:`irc.programs.short_steps.MOST` layers alone.
        options: of the pipeline; the mesh is the configuration's.
        cluster: the machines.
        ahead: plans pieces that will be asked for.
    """

    short: Forward
    options: Options
    cluster: Cluster
    ahead: Ahead = field(default_factory=Ahead)
    _blocks: dict[Hashable, tuple[Configuration, Blocks | None]] = field(
        default_factory=dict[Hashable, "tuple[Configuration, Blocks | None]"]
    )
    _short: dict[int, tuple[Program, Recipe] | None] = field(
        default_factory=dict[int, "tuple[Program, Recipe] | None"]
    )
    _steps: dict[tuple[int, str, bool], ShortStep | None] = field(
        default_factory=dict[tuple[int, str, bool], ShortStep | None]
    )

    def begin(self, configuration: Configuration, *, splits: bool) -> None:
        """Let pieces be planned, since they will probably be asked for."""
        own = configuration
        if _key(own, splits=splits) not in self._blocks:
            job = partial(self.plan, own, splits=splits)
            self.ahead.begin(self._asked(own, splits=splits), job)

    @property
    def planned(self) -> int:
        """How many were planned."""
        return len(self._blocks)

    def known(
        self, configuration: Configuration, *, splits: bool, of_fewer: bool = False
    ) -> Blocks | None:
        """Return pieces that are planned; None where none are.

        Args:
            configuration: the step that they are of.
            splits: backward is two functions.
            of_fewer: those of fewer copies of the model do as well, each with as many samples.
        """
        own = configuration
        if _key(own, splits=splits) in self._blocks:
            return self.of(own, splits=splits)
        if not (of_fewer and own.is_staged):
            return None
        alike = [
            (_data(other), blocks)
            for key, (other, blocks) in self._blocks.items()
            if blocks is not None and key == _key(_copies(own, other), splits=splits)
        ]
        fewer = [each for each in alike if 1 < each[0] <= _data(own)]
        if not fewer:
            return None
        data, blocks = max(fewer, key=lambda each: each[0])
        return blocks.on(data, _data(own), 1.0)

    def of(self, configuration: Configuration, *, splits: bool) -> Blocks | None:
        """Return the pieces on the mesh of a stage; those on another ``data`` axis do as well."""
        own, data = configuration, _data(configuration)
        key = _key(own, splits=splits)
        if key not in self._blocks:
            asked = self._asked(own, splits=splits)
            self._blocks[key] = own, self.ahead.take(asked, lambda: self.plan(own, splits=splits))
        known, blocks = self._blocks[key]
        if blocks is None or known.mesh == own.mesh or data == 1:
            return blocks
        return blocks.on(_data(known), data, self._data_s(own) / self._data_s(known))

    def _asked(self, own: Configuration, *, splits: bool) -> Hashable:
        """Return what pieces are asked for by: of no other mesh, nor of another order of ranks."""
        return self.options.cluster, own.mesh, _key(own, splits=splits)

    def plan(self, own: Configuration, *, splits: bool) -> Blocks | None:
        options = replace(
            self.options,
            mesh=own.mesh,
            layout=own.layout,
            # Pieces are of several stages: what fits is known of the stages alone.
            memory_bytes=BOUNDLESS,
            stored_price=stored_price(self.cluster, own),
            brief=True,
        )
        if not own.is_staged:
            return self._plan_program(own, options)
        short = self._step(own.micro_batches, own.recompute, options)
        return None if short is None else blocks_of(short, options, splits=splits)

    def _plan_program(self, own: Configuration, options: Options) -> Blocks | None:
        """Return the pieces of a step of one program."""
        from irc.calls.step_plan import training_plan

        if self.options.pins or (short := self._shortened(1)) is None:
            return None
        program, recipe = short
        if (ops := layer_ops(program.module)) is None:
            return None
        trained = ",".join(sorted(trained_of(program, recipe)))
        recipe = replace(recipe, recompute=own.recompute, frozen="")
        options = replace(options, samples=axes_called_so(own.mesh))
        step = Program(program.module.clone(), dict(program.tensors), program.source)
        plan = training_plan(step, recipe, options, trained).plan
        return blocks_of_program(plan, ops, Contention.of(self.cluster, plan.device_mesh))

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
            short = self.short(count)
            layers = layers_of(short[0].module)
            self._short[count] = None if layers is None or layers.count <= LEAST else short
        return self._short[count]


def _key(own: Configuration, *, splits: bool) -> Hashable:
    """Return what pieces are of; those on two ``data`` axes are alike.

    Not where a step is one program, which sums gradients over ``data`` during backward; nor where
    weights or sums lie in parts: each micro-batch then communicates over ``data``, and
    how much lies in parts follows from a price, which is of the mesh and the micro-batches.
    """
    data = _data(own)
    rest = tuple(axis for axis in own.inner.axes if axis[0] != "data")
    is_like = own.is_staged and not own.layout and not own.in_parts
    mesh = (rest, data > 1) if is_like else own.mesh
    return mesh, own.micro_batches * data, own.layout, own.recompute, own.in_parts, splits


def _copies(own: Configuration, other: Configuration) -> Configuration:
    """Return a step with the copies, stages and micro-batches of another one of as many samples."""
    if own.micro_batches * _data(own) != other.micro_batches * _data(other):
        return own
    rest = tuple(axis for axis in own.inner.axes if axis[0] != "data")
    if rest != tuple(axis for axis in other.inner.axes if axis[0] != "data"):
        return own
    return replace(own, mesh=other.mesh, micro_batches=other.micro_batches)


def _data(configuration: Configuration) -> int:
    return configuration.mesh.size("data") if "data" in configuration.mesh.names else 1

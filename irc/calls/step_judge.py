"""Judges steps of training: of one program, or of stages and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from irc.calls.assembly import Assembly
from irc.calls.best_meshes import best_meshes
from irc.calls.feeding import axes_called_so
from irc.calls.forward_passes import ForwardPasses
from irc.calls.plan_judge import PlanJudge
from irc.calls.plan_prices import Prices
from irc.collection import collected_in_turn
from irc.constraints.steps import based_on
from irc.dialects.placement import Mesh
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan
from irc.programs.short_steps import LEAST
from irc.schedule.actions import Schedule
from irc.search.configurations import NOTHING, Configuration, Outline
from irc.search.judge import Verdict
from irc.search.layers import layers_of
from irc.search.shared import Shared, sharing
from irc.simulate.verdicts import verdict_of, verdict_of_parts


@dataclass
class StepJudge(PlanJudge):
    """Judges steps of training.

    Args:
        forwards: of the micro-batches; recompute is the configuration's.
        stages: where stages begin; empty: the best cut.
    """

    forwards: ForwardPasses
    stages: str = ""
    _shared: Shared = field(default_factory=Shared)

    def whole_outline(self) -> Outline:
        """Return what the forward pass of the whole batch says of itself."""
        return self.forwards.outline

    def in_pieces(self) -> bool:
        """Whether the model has layers enough, and nothing is fixed of single ones."""
        again = self.forwards.recipe.recompute
        if self.stages or self.options.pins or based_on(NOTHING, again) != NOTHING:
            return False
        known = layers_of(self.forwards.cut(1)[0].program.module)
        return known is not None and known.count > LEAST

    @collected_in_turn()
    def price(self, configuration: Configuration) -> Verdict | None:
        """Return what pieces of the model say of a step."""
        with sharing(self._shared):
            return self.in_better_order(configuration, lambda own: own.prices.price(configuration))

    @collected_in_turn()
    def fitting(self, configuration: Configuration, beat_s: float = inf) -> Configuration | None:
        """Return a step that is made to fit in the least time; in any order, it holds as much."""
        beat_s = inf if self._may_be_elsewhere(configuration) else beat_s
        with sharing(self._shared):
            return self.prices.fitting(configuration, beat_s)

    @collected_in_turn()
    def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
        """Return what pieces of the model say that a step takes at least, in any order."""
        if self._may_be_elsewhere(configuration):
            return 0.0
        with sharing(self._shared):
            return self.prices.least_s(configuration, is_fitted=is_fitted)

    @cached_property
    def prices(self) -> Prices:
        """What pieces of the model say, of the devices in order."""
        own = self.forwards
        steps = Assembly(own.of, own.short, self.options, self.cluster, self.ahead)
        return Prices(steps, self.outline().again)

    def prepare(self, configuration: Configuration) -> None:
        """Trace what the forward pass of a micro-batch follows from."""
        self.forwards.prepare(configuration.micro_batches)

    def begin_price(self, configuration: Configuration) -> None:
        """Let the pieces of a configuration be planned ahead."""
        with sharing(self._shared):
            self.prices.begin(configuration)

    @collected_in_turn()
    def meshes(self, devices: int, recompute: str) -> Sequence[Mesh]:
        """Return the best meshes of a step of one program."""
        from irc.train import training_program

        captured, split = self.forwards.cut(1)
        recipe = self.forwards.recipe
        recompute = based_on(recompute, recipe.recompute)
        recipe = replace(recipe, split=split, recompute=recompute)
        program = training_program(
            captured.program.copy(),
            trainable=self.forwards.module,
            frozen=recipe.frozen,
            optimizer=recipe.optimizer,
            loss=recipe.loss,
            recompute=recompute,
            stream=True,
        )
        return best_meshes(program, self.options, devices, is_training=True)

    def plan(self, configuration: Configuration, *, brief: bool) -> Verdict:
        """Plan a step on the devices in order, and simulate it."""
        with sharing(self._shared):
            return self._plan(configuration, brief=brief)

    def _plan(self, configuration: Configuration, *, brief: bool) -> Verdict:
        if configuration.is_staged:
            plan = self._parts(configuration, brief=brief)
            return verdict_of_parts(plan, self.cluster.fit(plan.mesh))
        return verdict_of(self._of_one_program(configuration, brief=brief), self.cluster)

    def _of_one_program(self, configuration: Configuration, *, brief: bool) -> Plan:
        from irc.calls.step_plan import training_plan

        captured, split = self.forwards.cut(1)
        recipe = self.forwards.recipe
        again = based_on(configuration.recompute, recipe.recompute)
        recipe = replace(recipe, split=split, recompute=again)
        options = self.options_of(configuration, brief=brief)
        options = replace(options, samples=axes_called_so(configuration.mesh))
        return training_plan(captured.program.copy(), recipe, options, self.forwards.module).plan

    def _parts(self, configuration: Configuration, *, brief: bool) -> PartsPlan:
        from irc.programs.in_order import plan_in_order
        from irc.programs.make import make_parts_plan

        count = configuration.micro_batches
        program, recipe = self.forwards.of(count)
        again = based_on(configuration.recompute, self.forwards.recipe.recompute)
        recipe = replace(recipe, recompute=again)
        options = self.options_of(configuration, brief=brief)

        def make(schedule: Schedule) -> PartsPlan:
            return make_parts_plan(program.copy(), recipe, options, schedule, self.stages)

        own = configuration.schedule, configuration.pipe, count
        return plan_in_order(*own, make, options)

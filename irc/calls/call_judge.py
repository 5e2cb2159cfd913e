"""Judges calls of a program, which has one micro-batch and no stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from irc.calls.best_meshes import best_meshes, canonical
from irc.calls.plan_judge import PlanJudge
from irc.collection import collected_in_turn
from irc.dialects.placement import Mesh
from irc.pipeline import make_plan
from irc.program import Program
from irc.search.configurations import Configuration, Outline
from irc.search.judge import Verdict
from irc.search.outline import outline_of
from irc.search.products import products_of_call, read_by_call
from irc.simulate.verdicts import verdict_of


@dataclass
class CallJudge(PlanJudge):
    """Judges calls of a program.

    Args:
        program: as a frontend gives it; it stays as it is.
    """

    program: Program

    def whole_outline(self) -> Outline:
        """Return what the program says of itself."""
        simple = canonical(self.program)
        return outline_of(
            self.program.module, products=products_of_call(simple), held=read_by_call(simple)
        )

    def in_pieces(self) -> bool:
        """No: a call has one program."""
        return False

    def price(self, configuration: Configuration) -> Verdict | None:
        """Return nothing: a call has one program."""
        del configuration

    def prepare(self, configuration: Configuration) -> None:
        """Compute nothing: the program is there."""
        del configuration

    def begin_price(self, configuration: Configuration) -> None:
        """Compute nothing ahead: nothing is priced."""
        del configuration

    def fitting(self, configuration: Configuration, beat_s: float = inf) -> Configuration | None:
        """Return nothing: a call computes nothing again."""
        del configuration, beat_s

    def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
        """Return nothing: a call has one program."""
        del configuration, is_fitted
        return 0.0

    @collected_in_turn()
    def meshes(self, devices: int, recompute: str) -> Sequence[Mesh]:
        """Return the best meshes."""
        del recompute
        return best_meshes(self.program.copy(), self.options, devices)

    def plan(self, configuration: Configuration, *, brief: bool) -> Verdict:
        """Plan a mesh on the devices in order."""
        options = self.options_of(configuration, brief=brief)
        plan = make_plan(self.program.copy(), options, keep_ir=False).plan
        return verdict_of(plan, self.cluster)

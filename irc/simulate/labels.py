"""What the steps of a plan are called in traces, predicted or measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from irc.plan.schema import Call, Copy, Library, Plan, Start, Step, Wait
from irc.simulate.plan import op_of, steps
from irc.trace.form import Label, phase_of_id


@dataclass(frozen=True)
class Labels:
    """The labels of a plan's steps.

    Attributes:
        plan: of one program, or a function of one of several.
    """

    plan: Plan

    def __call__(self, step: Step) -> Label:
        """Return the label of a step; of a wait, that of the collective."""
        if isinstance(step, Wait):
            begun = self.plan.actions[step.start]
            assert isinstance(begun, Start)
            return self(begun)
        line = getattr(step, "loc", "")
        name = step.id.removesuffix(".start")
        return Label(
            op_of(self.plan, step),
            name,
            "" if line == "unknown" else line,
            self._num_bytes(step),
            phase_of_id(name) if self._trains else "",
        )

    @cached_property
    def _trains(self) -> bool:
        return any(phase_of_id(step.id) != "forward" for _, step in steps(self.plan))

    def _num_bytes(self, step: Step) -> int:
        """Return what a step reads and writes, or of a collective the larger of its two sides."""
        buffers = self.plan.buffers
        match step:
            case Start():
                sides = ((step.source,), step.outputs)
                return max(sum(buffers[i].size_bytes for i in side) for side in sides)
            case Call():
                touched = step.args
            case Library():
                touched = (*step.inputs, *step.outputs)
            case Copy():
                touched = (step.source, step.target)
            case _:
                touched = ()
        return sum(buffers[index].size_bytes for index in touched)

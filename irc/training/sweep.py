"""The backward sweep over one function: gradients of its arguments from those of its results.

Reverse-mode differentiation of straight-line code (Griewank and Walther, Evaluating Derivatives,
chapter 3): ops in reverse order, each turning its results' gradients into its operands', which add
up where a value is read more than once. Nothing is built for a value that no wanted argument
reaches, so frozen weights cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.dialects.literals import RandomOp
from irc.errors import ErrorCollector, InternalError, IrcError
from irc.ops.derivative import Adjoint, NotDifferentiable, Part, PhaseBuilder
from irc.ops.derivatives import gradient, is_flat, is_smooth
from irc.ops.derivatives_softmax import find_softmax

Gradients: TypeAlias = "Sequence[SSAValue | None]"

CallSweep: TypeAlias = "Callable[[CallOp, Gradients, Sweep], Gradients]"
"""Replaces a call by its forward and backward parts; returns the operands' gradients."""


class Sweep:
    """One function body while it is differentiated.

    Attributes:
        block: the body; backward ops are appended to it, after its return is taken off.
        active: values that depend on a wanted argument.
        fixed: values that depend on parameters and literals alone: the weights of contractions.
    """

    def __init__(
        self,
        block: Block,
        wanted: Sequence[SSAValue],
        fixed: Sequence[SSAValue],
        errors: ErrorCollector,
        on_call: CallSweep,
    ) -> None:
        self.block, self.errors, self._on_call = block, errors, on_call
        self.active, self.fixed = set(wanted), set(fixed)
        self._gradients: dict[SSAValue, SSAValue] = {}
        self.forward = [op for op in block.ops if not isinstance(op, ReturnOp)]
        for op in self.forward:
            op.attributes["phase"] = StringAttr("forward")
            self._visit(op)

    def _visit(self, op: Operation) -> None:
        smooth = not (isinstance(op, FlowOp) and is_flat(op))
        if smooth and any(value in self.active for value in op.operands):
            self.active.update(value for value in op.results if is_smooth(value))
        # What is drawn changes from call to call, as inputs do.
        drawn = isinstance(op, RandomOp)
        if not drawn and all(value in self.fixed for value in op.operands):
            self.fixed.update(op.results)

    def run(self, seeds: Mapping[SSAValue, SSAValue]) -> None:
        """Sweep backwards from the gradients of some values."""
        self._gradients.update({v: g for v, g in seeds.items() if v in self.active})
        for op in reversed(self.forward):
            incoming = [self._gradients.get(value) for value in op.results]
            wanted = [i for i, value in enumerate(op.operands) if value in self.active]
            if wanted and any(g is not None for g in incoming):
                self._op(op, incoming, wanted)

    def gradient(self, value: SSAValue) -> SSAValue | None:
        """Return the gradient of a value, or None where the seeds do not depend on it."""
        return self._gradients.get(value)

    def builder(self, op: Operation, prefix: str = "g") -> PhaseBuilder:
        """Return a builder of backward ops that have an op's line, and ids made of its id."""
        return PhaseBuilder(self.block, "backward", prefix=f"{id_of(op)}.{prefix}", loc=loc_of(op))

    def part(self, value: SSAValue) -> Part:
        """Say whether a gradient is of a weight, or leads to earlier layers."""
        return "weight" if value in self.fixed else "input"

    def _op(self, op: Operation, incoming: Gradients, wanted: Sequence[int]) -> None:
        b = self.builder(op)
        if isinstance(op, CallOp):
            operands = list(op.operands)
            for value, contribution in zip(
                operands, self._on_call(op, incoming, self), strict=True
            ):
                self._add(b, value, contribution)
            return
        assert isinstance(op, FlowOp), op.name
        softmax = find_softmax(op)
        if softmax is not None:
            b.part = "input"
            assert incoming[0] is not None
            self._add(b, softmax.x, softmax.gradient(b, incoming[0]))
            return
        # A derivative may put another op in the place of its own, which keeps more for it.
        at, operands = Adjoint(op, b, incoming, wanted), list(op.inputs)
        for operand in wanted:
            b.part = self.part(operands[operand])
            try:
                contribution = gradient(at, operand)
            except NotDifferentiable as reason:
                self._refuse(op, str(reason))
                # Go on past it, so that all such ops are reported at once.
                contribution = at.zeros(at.kind(operand)) if is_smooth(operands[operand]) else None
            self._add(b, operands[operand], contribution)

    def _add(self, b: PhaseBuilder, value: SSAValue, contribution: SSAValue | None) -> None:
        if contribution is None or value not in self.active:
            return
        if contribution.type != value.type:
            raise InternalError(
                f"the gradient of {value.type} in {b.loc} is {tensor(contribution)}"
            )
        before = self._gradients.get(value)
        if before is not None:
            b.part = self.part(value)
            contribution = b.pointwise("add", before, contribution)
        self._gradients[value] = contribution

    def _refuse(self, op: FlowOp, reason: str) -> None:
        self.errors.add(
            IrcError(
                "not-differentiable",
                f"no gradient can pass {op.plain.get('target', op.name)} ({id_of(op)})",
                where=loc_of(op),
                because=reason,
                help="freeze the parameters before it, or detach its operand in the module",
            )
        )

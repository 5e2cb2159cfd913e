"""What one derivative is written with: the op at hand, its results' gradients, and a builder.

A derivative is a function of an :class:`Adjoint` and the number of an operand. It returns the
gradient of that operand, of the operand's own type, or None where the op does not depend on it
smoothly (the index of a lookup, the condition of a choice).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Block, SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.size import Dim, Size
from irc.dialects.types import Shape, TensorType

Phase: TypeAlias = Literal["forward", "backward", "step"]
"""Attribute ``phase`` of every op of a training program."""

Part: TypeAlias = Literal["input", "weight"]
"""Attribute ``grad`` of backward ops: on the way to earlier layers, or for a weight alone.

A schedule may delay the weight's part (zero bubble, arXiv:2401.10241)."""

Derivative: TypeAlias = "Callable[[Adjoint, int], SSAValue | None]"


class NotDifferentiable(Exception):  # noqa: N818 - an answer that the sweep collects
    """The op has no derivative; the text says why."""


class PhaseBuilder(FlowBuilder):
    """A builder that stamps ``phase``, and ``grad`` where ``part`` is set, on what it appends."""

    def __init__(self, block: Block, phase: Phase, *, prefix: str, loc: str) -> None:
        super().__init__(block, prefix)
        self.phase: Phase = phase
        self.part: Part | None = None
        self.loc = loc

    def ops(
        self,
        cls: type[FlowOp],
        inputs: Sequence[SSAValue],
        *,
        results: Sequence[Attribute] | None = None,
        id: str | None = None,  # noqa: A002 - as in the base class
        **attrs: Any,
    ) -> list[SSAValue]:
        values = super().ops(cls, inputs, results=results, id=id, **attrs)
        stamp(values[0], self.phase, self.part)
        return values


def stamp(value: SSAValue, phase: Phase, part: Part | None) -> None:
    """Mark the op that makes a value."""
    op = value.owner
    assert not isinstance(op, Block)
    op.attributes["phase"] = StringAttr(phase)
    if part is not None:
        op.attributes["grad"] = StringAttr(part)


class Adjoint:
    """One op while its derivative is written.

    Attributes:
        op: the forward op.
        b: where backward ops go.
        gradients: of each result, None where nothing depends on it.
        wanted: the operands whose gradients are asked for.
    """

    def __init__(
        self,
        op: FlowOp,
        b: PhaseBuilder,
        gradients: Sequence[SSAValue | None],
        wanted: Sequence[int],
    ) -> None:
        self.op, self.b, self.gradients, self.wanted = op, b, tuple(gradients), tuple(wanted)
        self.attrs = op.plain
        self._shared: dict[str, Any] = {}

    @property
    def inputs(self) -> Sequence[SSAValue]:
        """The operands of the forward op."""
        return tuple(self.op.inputs)

    @property
    def x(self) -> SSAValue:
        """The first operand."""
        return self.op.inputs[0]

    @property
    def y(self) -> SSAValue:
        """The first result."""
        return self.op.outputs[0]

    @property
    def g(self) -> SSAValue:
        """The gradient of the first result; zeros where only others have one."""
        gradient = self.gradients[0]
        return self.zeros(tensor(self.y)) if gradient is None else gradient

    def kind(self, operand: int) -> TensorType:
        """The type of an operand."""
        return tensor(self.op.inputs[operand])

    def zeros(self, kind: TensorType) -> SSAValue:
        """Zeros of a type."""
        return self.b.constant([0], kind.shape, kind.dtype)

    def shared(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what several operands' gradients need, made once; it is on the input's way."""
        if key not in self._shared:
            part, self.b.part = self.b.part, "input"
            self._shared[key] = make()
            self.b.part = part
        return self._shared[key]

    def reduced_to(self, value: SSAValue, shape: Shape) -> SSAValue:
        """Add up the dims that a broadcast from ``shape`` made or stretched."""
        return reduced_to(self.b, value, shape)


def reduced_to(b: FlowBuilder, value: SSAValue, shape: Shape) -> SSAValue:
    """Add up the dims of a value that a broadcast from ``shape`` made or stretched."""
    have = tensor(value).shape
    if have == tuple(shape):
        return value
    extra = len(have) - len(shape)
    dims = [*range(extra)]
    dims += [extra + i for i, size in enumerate(shape) if size == 1 and have[extra + i] != 1]
    return (
        b.reshape(b.reduce("sum", value, dims, keep_dims=False), shape)
        if dims
        else b.reshape(value, shape)
    )


def known(size: Dim) -> int:
    """Return a size as a number.

    Raises:
        NotDifferentiable: where it is still a name.
    """
    if isinstance(size, Size):
        raise NotDifferentiable(f"size '{size}' must be bound to a number first")
    return size


def kept_shape(shape: Shape, dims: Sequence[int]) -> tuple[Dim, ...]:
    """Return a shape with dims of size 1 in the place of those that are reduced."""
    return tuple(1 if i in dims else size for i, size in enumerate(shape))

"""What all gradients of a step say together: their common norm, and whether one has overflowed."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.training.loss_scale import num_overflows


@dataclass(frozen=True)
class Common:
    """What all gradients together say to each parameter's step.

    Attributes:
        clip: what gradients are multiplied by where their common norm exceeds the limit.
        inverse: what scaled gradients are multiplied by.
        skips: true where nothing is to move.
    """

    clip: SSAValue | None = None
    inverse: SSAValue | None = None
    skips: SSAValue | None = None


@dataclass(frozen=True)
class Totals:
    """Sums over the elements of all gradients, or None where nobody asks for one.

    Attributes:
        squares: of the squares.
        overflows: how many are infinite or NaN, float32.
    """

    squares: SSAValue | None = None
    overflows: SSAValue | None = None

    @property
    def values(self) -> list[SSAValue]:
        """Those that are asked for."""
        return [each for each in (self.squares, self.overflows) if each is not None]

    def like(self, values: list[SSAValue]) -> Totals:
        """Return totals of which the same are asked for."""
        rest = iter(values)
        squares = None if self.squares is None else next(rest)
        return Totals(squares, None if self.overflows is None else next(rest))

    def more(self, b: FlowBuilder, gradient: SSAValue, inverse: SSAValue | None) -> Totals:
        """Append what adds a gradient.

        Args:
            b: where ops go.
            gradient: of any dtype.
            inverse: what it is multiplied by before it is squared, float32.
        """
        squares, overflows = self.squares, self.overflows
        if squares is not None:
            value = b.cast(gradient, widened(tensor(gradient).dtype))
            if inverse is not None:
                value = b.pointwise("mul", value, b.cast(inverse, tensor(value).dtype))
            square = b.pointwise("mul", value, value)
            part = b.reduce("sum", square, range(tensor(value).ndim), keep_dims=False)
            squares = b.pointwise("add", squares, b.cast(part, tensor(squares).dtype))
        if overflows is not None:
            overflows = b.pointwise("add", overflows, num_overflows(b, gradient))
        return Totals(squares, overflows)


def clip_factor(b: FlowBuilder, squares: SSAValue, limit: float) -> SSAValue:
    """Append what gradients are multiplied by where their common norm exceeds a limit."""
    dtype = tensor(squares).dtype
    # torch.nn.utils.clip_grad_norm_ adds this to the norm.
    norm = b.pointwise("add", b.pointwise("sqrt", squares), b.scalar(1e-6, dtype))
    ratio = b.pointwise("div", b.scalar(limit, dtype), norm)
    return b.pointwise("minimum", ratio, b.scalar(1, dtype))


def widened(dtype: str) -> str:
    """Return the dtype that a parameter of a dtype is updated in."""
    return "f32" if dtype in ("f16", "bf16") else dtype

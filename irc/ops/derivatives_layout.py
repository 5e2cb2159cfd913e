"""Derivatives of the ops that move elements: each sends the gradient back where it came from."""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import PadOp, SliceOp, TransposeOp, tensor
from irc.ops.derivative import Adjoint, PhaseBuilder, known


def reshape(at: Adjoint, operand: int) -> SSAValue:
    """Reshape back."""
    return at.b.reshape(at.g, at.kind(0).shape)


def transpose(at: Adjoint, operand: int) -> SSAValue:
    """Apply the inverse permutation."""
    perm: tuple[int, ...] = at.attrs["perm"]
    inverse = tuple(perm.index(dim) for dim in range(len(perm)))
    return at.b.op(TransposeOp, [at.g], perm=inverse)


def broadcast(at: Adjoint, operand: int) -> SSAValue:
    """Add up what was stretched."""
    return at.reduced_to(at.g, at.kind(0).shape)


def padded(b: FlowBuilder, x: SSAValue, low: tuple[int, ...], high: tuple[int, ...]) -> SSAValue:
    """Add zeros around a value; negative amounts crop."""
    if not any((*low, *high)):
        return x
    return b.op(PadOp, [x], low=low, high=high, value=0.0)


def slice_(at: Adjoint, operand: int) -> SSAValue:
    """Put zeros where nothing was taken: between the elements of a step, and around."""
    g, shape = at.g, at.kind(0).shape
    starts: tuple[int, ...] = at.attrs["starts"]
    steps: tuple[int, ...] = at.attrs["steps"]
    for dim, step in enumerate(steps):
        if step != 1:
            g = _spread(at.b, g, dim, step)
    high = tuple(
        known(size - start - length)
        for size, start, length in zip(shape, starts, tensor(g).shape, strict=True)
    )
    return padded(at.b, g, starts, high)


def _spread(b: PhaseBuilder, g: SSAValue, dim: int, step: int) -> SSAValue:
    """Put ``step - 1`` zeros after each element along a dim."""
    shape = tensor(g).shape
    columns = b.reshape(g, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    zero = (0,) * (len(shape) + 1)
    columns = padded(b, columns, zero, (*zero[: dim + 1], step - 1, *zero[dim + 2 :]))
    return b.reshape(columns, (*shape[:dim], shape[dim] * step, *shape[dim + 1 :]))


def cut(b: PhaseBuilder, x: SSAValue, dim: int, start: int, stop: int) -> SSAValue:
    """Return ``x[start:stop]`` along a dim, the others whole."""
    shape = tensor(x).shape
    if start == 0 and stop == shape[dim]:
        return x
    starts = tuple(start if i == dim else 0 for i in range(len(shape)))
    stops = tuple(
        stop if i == dim else size if isinstance(size, int) else -1 for i, size in enumerate(shape)
    )
    return b.op(SliceOp, [x], starts=starts, stops=stops, steps=(1,) * len(shape))


def concat(at: Adjoint, operand: int) -> SSAValue:
    """Cut the operand's part out."""
    dim: int = at.attrs["dim"]
    sizes = [known(tensor(value).shape[dim]) for value in at.inputs]
    start = sum(sizes[:operand])
    return cut(at.b, at.g, dim, start, start + sizes[operand])


def pad(at: Adjoint, operand: int) -> SSAValue:
    """Crop what was added, add zeros where it cropped."""
    low, high = at.attrs["low"], at.attrs["high"]
    if min((*low, *high), default=0) < 0:
        return padded(at.b, at.g, tuple(-n for n in low), tuple(-n for n in high))
    g = at.g
    for dim, (start, size) in enumerate(zip(low, at.kind(0).shape, strict=True)):
        if start or high[dim]:
            g = cut(at.b, g, dim, start, start + known(size))
    return g

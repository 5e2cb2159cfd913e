"""Losses that are sums over samples, in a step of micro-batches.

The loss of a step is the mean over its micro-batches, each counted by its part of the samples. For
a mean over samples that is the loss of the whole batch. A sum over samples is another matter: with
S_i the sum of a micro-batch and p its part of the samples, the loss of the batch is

    sum of S_i    and not    sum of p * S_i

so that here each such term becomes S_i / p. Which terms are sums is told by how they grow with the
samples (:mod:`irc.training.degrees`): a term of degree 1 is a sum, one of degree 0 a mean. Others
are left alone, as is what is divided by a sum over the batch (tokens that count), which
:mod:`irc.training.normalisers` weighs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias, TypeGuard

from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import FlowBuilder, arguments, entry
from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    FlowOp,
    PadOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    loc_of,
    tensor,
)
from irc.program import Program
from irc.training.degrees import ALIKE, CLOSE, Degree, Degrees, fn_of, have_same_ops
from irc.training.entry import loss_index


def divides_by_tokens(program: Program, loss: str, cut: Collection[str]) -> bool:
    """Return whether a loss is one sum divided by a sum over inputs, as a mean over tokens is.

    Args:
        program: the forward pass of a micro-batch.
        loss: its name.
        cut: names of the inputs of which a micro-batch has its part.

    Raises:
        IrcError: ``loss-unknown``.
    """
    value, _ = _loss(program, loss)
    while isinstance(op := value.owner, PointwiseOp | ReshapeOp) and fn_of(op) in ALIKE:
        value = op.operands[0]
    if not isinstance(op, PointwiseOp) or fn_of(op) != "div":
        return False
    is_sum = [isinstance(v.owner, ReduceOp) and fn_of(v.owner) == "sum" for v in op.operands]
    top, divisor = op.operands
    if not all(is_sum) or divisor not in _from(program, cut):
        return False
    # What is summed is no share of the batch already: it is not divided or scaled by a number.
    assert isinstance(top.owner, ReduceOp)
    inner = top.owner.operands[0].owner
    return isinstance(inner, PointwiseOp) and fn_of(inner) in {"where", "neg"}


Path: TypeAlias = "tuple[tuple[str, int], ...]"
"""The way from a loss to a value: functions, and which operand of each; without reshapes."""


@dataclass(frozen=True)
class Terms:
    """The terms of a loss.

    Attributes:
        sums: paths of those that are sums over samples.
        unknown: paths of those that are, as far as can be told, neither sums nor means.
    """

    sums: frozenset[Path]
    unknown: frozenset[Path]


def summed_terms(program: Program, other: Program, loss: str, ratio: float) -> Terms | None:
    """Return where the terms of a loss that are sums over samples are read.

    Args:
        program: the forward pass of a micro-batch.
        other: that of one with more samples.
        loss: name of the loss.
        ratio: how many times the samples of ``program`` the other has; above 1.

    Returns:
        The terms; None where the two are computed by other ops and cannot be compared.

    Raises:
        IrcError: ``loss-unknown``.
    """
    value, _ = _loss(program, loss)
    if not have_same_ops(program, other):
        return None
    terms = set(_terms((), value, 0.0, Degrees(program, other, ratio).of))
    sums = frozenset(path for path, is_sum in terms if is_sum)
    return Terms(sums, frozenset(path for path, is_sum in terms if not is_sum))


def weigh_terms(program: Program, paths: Iterable[Path], loss: str, part: float) -> bool:
    """Divide terms of a loss by a micro-batch's part of the samples.

    Args:
        program: the forward pass of a micro-batch; changed, unless it has no such terms.
        paths: where the terms are read; of this program, or of one with more samples.
        loss: name of the loss.
        part: of the samples of the batch, that ``program`` has.

    Returns:
        Whether the program has all of them.
    """
    places = {_place(program, path, loss) for path in paths}
    if None in places:
        return False
    for number, place in enumerate(sorted(filter(None, places), key=lambda each: each.index)):
        operand = place.user.operands[place.index]
        block = place.user.parent_block()
        assert block is not None
        b = FlowBuilder(block, f"samples{number}.", before=place.user)
        b.loc = loc_of(place.user) if isinstance(place.user, FlowOp) else "micro-batches"
        factor = b.scalar(1 / part, tensor(operand).dtype)
        place.user.operands[place.index] = b.pointwise("mul", operand, factor)
    return True


@dataclass(frozen=True)
class _Place:
    """Where a term is read."""

    user: Operation
    index: int


def _place(program: Program, path: Path, loss: str) -> _Place | None:
    """Return where a path leads to; None where the program has no such ops."""
    value, index = _loss(program, loss)
    user = entry(program.module).body.block.last_op
    assert user is not None
    for fn, operand in path:
        while isinstance(value.owner, ReshapeOp):
            value = value.owner.operands[0]
        if not isinstance(value.owner, FlowOp) or _label(value.owner) != fn:
            return None
        user, index = value.owner, operand
        value = user.operands[index]
    return _Place(user, index)


def _label(op: FlowOp) -> str:
    """Return what an op is called in a path."""
    return fn_of(op) if isinstance(op, PointwiseOp) else op.name


LINEAR = (ReshapeOp, BroadcastOp, TransposeOp, SliceOp, PadOp)
"""Moves: what their operand is a sum of, they give."""


def _terms(
    path: Path, value: SSAValue, offset: float, degrees: Mapping[SSAValue, Degree]
) -> Iterator[tuple[Path, bool]]:
    """Yield the paths on which sums over samples enter a loss; each is one term of it.

    False stands beside the path of what is neither a sum nor a mean.
    """
    degree, op = degrees.get(value), value.owner
    if degree is not None:
        if abs(degree + offset) >= CLOSE:
            yield path, abs(degree + offset - 1) < CLOSE
        return
    steps = _operands(op, offset, degrees)
    if not steps:
        yield path, False
    for index, more in steps:
        assert isinstance(op, FlowOp)
        step = () if isinstance(op, ReshapeOp) else ((_label(op), index),)
        yield from _terms((*path, *step), op.operands[index], more, degrees)


def _operands(
    op: object, offset: float, degrees: Mapping[SSAValue, Degree]
) -> list[tuple[int, float]]:
    """Return the operands of which an op gives a sum, and by what degree each is multiplied."""
    if _is_stack(op):
        return [(index, offset) for index in range(len(op.operands))]
    if isinstance(op, LINEAR) or _is_inner_sum(op):
        return [(0, offset)]
    if not isinstance(op, PointwiseOp):
        return []
    fn = fn_of(op)
    if fn in ("add", "sub", "neg", "cast", "copy", "detach"):
        return [(index, offset) for index in range(len(op.operands))]
    if fn in ("mul", "div"):
        left, right = (degrees.get(operand) for operand in op.operands)
        if right is not None:
            return [(0, offset + (right if fn == "mul" else -right))]
        if left is not None and fn == "mul":
            return [(1, offset + left)]
    return []


def _is_inner_sum(op: object) -> bool:
    """True for a sum of values beside each other, such as the terms of a loss."""
    if not isinstance(op, ReduceOp) or fn_of(op) != "sum":
        return False
    value = op.operands[0]
    while isinstance(value.owner, LINEAR) or (
        isinstance(value.owner, PointwiseOp) and fn_of(value.owner) == "mul"
    ):
        value = value.owner.operands[0]
    return _is_stack(value.owner)


def _is_stack(op: object) -> TypeGuard[ConcatOp]:
    """True for numbers put beside each other; whole rows may be samples."""
    return isinstance(op, ConcatOp) and all(
        prod(tensor(each).static_shape()) == 1 for each in op.operands
    )


def _loss(program: Program, name: str) -> tuple[SSAValue, int]:
    func = entry(program.module)
    end = func.body.block.last_op
    assert end is not None
    at = loss_index(func, name)
    return end.operands[at], at


def _from(program: Program, cut: Collection[str]) -> set[SSAValue]:
    """Return the values that depend on inputs of these names, and on no others but constants."""
    func = entry(program.module)
    named = arguments(func)
    seen = {value for role, name, value in named if role == "input" and name in cut}
    inside = {*seen, *(value for role, _, value in named if role == "constant")}
    for op in func.body.block.ops:
        if all(operand in inside for operand in op.operands):
            inside.update(op.results)
            if any(operand in seen for operand in op.operands):
                seen.update(op.results)
    return seen

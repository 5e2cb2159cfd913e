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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import FlowBuilder, arguments, entry
from irc.dialects.flow import FlowOp, PointwiseOp, ReduceOp, ReshapeOp, loc_of, tensor
from irc.program import Program
from irc.training.degrees import ALIKE, CLOSE, Degree, Degrees, fn_of, have_same_ops
from irc.training.entry import loss_index


def divides_by_tokens(program: Program, loss: str) -> bool:
    """Return whether a loss is one sum divided by a sum over inputs, as a mean over tokens is.

    Args:
        program: the forward pass of a micro-batch.
        loss: its name.

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
    if not all(is_sum) or divisor not in _from(program, ("input",)):
        return False
    # What is summed is no share of the batch already: it is not divided or scaled by a number.
    assert isinstance(top.owner, ReduceOp)
    inner = top.owner.operands[0].owner
    return isinstance(inner, PointwiseOp) and fn_of(inner) in {"where", "neg"}


Path: TypeAlias = "tuple[tuple[str, int], ...]"
"""The way from a loss to a value: functions, and which operand of each; without reshapes."""


def summed_terms(program: Program, other: Program, loss: str, ratio: float) -> set[Path] | None:
    """Return where the terms of a loss that are sums over samples are read.

    Args:
        program: the forward pass of a micro-batch.
        other: that of one with more samples.
        loss: name of the loss.
        ratio: how many times the samples of ``program`` the other has; above 1.

    Returns:
        Their paths; None where the two are computed by other ops and cannot be compared.

    Raises:
        IrcError: ``loss-unknown``.
    """
    value, _ = _loss(program, loss)
    if not have_same_ops(program, other):
        return None
    return set(_terms((), value, 0.0, Degrees(program, other, ratio).of))


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
        if not isinstance(value.owner, PointwiseOp) or fn_of(value.owner) != fn:
            return None
        user, index = value.owner, operand
        value = user.operands[index]
    return _Place(user, index)


def _terms(
    path: Path, value: SSAValue, offset: float, degrees: Mapping[SSAValue, Degree]
) -> Iterator[Path]:
    """Yield the paths on which sums over samples enter a loss; each is one term of it."""
    degree, op = degrees.get(value), value.owner
    if degree is not None:
        if abs(degree + offset - 1) < CLOSE:
            yield path
        return
    if isinstance(op, ReshapeOp):
        yield from _terms(path, op.operands[0], offset, degrees)
    if not isinstance(op, PointwiseOp):
        return
    fn = fn_of(op)
    if fn in ("add", "sub", "neg", "cast", "copy"):
        for index, operand in enumerate(op.operands):
            yield from _terms((*path, (fn, index)), operand, offset, degrees)
    elif fn in ("mul", "div"):
        left, right = (degrees.get(operand) for operand in op.operands)
        if right is not None:
            more = right if fn == "mul" else -right
            yield from _terms((*path, (fn, 0)), op.operands[0], offset + more, degrees)
        elif left is not None and fn == "mul":
            yield from _terms((*path, (fn, 1)), op.operands[1], offset + left, degrees)


def _loss(program: Program, name: str) -> tuple[SSAValue, int]:
    func = entry(program.module)
    end = func.body.block.last_op
    assert end is not None
    at = loss_index(func, name)
    return end.operands[at], at


def _from(program: Program, roles: Sequence[str]) -> set[SSAValue]:
    """Return the values that depend on arguments of some roles, and on no others but constants."""
    func = entry(program.module)
    named = arguments(func)
    inside = {value for role, _, value in named if role in (*roles, "constant")}
    seen = {value for role, _, value in named if role in roles}
    for op in func.body.block.ops:
        if all(operand in inside for operand in op.operands):
            inside.update(op.results)
            if any(operand in seen for operand in op.operands):
                seen.update(op.results)
    return seen

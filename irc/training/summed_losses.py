"""Losses that are sums over samples, in a step of micro-batches.

The loss of a step is the mean over its micro-batches, each counted by its part of the samples. For
a mean over samples that is the loss of the whole batch. A sum over samples is another matter: with
S_i the sum of a micro-batch and p its part of the samples, the loss of the batch is

    sum of S_i    and not    sum of p * S_i

so that here each such term becomes S_i / p. Which terms of a loss are sums and which are means is
read off two captures of it, of micro-batches of different sizes: a sum reduces dims whose sizes
differ; it is a mean where what it is divided by differs in the same ratio. What is divided by a sum
over the batch (tokens that count) is left alone: :mod:`irc.training.normalisers` weighs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isclose, prod

from xdsl.ir import Operation, SSAValue

from irc.dialects.builder import FlowBuilder, arguments, entry
from irc.dialects.flow import (
    ConstantOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    id_of,
    loc_of,
    tensor,
)
from irc.program import Program
from irc.training.entry import loss_index

ONE_VALUE = frozenset({"neg", "cast", "copy"})
MANY = 1000
"""Elements of a sum whose number a constant of the user's will hardly be by chance."""


@dataclass(frozen=True)
class _Term:
    """A sum over samples that a loss is linear in.

    Attributes:
        sum: in the first capture.
        scales: what the sum is multiplied by after, in both.
    """

    sum: ReduceOp
    scales: tuple[float, float]

    @property
    def is_total(self) -> bool:
        """Whether it grows with the samples: the scale does not fall as their number grows."""
        return isclose(*self.scales, rel_tol=1e-6)


def is_plain_mean(program: Program, loss: str) -> bool:
    """Return whether a loss needs no second capture: it is a mean, or a quotient of two sums.

    Args:
        program: the forward pass of a micro-batch.
        loss: its name.

    Raises:
        IrcError: ``loss-unknown``.
    """
    value = _loss(program, loss)
    while isinstance(op := value.owner, PointwiseOp | ReshapeOp) and _passes_on(op):
        value = op.operands[0]
    if not isinstance(op, PointwiseOp) or op.plain["fn"] != "div":
        return False
    top, divisor = op.operands
    if not isinstance(top.owner, ReduceOp) or top.owner.plain["fn"] != "sum":
        return False
    if any(_sums_rows(each) for each in entry(program.module).body.block.ops):
        return False
    literal = _literal(divisor)
    whole = prod(tensor(top.owner.operands[0]).static_shape())
    if literal is None:
        return isinstance(divisor.owner, ReduceOp)
    return literal == whole >= MANY


def weigh_sums(program: Program, other: Program, loss: str, part: float) -> int:
    """Divide the terms of a loss that are sums over samples by a micro-batch's part of them.

    Args:
        program: the forward pass of a micro-batch; changed.
        other: that of one with another number of samples.
        loss: name of the loss.
        part: of the samples of the batch, that ``program`` has.

    Returns:
        How many terms there were.

    Raises:
        IrcError: ``loss-unknown``.
    """
    samples = _dependent(program)
    terms = list(_terms(_loss(program, loss), _loss(other, loss), (1.0, 1.0), samples))
    # A sum that is read as both would have to be two.
    sums = {t.sum for t in terms if t.is_total} - {t.sum for t in terms if not t.is_total}
    for op in sums:
        _divide(op, part)
    return len(sums)


def _loss(program: Program, name: str) -> SSAValue:
    func = entry(program.module)
    end = func.body.block.last_op
    assert end is not None
    return end.operands[loss_index(func, name)]


def _terms(
    a: SSAValue, b: SSAValue, scales: tuple[float, float], samples: set[SSAValue]
) -> Iterator[_Term]:
    """Yield the sums over samples that a value is linear in, of two captures side by side."""
    op, twin = a.owner, b.owner
    if not isinstance(op, Operation) or type(op) is not type(twin) or a not in samples:
        return
    assert isinstance(twin, Operation)
    if isinstance(op, ReduceOp):
        before = [tensor(each.operands[0]).static_shape() for each in (op, twin)]
        if op.plain["fn"] != "sum":
            return
        dims: Sequence[int] = op.plain["dims"]
        counts = [prod(shape[dim] for dim in dims) for shape in before]
        if counts[0] != counts[1]:
            yield _Term(op, scales)
        else:
            yield from _terms(op.operands[0], twin.operands[0], scales, samples)
    elif isinstance(op, ReshapeOp) or (isinstance(op, PointwiseOp) and _passes_on(op)):
        yield from _terms(op.operands[0], twin.operands[0], scales, samples)
    elif isinstance(op, PointwiseOp) and op.plain["fn"] in ("add", "sub"):
        for operand, other in zip(op.operands, twin.operands, strict=True):
            yield from _terms(operand, other, scales, samples)
    elif isinstance(op, PointwiseOp) and op.plain["fn"] in ("mul", "div"):
        yield from _scaled(op, twin, scales, samples)


def _scaled(
    op: PointwiseOp, twin: Operation, scales: tuple[float, float], samples: set[SSAValue]
) -> Iterator[_Term]:
    """Yield the terms of a product or quotient of which one side depends on no sample."""
    number = 1 if op.operands[1] not in samples else 0
    if op.operands[number] in samples or (op.plain["fn"] == "div" and number == 0):
        return
    factors = [_literal(each.operands[number]) for each in (op, twin)]
    first, second = (1.0 if factor is None else factor for factor in factors)
    if op.plain["fn"] == "div" and first and second:
        first, second = 1 / first, 1 / second
    scaled = (scales[0] * first, scales[1] * second)
    yield from _terms(op.operands[1 - number], twin.operands[1 - number], scaled, samples)


def _passes_on(op: Operation) -> bool:
    if isinstance(op, PointwiseOp):
        return op.plain["fn"] in ONE_VALUE
    return isinstance(op, ReshapeOp)


def _sums_rows(op: Operation) -> bool:
    """True for a sum that may be over samples and gives more than one number."""
    if not isinstance(op, ReduceOp) or not tensor(op.results[0]).ndim:
        return False
    return op.plain["fn"] == "sum" and 0 in op.plain["dims"]


def _literal(value: SSAValue) -> float | None:
    op = value.owner
    if isinstance(op, PointwiseOp | ReshapeOp) and _passes_on(op):
        inner = _literal(op.operands[0])
        is_negative = isinstance(op, PointwiseOp) and op.plain["fn"] == "neg"
        return -inner if inner is not None and is_negative else inner
    if not isinstance(op, ConstantOp):
        return None
    values: Sequence[float] = op.plain["value"]
    return float(values[0]) if len(values) == 1 else None


def _dependent(program: Program) -> set[SSAValue]:
    """Return the values that depend on what the program is given."""
    func = entry(program.module)
    found = {value for role, _, value in arguments(func) if role == "input"}
    for op in func.body.block.ops:
        if any(operand in found for operand in op.operands):
            found.update(op.results)
    return found


def _divide(op: ReduceOp, part: float) -> None:
    """Divide a sum by a micro-batch's part of the samples, for all that reads it."""
    block, after, value = op.parent_block(), op.next_op, op.results[0]
    assert block is not None and after is not None
    uses = list(value.uses)
    b = FlowBuilder(block, f"{id_of(op)}.samples.", before=after)
    b.loc = loc_of(op)
    weighed = b.pointwise("mul", value, b.scalar(1 / part, tensor(value).dtype))
    for use in uses:
        use.operation.operands[use.index] = weighed

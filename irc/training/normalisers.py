"""What losses are divided by, where it depends on the batch: counts of tokens, sums of weights.

A mean over samples of equal number is the mean of the means of micro-batches. A mean over tokens
that count is not: micro-batches have different numbers of them. With N the sum of the losses of a
micro-batch i, and D its number of tokens, the loss of the batch is

    sum of N_i / sum of D_i    and not    1/count * sum of N_i / D_i

D does not depend on parameters. So the sums are added up over all micro-batches before any of them
runs, and each gets, in the place of its own D, its share ``part * sum of D_i``, where ``part`` is
the micro-batch's part of the samples, 1/count for equal ones: the mean over the micro-batches, each
counted by its part, is then the loss of the batch, and its gradients are linear in that. What is
computed of sums (at least 1, one through it, no tokens at all) is computed of those of the batch. A
value that grows with the batch as its n-th power has the share ``value * part ** n``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import finish_function
from irc.dialects.flow import (
    BroadcastOp,
    FlowOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    TransposeOp,
    id_of,
    loc_of,
    phase_of,
    tensor,
)
from irc.dialects.types import is_float
from irc.errors import IrcError
from irc.ops.derivative import PhaseBuilder

SAME = frozenset({"neg", "abs", "cast", "copy", "detach"})
LIKE = frozenset({"add", "sub", "maximum", "minimum"})
ANSWERS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
                     "logical_not", "sign", "is_nan", "is_inf"})  # fmt: skip
ROOTS = {"reciprocal": Fraction(-1), "sqrt": Fraction(1, 2), "rsqrt": Fraction(-1, 2)}
MOVES = (ReshapeOp, BroadcastOp, TransposeOp)


@dataclass(frozen=True)
class Normalisers:
    """The values of a body that stand for the whole batch.

    Attributes:
        sums: over the samples of a micro-batch; of inputs alone.
        derived: ops that compute with sums, in order.
        shares: values that the rest of the body reads, and as which power of the batch each grows.
        rows: ops that the sums are computed by, in order.
    """

    sums: tuple[SSAValue, ...]
    derived: tuple[Operation, ...]
    shares: Mapping[SSAValue, Fraction]
    rows: tuple[Operation, ...]


def normalisers(
    block: Block, arguments: Sequence[SSAValue], cut: Sequence[SSAValue]
) -> Normalisers:
    """Look for them.

    Args:
        block: the body of a micro-batch, forward and backward.
        arguments: that the same values come for in each micro-batch, or samples.
        cut: those that are samples.

    Raises:
        IrcError: ``op-unsupported`` for an op whose share in a micro-batch cannot be told.
    """
    free, samples = set(arguments), set(cut)
    # What samples meet a share in is of the micro-batch, as what parameters meet it in.
    shared = set[SSAValue]()
    powers: dict[SSAValue, Fraction] = {}
    sums: list[SSAValue] = []
    derived: list[Operation] = []
    for op in block.ops:
        if not isinstance(op, FlowOp) or not op.results or not all(v in free for v in op.operands):
            continue
        free.update(op.results)
        if not any(v in samples for v in op.operands):
            continue
        samples.update(op.results)
        value, is_sum = op.results[0], _is_sum(op)
        if any(v in shared for v in op.operands):
            shared.update(op.results)
            if is_sum and _is_one(value) and phase_of(op) == "forward":
                raise _refused(op, "a sum of quotients by a sum")
        elif not any(v in powers for v in op.operands):
            if is_sum and _is_one(value):
                powers[value] = Fraction(1)
                sums.append(value)
        elif _is_one(value) and all(v in powers or v not in samples for v in op.operands):
            powers[value] = _power(op, powers)
            derived.append(op)
        else:
            shared.update(op.results)
    inside = set(derived)
    shares = {
        value: power
        for value, power in powers.items()
        if any(use.operation not in inside for use in value.uses)
    }
    rows = _needed(block, sums)
    return Normalisers(tuple(sums), tuple(derived), shares, rows)


def _is_sum(op: FlowOp) -> bool:
    """True for a sum, and for what is left of one over a single sample."""
    if isinstance(op, ReduceOp):
        # In a micro-batch of one sample, a sum over what it has is one number, too.
        return op.fn == "sum" and len(op.dims) == tensor(op.operands[0]).ndim
    single = isinstance(op, ReshapeOp) and _is_one(op.operands[0])
    return single and not tensor(op.results[0]).shape and bool(tensor(op.operands[0]).shape)


def _is_one(value: SSAValue) -> bool:
    return all(size == 1 for size in tensor(value).shape)


def _power(op: FlowOp, powers: Mapping[SSAValue, Fraction]) -> Fraction:
    """Return as which power of the batch a result grows.

    Raises:
        IrcError: ``op-unsupported``.
    """
    exponents = [powers.get(value) for value in op.operands]
    known = [p for p in exponents if p is not None]
    fn = op.fn if isinstance(op, PointwiseOp) else op.name
    numbers = [p or Fraction(0) for p in exponents]
    if fn in SAME or isinstance(op, MOVES):
        return known[0]
    if fn in ROOTS:
        return known[0] * ROOTS[fn]
    if fn in ANSWERS:
        return Fraction(0)
    if fn == "where":
        return max(numbers[1:])
    if fn in LIKE and len(set(known)) == 1:
        return known[0]
    if fn == "mul":
        return sum(numbers, Fraction(0))
    if fn == "div":
        return numbers[0] - numbers[1]
    raise _refused(op, f"'{fn}' of a sum")


def _refused(op: FlowOp, what: str) -> IrcError:
    return IrcError(
        "op-unsupported",
        f"micro-batches: {what} over the samples (op {id_of(op)}) has no share for a micro-batch",
        where=loc_of(op),
        because="the loss of a batch is put together of sums over it and quotients of them: the "
        "sum of numerators over the sum of denominators",
        help="divide by a sum of the targets (tokens, weights), or leave out micro_batches",
    )


def _needed(block: Block, values: Sequence[SSAValue]) -> tuple[Operation, ...]:
    wanted = {v.owner for v in values if isinstance(v.owner, Operation)}
    for op in reversed(list(block.ops)):
        if op in wanted:
            wanted |= {v.owner for v in op.operands if isinstance(v.owner, Operation)}
    return tuple(op for op in block.ops if op in wanted)


def sum_function(batch_values: Normalisers, block: Block, name: str) -> tuple[FuncOp, list[int]]:
    """Return a function that gives the sums of a micro-batch, and which arguments it takes."""
    used = {v for op in batch_values.rows for v in op.operands if isinstance(v, BlockArgument)}
    reads = [i for i, argument in enumerate(block.args) if argument in used]
    body = Block(arg_types=[block.args[i].type for i in reads])
    values: dict[SSAValue, SSAValue] = {
        block.args[i]: argument for i, argument in zip(reads, body.args, strict=True)
    }
    for op in batch_values.rows:
        body.add_op(op.clone(values))
    return finish_function(name, body, [values[v] for v in batch_values.sums]), reads


def shares_of(
    batch_values: Normalisers,
    totals: Sequence[SSAValue],
    constants: Mapping[SSAValue, SSAValue],
    b: PhaseBuilder,
    block: Block,
    part: float,
) -> list[SSAValue]:
    """Append the shares of a micro-batch, given the totals: one for each of the body's.

    Args:
        batch_values: in the body.
        totals: the sums of all micro-batches.
        constants: arguments of the body that all micro-batches share, and what stands for them.
        b: where ops go.
        block: the same.
        part: of the batch that a micro-batch is.
    """
    values = {**constants, **dict(zip(batch_values.sums, totals, strict=True))}
    for op in batch_values.derived:
        for operand in op.operands:
            _copy(operand, values, block)
        block.add_op(op.clone(values))
    return [
        _share(b, values[value], power, part, value) for value, power in batch_values.shares.items()
    ]


def _copy(value: SSAValue, values: dict[SSAValue, SSAValue], block: Block) -> None:
    """Make a value that depends on no sample again, of what stands for the arguments."""
    if value in values:
        return
    op = value.owner
    assert isinstance(op, Operation)
    for operand in op.operands:
        _copy(operand, values, block)
    block.add_op(op.clone(values))


def _share(
    b: PhaseBuilder, value: SSAValue, power: Fraction, part: float, original: SSAValue
) -> SSAValue:
    if not power:
        return value
    kind = tensor(value)
    if not is_float(kind.dtype):
        owner = original.owner
        assert isinstance(owner, Operation)
        raise IrcError(
            "op-unsupported",
            f"micro-batches: the number of tokens {kind} (op {id_of(owner)}) has no whole share in "
            "one of them",
            where=loc_of(owner),
            help="make it a real number before it meets the loss: mask.sum().float()",
        )
    return b.pointwise("mul", value, b.scalar(part ** float(power), kind.dtype))


def take_shares(batch_values: Normalisers, block: Block) -> None:
    """Let a body read its shares as further arguments, in order, and not compute them."""
    inside = set(batch_values.derived)
    for value in batch_values.shares:
        argument = block.insert_arg(value.type, len(block.args))
        for use in list(value.uses):
            if use.operation not in inside:
                use.operation.operands[use.index] = argument
    for op in (*reversed(batch_values.derived), *reversed(batch_values.rows)):
        if all(r.first_use is None for r in op.results):
            op.detach()
            op.erase()

"""Cross-entropy of a linear layer, recognised in its parts: matmul, log-softmax, look-up.

A look-up in a log-softmax is followed up to the matmul that makes its logits, through casts, the
bias, and what only rearranges rows (a shift by slices, views of tokens as one dim). The same is
then done to the hidden rows instead, and ``irc::linear_cross_entropy`` (:mod:`irc.ops.linear_loss`)
takes the place of all of it. Beside look-ups, a sum over classes may read the log-probabilities
(smoothed labels): with the log-sum of a row, ``sum of log p = h . sum of W's rows - v log-sum``.
The other way round, nothing else may read the logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import (
    BroadcastOp,
    ContractOp,
    ExternOp,
    FlowOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.indexing import GatherOp
from irc.dialects.size import Size
from irc.dialects.types import ITEM_BYTES, TensorType, is_float
from irc.kernels.linear_loss import saved_bytes
from irc.ops.derivatives_softmax import find_softmax
from irc.ops.infer import parse_spec
from irc.ops.linear_loss import LOSS, accumulating, arguments, block_rows


class MissError(Exception):
    """A loss keeps its logits; the text says why."""


@dataclass(frozen=True)
class Place:
    """A cross-entropy in a program.

    Attributes:
        op: the id of its look-up.
        loc: the user's source line.
        text: what was done, or why nothing was.
        done: whether its logits are gone.
    """

    op: str
    loc: str
    text: str
    done: bool

    def __str__(self) -> str:
        return f"{self.op}  {self.loc}: {self.text}"


@dataclass(frozen=True)
class Layer:
    """The linear layer behind a loss.

    Attributes:
        h: [lead.., d], and lead is that of the matmul's result without its classes.
        w: [v, d].
        bias: [v], or None.
        steps: what rearranges the logits, in order, each with the classes' dim before and after.
        dim: the classes' dim of the matmul's result.
    """

    h: SSAValue
    w: SSAValue
    bias: SSAValue | None
    steps: tuple[tuple[FlowOp, int, int], ...]
    dim: int


def stream_losses(block: Block, min_bytes: int) -> list[Place]:
    """Rewrite the losses of a block whose logits are worth not having; dead ops stay.

    Args:
        block: of a function; changed.
        min_bytes: so many bytes of logits must be saved; a negative number asks for nothing.
    """
    places: list[Place] = []
    for op in list(block.ops):
        if not isinstance(op, GatherOp) or not _num_uses(op.outputs[0]) or not _is_loss(op):
            continue
        try:
            text, done = _rewrite(block, op, min_bytes), True
        except MissError as miss:
            text, done = str(miss), False
        places.append(Place(id_of(op), loc_of(op), text, done))
    return places


def _is_loss(op: GatherOp) -> bool:
    log = op.x.owner
    softmax = find_softmax(log) if isinstance(log, FlowOp) else None
    return softmax is not None and softmax.kind == "log_softmax"


def _rewrite(block: Block, op: GatherOp, min_bytes: int) -> str:
    log, index = op.inputs
    assert isinstance(log.owner, FlowOp)
    softmax = find_softmax(log.owner)
    assert softmax is not None
    dim, kind = op.dim, tensor(log)
    others = {use.operation for use in log.uses} - {op}
    sums = [other for other in block.ops if other in others and _is_sum(other, dim)]
    if softmax.dims != (dim,) or len(sums) != len(others):
        raise MissError("its log-probabilities are read by others too: all of them are made")
    shape = _static(softmax.x)
    if _static(index) != tuple(1 if i == dim else size for i, size in enumerate(shape)):
        raise MissError("it looks up other than one class of each row")
    layer = _layer_of(softmax.x, dim)
    if kind.dtype != accumulating(tensor(layer.h).dtype):
        raise MissError(f"its softmax is in {kind.dtype}, of a layer in {tensor(layer.h).dtype}")
    text = _worth(layer, shape, dim, min_bytes)
    # In front of whatever reads the log-probabilities first.
    first = next(each for each in block.ops if each is op or each in sums)
    assert isinstance(first, FlowOp)
    _hoist(block, index, first)
    b = FlowBuilder(block, f"{id_of(op)}.", before=first)
    b.loc = loc_of(op)
    rows = prod(size for i, size in enumerate(shape) if i != dim)
    operands = {"h": _rows_of(b, layer, dim), "w": layer.w, "index": b.reshape(index, (rows,))}
    if layer.bias is not None:
        operands["bias"] = layer.bias
    result = TensorType.of((rows,), kind.dtype)
    loss, log_sums = b.ops(
        ExternOp,
        list(operands.values()),
        results=[result, result],
        target=LOSS,
        arguments=arguments(LOSS, operands),
    )
    picked = b.reshape(b.pointwise("neg", loss), tensor(op.outputs[0]).shape)
    op.outputs[0].replace_all_uses_with(picked)
    if sums:
        total = _total(b, operands, log_sums, shape[dim])
        for each in sums:
            old = each.results[0]
            old.replace_all_uses_with(b.reshape(total, tensor(old).shape))
        text += f", with the sum over {shape[dim]} classes of smoothed labels"
    return text


def _is_sum(op: Operation, dim: int) -> bool:
    """True for a sum over the classes."""
    return isinstance(op, ReduceOp) and op.fn == "sum" and op.dims == (dim,)


def _total(
    b: FlowBuilder, operands: Mapping[str, SSAValue], log_sums: SSAValue, classes: int
) -> SSAValue:
    """Append the sum of a row's log-probabilities, [n], without logits.

    As ``v (mean of x - log-sum)``: numbers of the size of one logit, of which no digits are lost.
    """
    wide = tensor(log_sums).dtype

    def mean(value: SSAValue) -> SSAValue:
        total = b.reduce("sum", b.cast(value, wide), [0], keep_dims=False)
        return b.pointwise("div", total, b.scalar(classes, wide))

    h = b.cast(operands["h"], wide)
    x = b.op(ContractOp, [h, mean(operands["w"])], spec="nd,d->n")
    if "bias" in operands:
        x = b.pointwise("add", x, mean(operands["bias"]))
    return b.pointwise("mul", b.pointwise("sub", x, log_sums), b.scalar(classes, wide))


def _hoist(block: Block, value: SSAValue, before: Operation) -> None:
    """Move what makes a value in front of an op.

    Raises:
        MissError: where the value needs that op.
    """
    position = {op: i for i, op in enumerate(block.ops)}
    needed, pending = set[Operation](), [value]
    while pending:
        op = pending.pop().owner
        if isinstance(op, Operation) and op not in needed and position[op] > position[before]:
            needed.add(op)
            pending += op.operands
    if before in needed:
        raise MissError("what it looks up depends on its log-probabilities")
    for op in sorted(needed, key=lambda op: position[op]):
        op.detach()
        block.insert_op_before(op, before)


def _worth(layer: Layer, shape: tuple[int, ...], dim: int, min_bytes: int) -> str:
    """Return what streaming saves, in words.

    Raises:
        MissError: too little.
    """
    classes, width = shape[dim], _static(layer.w)[1]
    rows = prod(shape) // max(classes, 1)
    item = ITEM_BYTES[tensor(layer.h).dtype]
    saved = saved_bytes(rows, classes, width, item)
    sizes = f"{rows} x {classes} logits, {_mebibytes(rows * classes * item)}"
    if min_bytes >= 0 and (saved < min_bytes or saved <= 0):
        raise MissError(
            f"{sizes}: made at once, as blocks of rows would save {_mebibytes(saved)}, and it takes"
            f" {_mebibytes(min_bytes)} to be worth it"
        )
    step = block_rows(rows, width)
    return f"{sizes}: in blocks of {step} rows, {_mebibytes(step * classes * item)} at a time"


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _layer_of(x: SSAValue, dim: int) -> Layer:
    """Follow logits up to the matmul that makes them.

    Raises:
        MissError: where others read them, or they are no linear layer's.
    """
    steps: list[tuple[FlowOp, int, int]] = []
    bias: SSAValue | None = None
    value, readers = x, 2
    while True:
        if _num_uses(value) != readers:
            raise MissError("others read its logits too, so all of them are made")
        op, readers = value.owner, 1
        match op:
            case ContractOp():
                h, w = _factors(op, dim)
                steps.reverse()
                return Layer(h, w, bias, tuple(steps), dim)
            case PointwiseOp() if op.fn == "cast":
                if bias is not None:
                    _same_dtype(bias, op.a)
                value = op.a
            case PointwiseOp() if op.fn == "add" and bias is None:
                value, bias = _biased(op, dim)
            case ReshapeOp() if op.pin is None:
                value, before = op.x, _dim_before(op, dim)
                steps.append((op, before, dim))
                dim = before
            case SliceOp():
                value = op.x
                if _static(value)[dim] != _static(op.outputs[0])[dim]:
                    raise MissError("a part of its classes is cut off")
                steps.append((op, dim, dim))
            case TransposeOp():
                value, before = op.x, op.perm[dim]
                steps.append((op, before, dim))
                dim = before
            case _:
                what = op.name if isinstance(op, Operation) else "an argument"
                raise MissError(f"its logits are no matmul of rows and a weight, but {what}")


def _same_dtype(bias: SSAValue, logits: SSAValue) -> None:
    if tensor(bias).dtype != tensor(logits).dtype:
        raise MissError("its bias is added in another dtype than the matmul's")


def _biased(op: FlowOp, dim: int) -> tuple[SSAValue, SSAValue]:
    """Return the logits before a bias [v], and that.

    Raises:
        MissError: where neither operand is one.
    """
    shape = _static(op.outputs[0])
    for value, other in (op.inputs, reversed(op.inputs)):
        own = (1,) * (len(shape) - len(_static(other))) + _static(other)
        along = all(size == 1 or i == dim for i, size in enumerate(own))
        while isinstance(other.owner, ReshapeOp | BroadcastOp):
            other = other.owner.x
        if along and _static(value) == shape and _static(other) == (shape[dim],):
            return value, other
    raise MissError("what is added to its logits is no bias of each class")


def _factors(op: ContractOp, dim: int) -> tuple[SSAValue, SSAValue]:
    """Return the operands of a matmul: hidden rows, and the weight with its classes at ``dim``.

    The weight may be the other way round, and the rows in another order: see :func:`_oriented`.

    Raises:
        MissError: for another contraction.
    """
    letters, result = parse_spec(op.spec)
    own = result[dim]
    for h, w in ((0, 1), (1, 0)):
        if len(letters) == 2 and own in letters[w] and own not in letters[h]:
            (k,) = set(letters[w]) - {own} if len(letters[w]) == 2 else (None,)
            rows = result.replace(own, "")
            if k is not None and k not in result and set(letters[h]) == {*rows, k}:
                value, weight = op.operands[h], op.operands[w]
                if tensor(value).dtype != tensor(weight).dtype or not is_float(tensor(value).dtype):
                    raise MissError("rows and weight are of two dtypes")
                return (
                    _oriented(op, value, letters[h], rows + k),
                    _oriented(op, weight, letters[w], own + k),
                )
    raise MissError(f"its logits are no matmul of rows and a weight, but '{op.spec}'")


def _oriented(before: FlowOp, value: SSAValue, letters: str, wanted: str) -> SSAValue:
    """Return a value with its dims in another order: a transpose in front of an op, or itself."""
    if letters == wanted:
        return value
    block = before.parent_block()
    assert block is not None
    b = FlowBuilder(block, f"{id_of(before)}.{wanted}", before=before)
    b.loc = loc_of(before)
    return b.op(TransposeOp, [value], perm=tuple(letters.index(c) for c in wanted))


def _dim_before(op: ReshapeOp, dim: int) -> int:
    """Return the dim of a reshape's operand that is a whole dim of its result.

    Raises:
        MissError: where the dim is split or joined with others.
    """
    new_shape, old_shape = _static(op.outputs[0]), _static(op.x)
    for at in reversed(range(len(old_shape))):
        if old_shape[at] == new_shape[dim] and prod(old_shape[:at]) == prod(new_shape[:dim]):
            return at
    raise MissError("its classes are joined with other dims")


def _rows_of(b: FlowBuilder, layer: Layer, dim: int) -> SSAValue:
    """Append to hidden rows what was done to logits, and return them as [n, d]."""
    value = layer.h
    lead = tensor(value).ndim - 1
    value = _moved(b, value, lead, layer.dim)
    (width,) = {_static(layer.w)[1]}
    for op, _, after in layer.steps:
        shape = _with(_static(op.outputs[0]), after, width)
        match op:
            case ReshapeOp():
                value = b.reshape(value, shape)
            case SliceOp():
                value = b.op(
                    SliceOp,
                    [value],
                    starts=_with(op.starts, after, 0),
                    stops=_with(op.stops, after, width),
                    steps=_with(op.steps, after, 1),
                )
            case TransposeOp():
                value = b.op(TransposeOp, [value], perm=op.perm)
            case _:
                raise AssertionError(f"{op.name} rearranges no logits")
    last = _moved(b, value, dim, tensor(value).ndim - 1)
    *rows, _ = _static(last)
    return b.reshape(last, (prod(rows), width))


def _moved(b: FlowBuilder, value: SSAValue, source: int, target: int) -> SSAValue:
    """Move a dim to another place."""
    if source == target:
        return value
    perm = [i for i in range(tensor(value).ndim) if i != source]
    perm.insert(target, source)
    return b.op(TransposeOp, [value], perm=tuple(perm))


def _with(numbers: Sequence[int], at: int, number: int) -> tuple[int, ...]:
    return (*numbers[:at], number, *numbers[at + 1 :])


def _static(value: SSAValue) -> tuple[int, ...]:
    """Return a shape of numbers.

    Raises:
        MissError: where a size is open.
    """
    sizes = [size for size in tensor(value).shape if not isinstance(size, Size)]
    if len(sizes) != tensor(value).ndim:
        raise MissError("a size of its logits is open: how many blocks there are is not known")
    return tuple(sizes)


def _num_uses(value: SSAValue) -> int:
    return sum(1 for _ in value.uses)

"""A vocabulary whose classes the ranks of an axis do not share equally, used with its padding.

What reads a padded parameter reads its own rows alone (:mod:`irc.sharding.padding`), for which the
parameter is gathered. A vocabulary need not be: an embedding looks up no row that is padding, and a
softmax gives no chance to a class whose logit is as low as can be. So ranks compute the logits of
their parts of the classes, the padding among them, and a bias keeps that out of the loss (the
padding of Megatron-LM's vocabularies, arXiv:1909.08053, which there is part of the model).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import Rewriter

from irc.dialects.attributes import to_attribute
from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import (
    BroadcastOp,
    ContractOp,
    FlowOp,
    PadOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.indexing import GatherOp, TakeOp
from irc.dialects.types import TensorType
from irc.ops.derivatives_softmax import find_softmax
from irc.ops.infer import parse_spec
from irc.sharding.padding import front_of

LOWEST: Mapping[str, float] = {"f16": -3e4}
"""The logit of a class that is padding, where a dtype does not hold -1e30."""


class MissError(Exception):
    """A parameter is no vocabulary, or is used otherwise than is known here."""


@dataclass
class _Uses:
    """What reads a vocabulary.

    Attributes:
        lookups: embeddings.
        dims: of each value that has classes, the dim that they are.
        ops: what makes these, in any order.
        ends: look-ups of classes, behind which there are none.
        masked: logits that a bias is added to, and it; of what a softmax reads None where none is.
    """

    lookups: list[TakeOp] = field(default_factory=list[TakeOp])
    dims: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    ops: list[FlowOp] = field(default_factory=list[FlowOp])
    ends: list[GatherOp] = field(default_factory=list[GatherOp])
    masked: dict[SSAValue, SSAValue | None] = field(
        default_factory=dict["SSAValue", "SSAValue | None"]
    )


def is_vocabulary(func: FuncOp, number: int) -> bool:
    """Return whether :func:`use_padding` would take an argument that has no padding yet."""
    value = func.body.block.args[number]
    try:
        _uses_of(value)
    except MissError:
        return False
    return True


def use_padding(func: FuncOp, number: int) -> bool:
    """Let all that reads a padded argument read its padding, too; results stay as they are.

    Args:
        func: level flow.
        number: of the argument.

    Returns:
        Whether that was done: it is no vocabulary otherwise, and what reads it is as it was.
    """
    value = func.body.block.args[number]
    front = front_of(value)
    try:
        uses = _uses_of(front.outputs[0])
    except MissError:
        return False
    for lookup in uses.lookups:
        lookup.operands[0] = value
    stored = tensor(value).static_shape()[0]
    _Longer(func.body.block, uses, stored, {front.outputs[0]: value}).run()
    if front.outputs[0].first_use is None:
        Rewriter.erase_op(front)
    return True


def _uses_of(value: SSAValue) -> _Uses:
    """Follow a table or weight to the losses that its classes end in.

    Raises:
        MissError: where they end elsewhere.
    """
    uses = _Uses()
    uses.dims[value] = 0
    todo = [value]
    while todo:
        here = todo.pop()
        dim = uses.dims[here]
        softmax = next(
            (chain for u in here.uses if (chain := _softmax_of(u.operation, here))), None
        )
        if softmax is not None:
            _add_softmax(uses, here, dim, softmax)
            continue
        for use in here.uses:
            op = use.operation
            if isinstance(op, TakeOp) and use.index == 0 and here is value and op.dim == 0:
                uses.lookups.append(op)
                continue
            result_dim = _dim_after(op, use.index, here, dim)
            assert isinstance(op, FlowOp)
            if isinstance(op, PointwiseOp) and op.fn == "add":
                uses.masked[op.outputs[0]] = op.operands[1 - use.index]
            uses.ops.append(op)
            uses.dims[op.outputs[0]] = result_dim
            todo.append(op.outputs[0])
    if not uses.lookups and not uses.ends:
        raise MissError
    return uses


def _dim_after(op: Operation, index: int, value: SSAValue, dim: int) -> int:
    """Return which dim of an op's result has the classes that an operand has at a dim.

    Raises:
        MissError: where it has none, or padding would change more than the padding.
    """
    match op:
        case PointwiseOp() if op.fn == "cast":
            return dim
        case PointwiseOp() if op.fn == "add" and _is_bias(op.operands[1 - index], value, dim):
            return dim
        case TransposeOp():
            return op.perm.index(dim)
        case ReshapeOp() if op.pin is None:
            return _dim_of_reshape(value, op.outputs[0], dim)
        case SliceOp():
            stop = op.stops[dim]
            whole = stop in (-1, tensor(value).shape[dim])
            if (op.starts[dim], op.steps[dim]) == (0, 1) and whole:
                return dim
        case ContractOp():
            letters, result = parse_spec(op.spec)
            own = letters[index][dim]
            if own in result and sum(own in term for term in letters) == 1:
                return result.index(own)
        case _:
            pass
    raise MissError


def _is_bias(other: SSAValue, value: SSAValue, dim: int) -> bool:
    """True for a vector of a number for each class."""
    return tensor(_vector_of(other)).shape == (tensor(value).shape[dim],)


def _vector_of(bias: SSAValue) -> SSAValue:
    while isinstance(bias.owner, ReshapeOp | BroadcastOp):
        bias = bias.owner.x
    return bias


def _dim_of_reshape(before: SSAValue, after: SSAValue, dim: int) -> int:
    """Return where a dim is that stays the last one."""
    source_shape, result_shape = tensor(before).shape, tensor(after).shape
    if dim == len(source_shape) - 1 and result_shape and result_shape[-1] == source_shape[-1]:
        return len(result_shape) - 1
    raise MissError


def _softmax_of(op: Operation, value: SSAValue) -> list[FlowOp] | None:
    """Return the ops of a log-softmax of a value, in order, given one that reads it."""
    if not (isinstance(op, PointwiseOp) and op.fn == "sub" and op.a is value):
        return None
    for use in op.outputs[0].uses:
        last = use.operation
        softmax = find_softmax(last) if isinstance(last, PointwiseOp) else None
        if softmax is not None and softmax.kind == "log_softmax" and softmax.x is value:
            assert isinstance(last, PointwiseOp)
            log = last.b.owner
            assert isinstance(log, PointwiseOp)
            total = log.a.owner
            assert isinstance(total, ReduceOp)
            powers, top = total.x.owner, op.b.owner
            assert isinstance(powers, FlowOp)
            assert isinstance(top, ReduceOp)
            return [top, op, powers, total, log, last]
    return None


def _add_softmax(uses: _Uses, x: SSAValue, dim: int, ops: Sequence[FlowOp]) -> None:
    """Note a log-softmax over the classes, of which only single classes are read.

    Raises:
        MissError: where others read its operand or its result.
    """
    top, off, powers, *_, last = ops
    readers = {use.operation for use in x.uses}
    assert isinstance(top, ReduceOp)
    if top.dims != (dim,) or readers != {top, off}:
        raise MissError
    for use in last.outputs[0].uses:
        end = use.operation
        if not (isinstance(end, GatherOp) and use.index == 0 and end.dim == dim):
            raise MissError
        uses.ends.append(end)
    uses.ops += ops
    uses.dims.update({op.outputs[0]: dim for op in (off, powers, last)})
    uses.masked.setdefault(x, None)


class _Longer:
    """Ops on classes while they get the padding.

    Args:
        block: of the function.
        uses: of the vocabulary.
        stored: its rows with padding.
        known: values with padding, by those without.
    """

    def __init__(
        self, block: Block, uses: _Uses, stored: int, known: Mapping[SSAValue, SSAValue]
    ) -> None:
        self._block, self._uses, self._stored = block, uses, stored
        self._values: dict[SSAValue, SSAValue] = dict(known)

    def run(self) -> None:
        """Write the ops anew, and let look-ups of classes read them."""
        chosen, ends = set(self._uses.ops), set(self._uses.ends)
        biased = self._biased()
        old: list[FlowOp] = []
        for op in list(self._block.ops):
            if op in chosen:
                assert isinstance(op, FlowOp)
                self._again(op, is_bias=op.outputs[0] in biased)
                old.append(op)
            elif op in ends:
                op.operands[0] = self._values[op.operands[0]]
        for op in reversed(old):
            Rewriter.erase_op(op)

    def _biased(self) -> set[SSAValue]:
        """Return the results of the additions of biases."""
        return {value for value, bias in self._uses.masked.items() if bias is not None}

    def _again(self, op: FlowOp, *, is_bias: bool) -> None:
        operands = [self._values.get(value, value) for value in op.inputs]
        b = FlowBuilder(self._block, f"{id_of(op)}.pad", before=op)
        b.loc = loc_of(op)
        if is_bias:
            operands = [
                value if own in self._values else self._lowered(b, own, op.outputs[0])
                for own, value in zip(op.inputs, operands, strict=True)
            ]
        properties = dict(op.properties)
        result = op.outputs[0]
        dim = self._uses.dims.get(result)
        if isinstance(op, SliceOp) and dim is not None:
            stops = list(op.stops)
            stops[dim] = -1 if stops[dim] == -1 else self._stored
            properties["stops"] = to_attribute(tuple(stops))
        longer = type(op)(
            operands=[operands], result_types=[[self._kind(result)]], properties=properties
        )
        longer.attributes.update(op.attributes)
        self._block.insert_op_before(longer, op)
        value = longer.outputs[0]
        if result in self._uses.masked and not is_bias and not self._has_bias(result):
            value = self._masked(b, value, dim)
        self._values[result] = value

    def _has_bias(self, x: SSAValue) -> bool:
        """Whether a bias has made the logits of padding low already."""
        while isinstance(op := x.owner, FlowOp) and op in self._uses.ops:
            if x in self._biased():
                return True
            x = next(value for value in op.inputs if value in self._uses.dims)
        return False

    def _kind(self, value: SSAValue) -> TensorType:
        kind, dim = tensor(value), self._uses.dims.get(value)
        if dim is None:
            return kind
        return TensorType.of((*kind.shape[:dim], self._stored, *kind.shape[dim + 1 :]), kind.dtype)

    def _lowered(self, b: FlowBuilder, bias: SSAValue, logits: SSAValue) -> SSAValue:
        """Return a bias with the lowest number for each class that is padding."""
        return self._along(b, self._padded(b, _vector_of(bias)), logits, self._uses.dims[logits])

    def _masked(self, b: FlowBuilder, x: SSAValue, dim: int | None) -> SSAValue:
        """Add a bias that is 0, and the lowest number for each class that is padding."""
        assert dim is not None
        first, at = next(iter(self._uses.dims.items()))
        rows, dtype = tensor(first).static_shape()[at], tensor(x).dtype
        zeros = b.broadcast(b.reshape(b.scalar(0, dtype), (1,)), (rows,))
        return b.pointwise("add", x, self._along(b, self._padded(b, zeros), x, dim))

    def _padded(self, b: FlowBuilder, vector: SSAValue) -> SSAValue:
        (rows,), dtype = tensor(vector).static_shape(), tensor(vector).dtype
        lowest = LOWEST.get(dtype, -1e30)
        return b.op(PadOp, [vector], low=(0,), high=(self._stored - rows,), value=lowest)

    def _along(self, b: FlowBuilder, vector: SSAValue, logits: SSAValue, dim: int) -> SSAValue:
        """Return a vector as one that is added along a dim of logits."""
        more = tensor(logits).ndim - 1 - dim
        return b.reshape(vector, (self._stored, *(1,) * more))

"""Products with a weight whose results are cut into parts, as one for queries, keys and values is.

Between the product and its slices are at most a bias, reshapes and transposes, and of the weight
casts and transposes; nothing else reads any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from irc.dialects.flow import (
    ContractOp,
    FlowOp,
    PointwiseOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    tensor,
)
from irc.ops.infer import parse_spec
from irc.training.head import weight_chain

Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Weight:
    """A weight of a projection.

    Attributes:
        argument: of the function.
        chain: casts and transposes between it and what is computed, last first.
        dim: of the argument, along which results are parts.
    """

    argument: BlockArgument
    chain: tuple[FlowOp, ...]
    dim: int


@dataclass(frozen=True)
class Projection:
    """A product with a weight, and how its result is cut.

    Attributes:
        contract: the product, by a weight that is its second operand.
        weight: the weight.
        add: the sum with a bias, of which the product is the first operand; None for none.
        bias: the bias.
        way: reshapes and transposes up to the values that slices are taken of.
        dims: of the dim that is cut, before and after each of them.
        leaves: the slices, each with what of the weight's rows it is of.
    """

    contract: ContractOp
    weight: Weight
    add: PointwiseOp | None
    bias: Weight | None
    way: tuple[FlowOp, ...]
    dims: tuple[int, ...]
    leaves: tuple[tuple[SliceOp, tuple[int, int]], ...]

    @property
    def bounds(self) -> Bounds:
        """Where the parts begin and end, in order."""
        return tuple(sorted({bounds for _, bounds in self.leaves}))


def projections_in(func: FuncOp) -> Iterator[Projection]:
    """Yield the products of a function whose results are cut, in order.

    Args:
        func: level flow, before it is differentiated.
    """
    for op in func.body.block.ops:
        if isinstance(op, ContractOp) and len(op.inputs) == 2:
            projection = _projection(op)
            if projection is not None:
                yield projection


def _projection(op: ContractOp) -> Projection | None:
    """Return a product whose result is cut in parts along the last letter of its weight."""
    (left, right), result = parse_spec(op.spec)
    letter = result[-1] if result else ""
    if len(right) != 2 or letter not in right or letter in left:
        return None
    weight = _weight(op.b, right.index(letter))
    if weight is None:
        return None
    value, add, bias = op.outputs[0], None, None
    if isinstance(user := only_reader(value), PointwiseOp) and user.fn == "add":
        first, second = user.inputs
        width = tensor(value).shape[-1:]
        is_bias = first is value and tensor(second).shape == width
        if not is_bias or user.outputs[0].type != value.type:
            return None
        if (bias := _weight(second, 0)) is None:
            return None
        add, value = user, user.outputs[0]
    return _cut(op, weight, add, bias, value)


def _cut(
    op: ContractOp,
    weight: Weight,
    add: PointwiseOp | None,
    bias: Weight | None,
    value: SSAValue,
) -> Projection | None:
    way: list[FlowOp] = []
    dim, unit = tensor(value).ndim - 1, 1
    dims = [dim]
    while isinstance(step := only_reader(value), ReshapeOp | TransposeOp):
        moved = _moved(step, dim)
        if moved is None:
            return None
        dim, factor = moved
        unit *= factor
        way.append(step)
        dims.append(dim)
        value = step.outputs[0]
    leaves: list[tuple[SliceOp, tuple[int, int]]] = []
    for use in value.uses:
        bounds = _bounds(use.operation, dim)
        if bounds is None or not isinstance(use.operation, SliceOp):
            return None
        leaves.append((use.operation, (bounds[0] * unit, bounds[1] * unit)))
    width = tensor(value).static_shape()[dim] * unit
    own = Projection(op, weight, add, bias, tuple(way), tuple(dims), tuple(leaves))
    edges = [0, *(stop for _, stop in own.bounds)]
    is_whole = [start for start, _ in own.bounds] == edges[:-1] and edges[-1] == width
    return own if is_whole and len(own.bounds) > 1 else None


def _weight(value: SSAValue, dim: int) -> Weight | None:
    """Return an argument that a value is by casts and transposes, which nothing else reads."""
    argument, chain = weight_chain(value)
    if not isinstance(argument, BlockArgument):
        return None
    if any(only_reader(each) is None for each in (argument, *(op.outputs[0] for op in chain))):
        return None
    for op in chain:
        dim = op.perm[dim] if isinstance(op, TransposeOp) else dim
    return Weight(argument, chain, dim)


def only_reader(value: SSAValue) -> Operation | None:
    """Return what reads a value; None where several do, or nothing."""
    uses = list(value.uses)
    return uses[0].operation if len(uses) == 1 else None


def _moved(op: TransposeOp | ReshapeOp, dim: int) -> tuple[int, int] | None:
    """Return where a dim is after an op, and how many of its elements are one then.

    A reshape keeps it as it is, or divides it into a number of pieces, which is the dim then.
    """
    if isinstance(op, TransposeOp):
        return op.perm.index(dim), 1
    before, after = (tensor(value).static_shape() for value in (op.x, op.outputs[0]))
    if "pin" in op.properties:
        return None
    outer = prod(before[:dim])
    for place, size in enumerate(after):
        if prod(after[:place]) == outer and size > 1 and before[dim] % size == 0:
            return place, before[dim] // size
    return None


def _bounds(op: Operation, dim: int) -> tuple[int, int] | None:
    """Return which part along a dim a slice takes; None for one of other dims, or with steps."""
    if not isinstance(op, SliceOp):
        return None
    shape, starts = tensor(op.x).static_shape(), op.starts
    stops = [size if stop == -1 else stop for stop, size in zip(op.stops, shape, strict=True)]
    if any(step != 1 for step in op.steps):
        return None
    for place, size in enumerate(shape):
        if place != dim and (starts[place], stops[place]) != (0, size):
            return None
    return (starts[dim], stops[dim]) if starts[dim] < stops[dim] else None

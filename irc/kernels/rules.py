"""What each op of a group does to axes: one function per op, and the walk that applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    ContractOp,
    FlowOp,
    PadOp,
    PointwiseOp,
    ReduceOp,
    ReshapeOp,
    ShapeOp,
    SliceOp,
    TransposeOp,
    tensor,
)
from irc.dialects.indexing import GatherOp, TakeOp
from irc.dialects.literals import ConstantOp, IotaOp
from irc.dialects.packed_products import GroupedContractOp, GroupedOuterOp, PackedContractOp
from irc.dialects.searches import ArgReduceOp
from irc.dialects.windows import ConvolutionOp, PoolOp
from irc.kernels.arg_reduce import arg_reduce
from irc.kernels.axes import Axes, Axis, axes_of, leaves
from irc.kernels.grouped import grouped_contract, grouped_outer
from irc.kernels.holds import shape_of
from irc.kernels.pieces import concat, pad
from irc.kernels.quantized.loads import packed_contract
from irc.kernels.trace import Dims, GroupError, Node, Stored, Term, Trace, flat
from irc.kernels.view import contiguous_strides
from irc.kernels.windows import convolution, pool
from irc.ops.infer import parse_spec


def _shape_op(walk: Trace, op: ShapeOp) -> Term | Stored:
    source, shape = op.x, shape_of(op.outputs[0])
    if (stored := walk.stored(source)) is not None:
        view = stored[1].apply(op.name, op.plain, shape)
        if view is not None:
            return stored[0], view
    term = walk.term(source)
    match op:
        case TransposeOp():
            return Term(term.node, tuple(term.dims[i] for i in op.perm))
        case BroadcastOp():
            return Term(term.node, _stretched(term.dims, shape_of(source), shape))
        case ReshapeOp():
            dims = tuple(axes_of(n) for n in shape)
            walk.unify(flat(term.dims), flat(dims), "reshape")
            return Term(term.node, dims)
        case _:
            if term.node.kind == "constant":
                return Term(term.node, tuple(axes_of(n) for n in shape))
            raise GroupError("a slice of a value that the kernel computes")


def _pointwise(walk: Trace, op: PointwiseOp) -> Term:
    operands = [walk.term(value) for value in op.inputs]
    dims = _meet(walk, [(t, shape_of(v)) for t, v in zip(operands, op.inputs, strict=True)], op)
    # Once each: a chain of diamonds would double them at every step, one of loads add to them.
    axes = tuple(dict.fromkeys(leaves([axis for t in operands for axis in t.node.axes])))
    node = walk.node(
        "pointwise",
        tensor(op.outputs[0]).dtype,
        axes,
        operands=tuple(t.node for t in operands),
        attrs={"fn": op.fn},
    )
    return Term(node, dims)


def _meet(walk: Trace, operands: Sequence[tuple[Term, tuple[int, ...]]], op: FlowOp) -> Dims:
    shape = shape_of(op.outputs[0])
    dims: list[Axes | None] = [None] * len(shape)
    for term, sizes in operands:
        lead = len(shape) - len(sizes)
        for position, (axes, size) in enumerate(zip(term.dims, sizes, strict=True), lead):
            if size != shape[position] or size == 1:
                continue
            if (met := dims[position]) is None:
                dims[position] = axes
            else:
                walk.unify(met, axes, op.name)
    return tuple(() if axes is None else axes for axes in dims)


def _reduce(walk: Trace, op: ReduceOp) -> Term:
    term = walk.term(op.x)
    reduced = flat(tuple(term.dims[d] for d in op.dims))
    dims = tuple(
        () if d in op.dims else axes
        for d, axes in enumerate(term.dims)
        if op.keep_dims or d not in op.dims
    )
    kept = tuple(a for d, axes in enumerate(term.dims) if d not in op.dims for a in axes)
    dtype = tensor(op.outputs[0]).dtype
    if not reduced:
        # Over dims of size 1 nothing is left to reduce.
        fn = "cast" if dtype != term.node.dtype else "copy"
        node = walk.node("pointwise", dtype, kept, operands=(term.node,), attrs={"fn": fn})
        return Term(node, dims)
    operand = term.node
    if op.fn in ("any", "all") and operand.dtype != "i1":
        # Whether an element is true is its own matter: -3 and 0.5 are, and no largest number says.
        cast = {"fn": "cast"}
        operand = walk.node("pointwise", "i1", operand.axes, operands=(operand,), attrs=cast)
    node = walk.node("reduce", dtype, kept, operands=(operand,), attrs={"fn": op.fn})
    walk.reductions.append((node, reduced))
    return Term(node, dims)


def _arg_reduce(walk: Trace, op: ArgReduceOp) -> Term:
    at, shape, term = op.dim, shape_of(op.x), walk.term(op.x)
    if shape[at] == 1:
        dims = tuple(axes for d, axes in enumerate(term.dims) if op.keep_dims or d != at)
        return Term(walk.node("constant", "i64", (), attrs={"value": 0}), dims)
    dtype = "i32" if shape[at] < 1 << 31 else "i64"
    return arg_reduce(walk, op, at, _position(walk, term.dims[at], dtype), shape[at])


def _contract(walk: Trace, op: ContractOp) -> Term:
    spec, result = parse_spec(op.spec)
    dtype = tensor(op.outputs[0]).dtype
    # A value that is also read elsewhere (x of x x^T, a residual) is read over other axes there.
    operands = [
        walk.term(v) if (s := walk.stored(v)) is None else walk.load(v, s) for v in op.inputs
    ]
    by_letter: dict[str, Axes] = {}
    for letters, term in zip(spec, operands, strict=True):
        for letter, axes in zip(letters, term.dims, strict=True):
            if letter in by_letter:
                walk.unify(by_letter[letter], axes, op.name)
            else:
                by_letter[letter] = axes
    reduced = tuple(a for c, axes in by_letter.items() if c not in result for a in axes)
    kept = tuple(a for c in result for a in by_letter[c])
    nodes = tuple(t.node for t in operands)
    dims = tuple(by_letter[c] for c in result)
    alone = any(sum(c in letters for letters in spec) == 1 for c in by_letter if c not in result)
    if len(nodes) == 2 and reduced and not alone and all(n.kind == "load" for n in nodes):
        node = walk.node("contract", dtype, kept, operands=nodes)
    else:
        node = _product(walk, nodes, dtype)
        if reduced:
            node = walk.node("reduce", dtype, kept, operands=(node,), attrs={"fn": "sum"})
    if reduced:
        walk.reductions.append((node, reduced))
    return Term(node, dims)


def _product(walk: Trace, nodes: Sequence[Node], dtype: str) -> Node:
    """Multiply operands, as any einsum of other than two operands does."""
    product = nodes[0]
    for other in nodes[1:]:
        axes = tuple(dict.fromkeys((*product.axes, *other.axes)))
        product = walk.node(
            "pointwise", dtype, axes, operands=(product, other), attrs={"fn": "mul"}
        )
    if len(nodes) == 1:
        product = walk.node(
            "pointwise", dtype, product.axes, operands=(product,), attrs={"fn": "copy"}
        )
    return product


def _constant(walk: Trace, op: ConstantOp) -> Term:
    kind, values = tensor(op.outputs[0]), op.value
    dims = tuple(axes_of(n) for n in shape_of(op.outputs[0]))
    if len(values) == 1:
        return Term(walk.node("constant", kind.dtype, (), attrs={"value": values[0]}), dims)
    return Term(_table(walk, values, kind.dtype, flat(dims)), dims)


def _table(walk: Trace, values: Sequence[Any], dtype: str, axes: Axes) -> Node:
    """A literal of several values: a chain of selections by position."""
    position = _position(walk, axes, "i64")
    result = walk.node("constant", dtype, (), attrs={"value": values[-1]})
    for index, value in enumerate(values[:-1]):
        at = walk.node("constant", "i64", (), attrs={"value": index})
        here = walk.node("pointwise", "i1", axes, operands=(position, at), attrs={"fn": "eq"})
        literal = walk.node("constant", dtype, (), attrs={"value": value})
        result = walk.node(
            "pointwise", dtype, axes, operands=(here, literal, result), attrs={"fn": "where"}
        )
    return result


def _position(walk: Trace, axes: Axes, dtype: str) -> Node:
    strides = contiguous_strides([axis.size for axis in axes])
    node = walk.node("index", "i64", axes, attrs={"strides": strides})
    if dtype != "i64":
        node = walk.node("pointwise", dtype, axes, operands=(node,), attrs={"fn": "cast"})
    return node


def _iota(walk: Trace, op: IotaOp) -> Term:
    dims = tuple(axes_of(n) for n in shape_of(op.outputs[0]))
    dtype, dim = tensor(op.outputs[0]).dtype, op.dim
    if not dims[dim]:
        return Term(walk.node("constant", dtype, (), attrs={"value": 0}), dims)
    return Term(_position(walk, dims[dim], dtype), dims)


def _take(walk: Trace, op: TakeOp) -> Term:
    at, index = op.dim, walk.term(op.index)
    node, dims = _gathered(walk, op, op.table, at, index.node)
    return Term(node, (*dims[:at], *index.dims, *dims[at + 1 :]))


def _gather(walk: Trace, op: GatherOp) -> Term:
    at, index = op.dim, walk.term(op.index)
    node, dims = _gathered(walk, op, op.x, at, index.node)
    for d, axes in enumerate(dims):
        if d != at:
            walk.unify(axes, index.dims[d], op.name)
    return Term(node, (*dims[:at], index.dims[at], *dims[at + 1 :]))


def _gathered(
    walk: Trace, op: TakeOp | GatherOp, table: SSAValue, at: int, index: Node
) -> tuple[Node, Dims]:
    stored = walk.stored(table)
    if stored is None:
        raise GroupError("a gather from a value that the kernel computes")
    root, view = stored
    if len(view.dims[at]) > 1:
        raise GroupError("a gather along a dim of two strides", [(table, ())])
    kept = [() if d == at else dim for d, dim in enumerate(view.dims)]
    dims = tuple(tuple(Axis(n) for n, _ in dim) for dim in kept)
    own = tuple(axis for dim in dims for axis in dim)
    count, stride = view.dims[at][0] if view.dims[at] else (1, 0)
    attrs = {
        "strides": tuple(s for dim in kept for _, s in dim),
        "index_stride": stride,
        "index_count": count,
        "own": own,
    }
    node = walk.node(
        "load",
        tensor(op.outputs[0]).dtype,
        (*own, *index.axes),
        operands=(index,),
        attrs=attrs,
        stored=(root, view),
        source=table,
    )
    return node, dims


def _stretched(dims: Dims, old: Sequence[int], new: Sequence[int]) -> Dims:
    missing = len(new) - len(old)
    kept = (*[()] * missing, *dims)
    sizes = (*[1] * missing, *old)
    return tuple(
        axes if n == m else axes_of(m) for axes, n, m in zip(kept, sizes, new, strict=True)
    )


Rule: TypeAlias = Callable[[Trace, Any], Term | Stored]
RULES: Mapping[type[FlowOp], Rule] = {
    **dict.fromkeys((ReshapeOp, TransposeOp, BroadcastOp, SliceOp), _shape_op),
    PointwiseOp: _pointwise,
    ReduceOp: _reduce,
    ArgReduceOp: _arg_reduce,
    ContractOp: _contract,
    PackedContractOp: packed_contract,
    GroupedContractOp: grouped_contract,
    GroupedOuterOp: grouped_outer,
    ConstantOp: _constant,
    IotaOp: _iota,
    TakeOp: _take,
    GatherOp: _gather,
    ConvolutionOp: convolution,
    PoolOp: pool,
    ConcatOp: concat,
    PadOp: pad,
}


def trace(
    ops: Sequence[FlowOp],
    outputs: Sequence[SSAValue],
    source: Callable[[SSAValue], Stored],
) -> tuple[Trace, list[Term]]:
    """Walk a group.

    Args:
        ops: in execution order.
        outputs: the values that the kernel stores, made by ``ops`` or read by them.
        source: where a value from outside lies.

    Returns:
        The walk, and the outputs as terms.

    Raises:
        GroupError: where no common loops exist.
    """
    walk = Trace(source)
    for op in ops:
        walk.op = op
        rule = RULES.get(type(op))
        if rule is None:
            raise GroupError(f"{op.name} is not part of kernels")
        walk.values[op.outputs[0]] = rule(walk, op)
    return walk, [walk.term(value) for value in outputs]

"""Grouped products: rows that each meet one matrix of several, named by an index at run time.

``flow.grouped_contract(x, panels, index)``, with matrices packed once in panels of 64 columns as
those of any matmul (:mod:`irc.kernels.weights.panels`). The kernel's body says it in full: the
matrix is a load by a looked-up index, and a row whose index names no matrix is zeros. The emitter
sorts the rows by their index, so that a matrix is read once for all of its rows (MegaBlocks, Gale
et al. 2022, arXiv:2211.15841, does the same in blocks of a sparse matrix).
"""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import TransposeOp, tensor
from irc.dialects.packed_products import GroupedContractOp, GroupedOuterOp
from irc.kernels.axes import Axes, axes_of
from irc.kernels.holds import shape_of
from irc.kernels.quantized.panels import cut_to, pad_to
from irc.kernels.trace import GroupError, Node, Term, Trace, flat
from irc.kernels.view import contiguous_strides
from irc.kernels.weights.panels import COLUMNS, PAIRED


def grouped_contract(walk: Trace, op: GroupedContractOp) -> Term:
    """Trace the op: the rule of :mod:`irc.kernels.rules`."""
    x, w, index = op.x, op.weight, op.index
    matrices, *own = shape_of(w)
    panel, step, lane, pair = (axes_of(size) for size in own)
    if (stored := walk.stored(x)) is None or len(stored[1].dims[-1]) > 1:
        raise GroupError("rows of a grouped product that do not lie in runs", [(x, ())])
    rows = walk.load(x, stored)
    walk.unify(rows.dims[1], (*step, *pair), op.name)
    index_term = walk.term(index)
    walk.unify(rows.dims[0], index_term.dims[0], op.name)
    inside, chosen = _within(walk, index_term.node, matrices)
    weight = _matrix(walk, w, chosen, (*panel, *step, *lane, *pair))
    dims = (rows.dims[0], (*panel, *lane))
    product = walk.node(
        "contract", rows.node.dtype, flat(dims), operands=(rows.node, weight),
        attrs={"packed": True, "grouped": True, "fill": op.fill},
    )  # fmt: skip
    walk.reductions.append((product, (*step, *pair)))
    zero = walk.node("constant", product.dtype, (), attrs={"value": 0})
    result = _apply(walk, "where", product.dtype, inside, product, zero)
    return Term(result, dims)


def grouped_outer(walk: Trace, op: GroupedOuterOp) -> Term:
    """Trace the op: where a row is of another group, its products are not summed."""
    x, g, index = op.x, op.g, op.index
    factors: list[Term] = []
    for value in (x, g):
        if (stored := walk.stored(value)) is None:
            raise GroupError("rows of a grouped sum that the kernel computes")
        if any(len(dim) > 1 for dim in stored[1].dims):
            raise GroupError("rows of a grouped sum that lie apart", [(value, ())])
        factors.append(walk.load(value, stored))
    left, right = factors
    index_term = walk.term(index)
    walk.unify(left.dims[0], right.dims[0], op.name)
    walk.unify(left.dims[0], index_term.dims[0], op.name)
    group = axes_of(op.count)
    number = walk.node("constant", "i64", (), attrs={"value": 0})
    if group:
        number = walk.node("index", "i64", group, attrs={"strides": (1,)})
    zero = walk.node("constant", left.node.dtype, (), attrs={"value": 0})
    own = _apply(walk, "eq", "i1", index_term.node, number)
    taken = _apply(walk, "where", left.node.dtype, own, left.node, zero)
    dims = (group, left.dims[1], right.dims[1])
    # A row is of one group at most.
    fill = (1.0 if op.fill is None else op.fill) / op.count
    product = walk.node(
        "contract", left.node.dtype, flat(dims), operands=(taken, right.node),
        attrs={"packed": True, "outer": True, "fill": fill},
    )  # fmt: skip
    walk.reductions.append((product, left.dims[0]))
    return Term(product, dims)


def _within(walk: Trace, index: Node, count: int) -> tuple[Node, Node]:
    """Return whether an index names one of ``count`` matrices, and one that always does."""
    zero, end = (walk.node("constant", index.dtype, (), attrs={"value": n}) for n in (0, count))
    low, high = _apply(walk, "ge", "i1", index, zero), _apply(walk, "lt", "i1", index, end)
    inside = _apply(walk, "logical_and", "i1", low, high)
    return inside, _apply(walk, "where", index.dtype, inside, index, zero)


def _matrix(walk: Trace, w: SSAValue, chosen: Node, own: Axes) -> Node:
    stored = walk.stored(w)
    if stored is None or not stored[1].is_plain:
        raise GroupError("packed matrices that lie apart", [(w, ())])
    strides = contiguous_strides([axis.size for axis in own])
    count, *matrix = shape_of(w)
    attrs = {
        "strides": strides, "index_stride": prod(matrix), "index_count": count, "own": own,
    }  # fmt: skip
    return walk.node(
        "load", tensor(w).dtype, (*own, *chosen.axes), operands=(chosen,), attrs=attrs,
        stored=stored, source=w,
    )  # fmt: skip


def _apply(walk: Trace, fn: str, dtype: str, *operands: Node) -> Node:
    axes = tuple(dict.fromkeys(axis for node in operands for axis in node.axes))
    return walk.node("pointwise", dtype, axes, operands=operands, attrs={"fn": fn})


def matrix_panels(b: FlowBuilder, w: SSAValue) -> SSAValue:
    """Append matrices [E, N, K] in panels [E, P, K / q, 64, q], q elements of K side by side."""
    count, n, k = shape_of(w)
    pair = PAIRED.get(tensor(w).dtype, 1)
    if k % pair:
        pair = 1
    panels = -(-n // COLUMNS)
    whole = pad_to(b, w, (count, panels * COLUMNS, k))
    apart = b.reshape(whole, (count, panels, COLUMNS, k // pair, pair))
    return b.op(TransposeOp, [apart], perm=(0, 1, 3, 2, 4))


def grouped_product(
    b: FlowBuilder, x: SSAValue, w: SSAValue, index: SSAValue, fill: float | None = None
) -> SSAValue:
    """Append ``result[r, n] = sum over k of x[r, k] w[index[r], n, k]``, zeros outside of w.

    ``fill`` is the part of the rows whose index is expected to name a matrix, None for all.
    """
    product = b.op(GroupedContractOp, [x, matrix_panels(b, w), index], fill=fill)
    return cut_to(b, product, shape_of(w)[1])

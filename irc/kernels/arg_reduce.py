"""``flow.arg_reduce`` as two reductions over the same dims: the value, then its first position.

``argmax(x) = min(where(x == max(x), i, n))``: both are vectors of lanes in any backend, the second
walk reads what the first left in the cache, and what makes ``x`` is fused in front. A NaN counts as
the extreme, as torch has it: the reduction gives NaN then, which nothing equals, and the first
position where ``x`` is no number is found instead.
"""

from __future__ import annotations

from irc.dialects.searches import ArgReduceOp
from irc.dialects.types import is_float
from irc.kernels.axes import Axes
from irc.kernels.trace import Node, Term, Trace


def arg_reduce(walk: Trace, op: ArgReduceOp, at: int, position: Node, size: int) -> Term:
    """Add the nodes of an arg_reduce.

    Args:
        walk: of the group.
        op: its dim ``at`` has more than one element.
        at: the searched dim, counted from 0.
        position: counts along that dim, in some integer type.
        size: of that dim.
    """
    term = walk.term(op.x)
    searched = term.dims[at]
    kept = tuple(a for d, axes in enumerate(term.dims) if d != at for a in axes)
    x = _ordered(walk, term.node)
    best = walk.node("reduce", x.dtype, kept, operands=(x,), attrs={"fn": op.fn})
    walk.reductions.append((best, searched))
    here = _function(walk, "eq", "i1", x.axes, x, best)
    if is_float(x.dtype):
        lost = _function(walk, "is_nan", "i1", x.axes, x)
        here = _function(walk, "logical_or", "i1", x.axes, here, lost)
    last = walk.node("constant", position.dtype, (), attrs={"value": size - 1})
    axes = tuple(dict.fromkeys((*x.axes, *position.axes)))
    places = _function(walk, "where", position.dtype, axes, here, position, last)
    what = {"fn": "min", "finds": op.fn}
    first = walk.node("reduce", position.dtype, kept, operands=(places,), attrs=what)
    walk.reductions.append((first, searched))
    if first.dtype != "i64":
        first = _function(walk, "cast", "i64", kept, first)
    dims = tuple(
        () if d == at else axes for d, axes in enumerate(term.dims) if op.keep_dims or d != at
    )
    return Term(first, dims)


def _ordered(walk: Trace, x: Node) -> Node:
    """Return what is compared: a bool as a number."""
    return _function(walk, "cast", "u8", x.axes, x) if x.dtype == "i1" else x


def _function(walk: Trace, fn: str, dtype: str, axes: Axes, *operands: Node) -> Node:
    return walk.node("pointwise", dtype, axes, operands=operands, attrs={"fn": fn})

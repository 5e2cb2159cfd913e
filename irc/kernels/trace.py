"""A group of flow ops as one loop nest: which loops, which values, what is loaded and stored.

:func:`trace` walks the ops of a group once, keeps shape ops as views of memory or as rearranged axes, and
unifies the axes of values that meet. :class:`Nest` then says which axes are tasks and which are
reduced, or refuses with the reason; :mod:`irc.kernels.lower` turns it into a ``task.kernel``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.dialects.size import Size
from irc.dialects.types import TensorType, is_float
from irc.errors import IrcError
from irc.kernels.axes import Axes, Axis, axes_of, leaves, unify
from irc.kernels.view import View, contiguous_strides
from irc.ops.infer import parse_spec

SHAPE_OPS = frozenset({"flow.reshape", "flow.transpose", "flow.broadcast", "flow.slice"})
COMPUTE_OPS = frozenset({"flow.pointwise", "flow.reduce", "flow.contract", "flow.take", "flow.gather"})
FREE_OPS = frozenset({"flow.constant", "flow.iota"})
KERNEL_OPS = SHAPE_OPS | COMPUTE_OPS | FREE_OPS
"""Ops that a kernel can hold; all others run in a library or move data between ranks."""

Kind: TypeAlias = Literal["load", "constant", "index", "pointwise", "reduce", "contract"]
Dims: TypeAlias = tuple[Axes, ...]
Stored: TypeAlias = tuple[SSAValue, View]
"""A value in memory: the contiguous tensor that holds it, and where in it."""


class GroupError(Exception):
    """A group that is no single kernel; the text says why.

    Attributes:
        copies: values outside the group that, made contiguous first, would allow it.
    """

    def __init__(self, reason: str, copies: Sequence[tuple[SSAValue, tuple[int, ...]]] = ()) -> None:
        super().__init__(reason)
        self.copies = tuple(copies)


@dataclass(eq=False)
class Node:
    """One value that the kernel computes for a point, or for a task.

    Attributes:
        kind: what makes it.
        dtype: its element type.
        axes: the axes on which it depends (in no order; leaves change until tracing ends).
        operands: other nodes; those of a load are the indices of a gather.
        attrs: the function, the literal, the strides of an index, the dims of a reduction.
        stored: what a load reads, ``strides`` one for each of its own axes.
    """

    kind: Kind
    dtype: str
    axes: Axes
    operands: tuple[Node, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])
    stored: Stored | None = None
    source: SSAValue | None = None
    loc: str = "unknown"
    id: str = ""


@dataclass(frozen=True)
class Term:
    """A flow value inside the group: a node, and the axes that each of its dims runs over."""

    node: Node
    dims: Dims


def has_kernel(op: Operation) -> bool:
    """True for an op that kernels can hold: one of theirs, on real numbers, with something to do."""
    values = (*op.operands, *op.results)
    if op.name not in KERNEL_OPS or not all(isinstance(v.type, TensorType) for v in values):
        return False
    if any(tensor(v).dtype.startswith("c") or 0 in tensor(v).shape for v in values):
        return False
    if op.name == "flow.gather" and isinstance(op, FlowOp):
        # A gather from a part of its table would need the table cut first.
        table, index = (shape_of(value) for value in op.inputs)
        return all(n == m or d == op.plain["dim"] for d, (n, m) in enumerate(zip(table, index, strict=True)))
    return True


def require_static(func: FuncOp) -> None:
    """Refuse a function that still has named sizes.

    Raises:
        IrcError: ``size-unbound``, naming them.
    """
    values = [v for op in func.walk() for v in op.results] + list(func.body.block.args)
    dims = [d for v in values if isinstance(v.type, TensorType) for d in v.type.shape]
    names = sorted({name for dim in dims if isinstance(dim, Size) for name in dim.names()})
    if names:
        raise IrcError(
            "size-unbound",
            f"@{func.sym_name.data} has sizes without a number: {', '.join(names)}",
            because="kernels are made for numbers",
            help=f"run bind-sizes first: bind-sizes{{sizes=\"{','.join(f'{n}=8' for n in names)}\"}}",
        )


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """Return a value's static shape."""
    return tensor(value).static_shape()


class Trace:
    """The walk over a group; see :func:`trace`."""

    def __init__(self, source: Callable[[SSAValue], Stored]) -> None:
        self.source = source
        self.values: dict[SSAValue, Term | Stored] = {}
        self.nodes: list[Node] = []
        self.reductions: list[tuple[Node, Axes]] = []
        self._op: Operation | None = None

    def node(self, kind: Kind, dtype: str, axes: Axes, **rest: Any) -> Node:
        """Add a node, named after the op that is being walked."""
        op = self._op
        made = Node(kind, dtype, axes, **rest)
        if op is not None:
            made.loc, made.id = loc_of(op), id_of(op)
        self.nodes.append(made)
        return made

    def stored(self, value: SSAValue) -> Stored | None:
        """Return where a value lies, None for one that the group computes."""
        if value not in self.values:
            self.values[value] = self.source(value)
        found = self.values[value]
        return None if isinstance(found, Term) else found

    def term(self, value: SSAValue) -> Term:
        """Return a value as a term; one in memory is loaded, once."""
        if (stored := self.stored(value)) is not None:
            self.values[value] = self.load(value, stored)
        found = self.values[value]
        assert isinstance(found, Term)
        return found

    def load(self, value: SSAValue, stored: Stored) -> Term:
        """Load a value over new axes."""
        dims = tuple(tuple(Axis(n) for n, _ in dim) for dim in stored[1].dims)
        strides = tuple(s for dim in stored[1].dims for _, s in dim)
        node = self.node(
            "load",
            tensor(value).dtype,
            tuple(axis for dim in dims for axis in dim),
            stored=stored,
            attrs={"strides": strides},
            source=value,
        )
        return Term(node, dims)

    def walk(self, op: FlowOp) -> None:
        """Add one op."""
        self._op = op
        rule = _RULES.get(op.name)
        if rule is None:
            raise GroupError(f"{op.name} is not part of kernels")
        self.values[op.outputs[0]] = rule(self, op)

    # One method per op: what it does to axes.

    def _shape_op(self, op: FlowOp) -> Term | Stored:
        source, shape = op.inputs[0], shape_of(op.outputs[0])
        if (stored := self.stored(source)) is not None:
            view = stored[1].apply(op.name, op.plain, shape)
            if view is not None:
                return stored[0], view
        term = self.term(source)
        match op.name:
            case "flow.transpose":
                return Term(term.node, tuple(term.dims[i] for i in op.plain["perm"]))
            case "flow.broadcast":
                return Term(term.node, _stretched(term.dims, shape_of(source), shape))
            case "flow.reshape":
                dims = tuple(axes_of(n) for n in shape)
                self._unify(sum(term.dims, ()), sum(dims, ()), "reshape")
                return Term(term.node, dims)
            case _:
                if term.node.kind == "constant":
                    return Term(term.node, tuple(axes_of(n) for n in shape))
                raise GroupError("a slice of a value that the kernel computes")

    def _pointwise(self, op: FlowOp) -> Term:
        operands = [self.term(value) for value in op.inputs]
        dims = self._meet([(t, shape_of(v)) for t, v in zip(operands, op.inputs, strict=True)], op)
        axes = tuple(axis for t in operands for axis in t.node.axes)
        node = self.node(
            "pointwise",
            tensor(op.outputs[0]).dtype,
            axes,
            operands=tuple(t.node for t in operands),
            attrs={"fn": op.plain["fn"]},
        )
        return Term(node, dims)

    def _meet(self, operands: Sequence[tuple[Term, tuple[int, ...]]], op: FlowOp) -> Dims:
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
                    self._unify(met, axes, op.name)
        return tuple(() if axes is None else axes for axes in dims)

    def _reduce(self, op: FlowOp) -> Term:
        attrs, term = op.plain, self.term(op.inputs[0])
        reduced = tuple(axis for d in attrs["dims"] for axis in term.dims[d])
        dims = tuple(
            () if d in attrs["dims"] else axes
            for d, axes in enumerate(term.dims)
            if attrs["keep_dims"] or d not in attrs["dims"]
        )
        kept = tuple(a for d, axes in enumerate(term.dims) if d not in attrs["dims"] for a in axes)
        dtype = tensor(op.outputs[0]).dtype
        if not reduced:
            # Over dims of size 1 nothing is left to reduce.
            fn = "cast" if dtype != term.node.dtype else "copy"
            node = self.node("pointwise", dtype, kept, operands=(term.node,), attrs={"fn": fn})
            return Term(node, dims)
        node = self.node("reduce", dtype, kept, operands=(term.node,), attrs={"fn": attrs["fn"]})
        self.reductions.append((node, reduced))
        return Term(node, dims)

    def _contract(self, op: FlowOp) -> Term:
        spec, result = parse_spec(op.plain["spec"])
        dtype = tensor(op.outputs[0]).dtype
        # A value that is also read elsewhere (x of x x^T, a residual) is read over other axes there.
        operands = [
            self.term(v) if (s := self.stored(v)) is None else self.load(v, s) for v in op.inputs
        ]
        by_letter: dict[str, Axes] = {}
        for letters, term in zip(spec, operands, strict=True):
            for letter, axes in zip(letters, term.dims, strict=True):
                if letter in by_letter:
                    self._unify(by_letter[letter], axes, op.name)
                else:
                    by_letter[letter] = axes
        reduced = tuple(a for c, axes in by_letter.items() if c not in result for a in axes)
        kept = tuple(a for c in result for a in by_letter[c])
        nodes = tuple(t.node for t in operands)
        dims = tuple(by_letter[c] for c in result)
        alone = any(sum(c in letters for letters in spec) == 1 for c in by_letter if c not in result)
        if len(nodes) == 2 and reduced and not alone and all(n.kind == "load" for n in nodes):
            node = self.node("contract", dtype, kept, operands=nodes)
        else:
            node = self._product(nodes, dtype)
            if reduced:
                node = self.node("reduce", dtype, kept, operands=(node,), attrs={"fn": "sum"})
        if reduced:
            self.reductions.append((node, reduced))
        return Term(node, dims)

    def _product(self, nodes: Sequence[Node], dtype: str) -> Node:
        """Multiply operands, as any einsum of other than two operands does."""
        product = nodes[0]
        for other in nodes[1:]:
            axes = (*product.axes, *other.axes)
            product = self.node(
                "pointwise", dtype, axes, operands=(product, other), attrs={"fn": "mul"}
            )
        if len(nodes) == 1:
            product = self.node(
                "pointwise", dtype, product.axes, operands=(product,), attrs={"fn": "copy"}
            )
        return product

    def _constant(self, op: FlowOp) -> Term:
        kind, values = tensor(op.outputs[0]), op.plain["value"]
        dims = tuple(axes_of(n) for n in shape_of(op.outputs[0]))
        if len(values) == 1:
            return Term(self.node("constant", kind.dtype, (), attrs={"value": values[0]}), dims)
        return Term(self._table(values, kind.dtype, sum(dims, ())), dims)

    def _table(self, values: Sequence[Any], dtype: str, axes: Axes) -> Node:
        """A literal of several values: a chain of selections by position."""
        position = self._position(axes, "i64")
        result = self.node("constant", dtype, (), attrs={"value": values[-1]})
        for index, value in enumerate(values[:-1]):
            at = self.node("constant", "i64", (), attrs={"value": index})
            here = self.node("pointwise", "i1", axes, operands=(position, at), attrs={"fn": "eq"})
            literal = self.node("constant", dtype, (), attrs={"value": value})
            result = self.node(
                "pointwise", dtype, axes, operands=(here, literal, result), attrs={"fn": "where"}
            )
        return result

    def _position(self, axes: Axes, dtype: str) -> Node:
        strides = contiguous_strides([axis.size for axis in axes])
        node = self.node("index", "i64", axes, attrs={"strides": strides})
        if dtype != "i64":
            node = self.node("pointwise", dtype, axes, operands=(node,), attrs={"fn": "cast"})
        return node

    def _iota(self, op: FlowOp) -> Term:
        dims = tuple(axes_of(n) for n in shape_of(op.outputs[0]))
        if not dims[op.plain["dim"]]:
            dtype = tensor(op.outputs[0]).dtype
            zero = 0.0 if is_float(dtype) else 0
            return Term(self.node("constant", dtype, (), attrs={"value": zero}), dims)
        return Term(self._position(dims[op.plain["dim"]], tensor(op.outputs[0]).dtype), dims)

    def _take(self, op: FlowOp) -> Term:
        at = op.plain["dim"]
        index = self.term(op.inputs[1])
        node, dims = self._gathered(op, at, index.node)
        return Term(node, (*dims[:at], *index.dims, *dims[at + 1 :]))

    def _gather(self, op: FlowOp) -> Term:
        at, index = op.plain["dim"], self.term(op.inputs[1])
        node, dims = self._gathered(op, at, index.node)
        for d, axes in enumerate(dims):
            if d != at:
                self._unify(axes, index.dims[d], op.name)
        return Term(node, (*dims[:at], index.dims[at], *dims[at + 1 :]))

    def _gathered(self, op: FlowOp, at: int, index: Node) -> tuple[Node, Dims]:
        stored = self.stored(op.inputs[0])
        if stored is None:
            raise GroupError("a gather from a value that the kernel computes")
        root, view = stored
        if len(view.dims[at]) > 1:
            raise GroupError("a gather along a dim of two strides", [(op.inputs[0], ())])
        kept = [() if d == at else dim for d, dim in enumerate(view.dims)]
        dims = tuple(tuple(Axis(n) for n, _ in dim) for dim in kept)
        own = tuple(axis for dim in dims for axis in dim)
        attrs = {
            "strides": tuple(s for dim in kept for _, s in dim),
            "index_stride": view.dims[at][0][1] if view.dims[at] else 0,
            "own": own,
        }
        node = self.node(
            "load",
            tensor(op.outputs[0]).dtype,
            (*own, *index.axes),
            operands=(index,),
            attrs=attrs,
            stored=(root, view),
            source=op.inputs[0],
        )
        return node, dims

    def _unify(self, left: Axes, right: Axes, where: str) -> None:
        if not unify(left, right):
            copies = [
                (node.source, ()) for node in self.nodes
                if node.kind == "load" and node.source is not None
                and node.stored is not None and node.stored[1].strides is None
            ]  # fmt: skip
            raise GroupError(f"sizes do not nest in {where}", copies)


def _stretched(dims: Dims, old: Sequence[int], new: Sequence[int]) -> Dims:
    missing = len(new) - len(old)
    kept = (*[()] * missing, *dims)
    sizes = (*[1] * missing, *old)
    return tuple(
        axes if n == m else axes_of(m) for axes, n, m in zip(kept, sizes, new, strict=True)
    )


_RULES: Mapping[str, Callable[[Trace, FlowOp], Term | Stored]] = {
    **dict.fromkeys(SHAPE_OPS, Trace._shape_op),
    "flow.pointwise": Trace._pointwise,
    "flow.reduce": Trace._reduce,
    "flow.contract": Trace._contract,
    "flow.constant": Trace._constant,
    "flow.iota": Trace._iota,
    "flow.take": Trace._take,
    "flow.gather": Trace._gather,
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
        walk.walk(op)
    return walk, [walk.term(value) for value in outputs]


def leaf_set(axes: Axes) -> frozenset[Axis]:
    """Return the final axes behind some axes, as a set."""
    return frozenset(leaves(axes))

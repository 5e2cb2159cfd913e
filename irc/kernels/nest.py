"""The loops of a traced group: which axes are tasks, which are reduced, what each access strides.

A nest is legal where one task space fits all: every reduction reduces the same axes, every
output runs over all task axes, and no reduction is computed again for each point of another axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp
from irc.kernels.axes import Axes, Axis, leaves
from irc.kernels.orders import Orders
from irc.kernels.rules import trace
from irc.kernels.trace import Dims, GroupError, Node, Stored, Term, Trace, flat, leaf_set
from irc.kernels.view import contiguous_strides
from irc.kernels.windows import Bound

Strides: TypeAlias = dict[Axis, int]


@dataclass(frozen=True)
class Access:
    """A linear function of the point: the address of a load or store, or an index value."""

    offset: int
    strides: Strides


@dataclass(frozen=True)
class Nest:
    """A group as loops, before neighbouring loops are joined.

    Attributes:
        tasks: parallel axes, outermost first.
        reduced: reduced axes, outermost first.
        nodes: what is computed, in order, dead nodes left out.
        full: the nodes that have a value for each point of the reduced axes.
        accesses: of load and index nodes.
        outputs: the stored values, the node that gives each, and how it is stored.
        template: ``matmul`` where the nest is one contraction and what follows it.
        bounds: of loads: they touch memory where each (size, position) has 0 <= position < size.
    """

    tasks: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    nodes: tuple[Node, ...]
    full: frozenset[Node]
    accesses: dict[Node, Access]
    outputs: tuple[tuple[SSAValue, Node, Access], ...]
    template: Literal["rows", "matmul"]
    bounds: dict[Node, tuple[tuple[int, Access], ...]] = field(
        default_factory=dict["Node", "tuple[tuple[int, Access], ...]"]
    )

    @property
    def contract(self) -> Node | None:
        """The contraction, where there is one."""
        return next((node for node in self.nodes if node.kind == "contract"), None)

    @property
    def positions(self) -> list[Access]:
        """All linear functions of the point: addresses, indices, and positions within bounds."""
        accesses = [*self.accesses.values(), *(store for _, _, store in self.outputs)]
        return accesses + [at for rows in self.bounds.values() for _, at in rows]

    @property
    def is_packed(self) -> bool:
        """True where the contraction's weight lies in panels of integers."""
        return any(node.attrs.get("packed") for node in self.nodes)

    @property
    def num_tasks(self) -> int:
        """Points of the parallel axes."""
        return prod(axis.size for axis in self.tasks)

    @property
    def num_points(self) -> int:
        """Points of all axes."""
        return self.num_tasks * prod(axis.size for axis in self.reduced)


def nest_of(
    ops: Sequence[FlowOp],
    outputs: Sequence[SSAValue],
    source: Callable[[SSAValue], Stored],
    orders: Orders | None = None,
) -> Nest:
    """Find the loops of a group.

    Args:
        ops: in execution order.
        outputs: the values to store.
        source: where a value from outside lies.
        orders: of the dims of outputs in memory, where they are not contiguous.

    Raises:
        GroupError: where the group is no single kernel.
    """
    walk, terms = trace(ops, outputs, source)
    known: Orders = orders or {}
    kept = [known.get(v, tuple(range(len(t.dims)))) for v, t in zip(outputs, terms, strict=True)]
    spans = [tuple(t.dims[d] for d in order) for t, order in zip(terms, kept, strict=True)]
    nodes = _live(walk, terms)
    reduced = _reduced(walk, nodes)
    tasks = _tasks(spans, nodes, frozenset(reduced))
    full = _full(nodes, terms, frozenset(reduced))
    contracts = [node for node in nodes if node.kind == "contract"]
    _check_reductions(nodes, full, frozenset(tasks), frozenset(reduced))
    stores = tuple(
        (value, term.node, _store(term.node, span, full, tasks, reduced))
        for value, term, span in zip(outputs, terms, spans, strict=True)
    )
    accesses = {n: _access(n) for n in nodes if n.kind in ("load", "index")}
    bounds = {n: rows for n in nodes if (rows := _bounds(n))}
    template = "matmul" if contracts else "rows"
    if contracts and (len(contracts) > 1 or any(node.kind == "reduce" for node in nodes)):
        raise GroupError("a matmul with another reduction")
    packed = any(node.attrs.get("packed") for node in contracts)
    if contracts and not packed and full - set(contracts[0].operands):
        raise GroupError("an operand of a matmul is computed")
    return Nest(tasks, reduced, nodes, full, accesses, stores, template, bounds)


def _live(walk: Trace, terms: Sequence[Term]) -> tuple[Node, ...]:
    """Drop what no output needs, such as the whole of a tensor that is loaded through a slice."""
    live: set[Node] = set()
    pending = [term.node for term in terms]
    while pending:
        node = pending.pop()
        if node not in live:
            live.add(node)
            pending.extend(node.operands)
    return tuple(node for node in walk.nodes if node in live)


def _reduced(walk: Trace, nodes: Sequence[Node]) -> tuple[Axis, ...]:
    """The axes that all reductions share, in the order in which the first one reads memory."""
    live = set(nodes)
    reductions = [(node, leaves(axes)) for node, axes in walk.reductions if node in live]
    if not reductions:
        return ()
    node, first = reductions[0]
    if len(set(first)) != len(first):
        raise GroupError("a reduction over a diagonal")
    if any(set(axes) != set(first) for _, axes in reductions):
        raise GroupError("reductions over different dims")
    if node.attrs.get("windows"):
        return tuple(first)  # taps, then channels, whatever the weight's order
    return _in_memory_order(first, node)


def _in_memory_order(axes: Sequence[Axis], node: Node) -> tuple[Axis, ...]:
    """Order reduced axes by the strides of the last load below a reduction: a matmul's weight."""
    if node.attrs.get("packed"):
        return tuple(axes)
    while node.kind != "load" and node.operands:
        node = node.operands[-1]
    if node.kind != "load":
        return tuple(axes)
    strides = _access(node).strides
    return tuple(sorted(axes, key=lambda axis: -abs(strides.get(axis, 0))))


def _tasks(
    outputs: Sequence[Dims], nodes: Sequence[Node], reduced: frozenset[Axis]
) -> tuple[Axis, ...]:
    """The axes of the first largest output that are not reduced; no value may need another one."""
    spans = [leaves(flat(dims)) for dims in outputs]
    for axes in spans:
        if len(set(axes)) != len(axes):
            raise GroupError("a value that is read along a diagonal")
    longest = max(spans, key=lambda axes: prod(a.size for a in axes))
    tasks = tuple(axis for axis in longest if axis not in reduced)
    known = frozenset(tasks) | reduced
    for node in nodes:
        own = leaves(node.axes)
        if node.kind in ("load", "index") and len(set(own)) != len(own) and not node.operands:
            raise GroupError("a value that is read along a diagonal")
        if not known >= set(own):
            raise GroupError("a value with a dim that no output has")
    return tasks


def _full(
    nodes: Sequence[Node], terms: Sequence[Term], reduced: frozenset[Axis]
) -> frozenset[Node]:
    """The nodes that have a value for each point of the reduced axes.

    A load that steps by 0 along them (a broadcast view) has one value for each task, unless what is
    reduced or stored along them has no other source.
    """
    wanted = [o for n in nodes if n.kind in ("reduce", "contract") for o in n.operands]
    wanted += [t.node for t in terms if reduced & leaf_set(flat(t.dims))]
    full = _varying(nodes, reduced, frozenset())
    pending, forced = [node for node in wanted if node not in full], set[Node]()
    while pending:
        node = pending.pop()
        if node.kind == "pointwise":
            pending.extend(node.operands)
        elif node.kind == "load" and reduced & leaf_set(node.axes):
            forced.add(node)
    return _varying(nodes, reduced, frozenset(forced)) if forced else full


def _varying(
    nodes: Sequence[Node], reduced: frozenset[Axis], forced: frozenset[Node]
) -> frozenset[Node]:
    full: set[Node] = set()
    for node in nodes:
        match node.kind:
            case "load":
                strides = _access(node).strides
                varies = node in forced or any(strides.get(axis, 0) for axis in reduced)
                varies |= any(at.strides.get(x, 0) for _, at in _bounds(node) for x in reduced)
            case "index":
                varies = bool(reduced & leaf_set(node.axes))
            case "reduce" | "contract" | "constant":
                continue
            case "pointwise":
                varies = False
        if varies or any(operand in full for operand in node.operands):
            full.add(node)
    return frozenset(full)


def _check_reductions(
    nodes: Sequence[Node],
    full: frozenset[Node],
    tasks: frozenset[Axis],
    reduced: frozenset[Axis],
) -> None:
    for node in nodes:
        if node.kind not in ("reduce", "contract"):
            continue
        if any(operand not in full for operand in node.operands):
            raise GroupError("a reduction of a value that does not vary along the reduced dims")
        if not frozenset().union(*(leaf_set(o.axes) for o in node.operands)) >= tasks | reduced:
            raise GroupError("a reduction that would be computed again for each task")


def _store(
    node: Node,
    dims: Dims,
    full: frozenset[Node],
    tasks: Sequence[Axis],
    reduced: Sequence[Axis],
) -> Access:
    own = leaves(flat(dims))
    if not set(own) >= set(tasks):
        raise GroupError("an output that lacks a dim of the tasks")
    if not {*tasks, *reduced} >= set(own):
        raise GroupError("outputs over different dims")
    spans = set(own) & set(reduced)
    if spans and spans != set(reduced):
        raise GroupError("an output that has a part of the reduced dims")
    if bool(spans) != (node in full):
        raise GroupError("an output that repeats one value along the reduced dims")
    strides: Strides = {}
    sizes = [prod(axis.size for axis in leaves(axes)) for axes in dims]
    for axes, stride in zip(dims, contiguous_strides(sizes), strict=True):
        parts = leaves(axes)
        for axis, inner in zip(parts, contiguous_strides([a.size for a in parts]), strict=True):
            strides[axis] = stride * inner
    return Access(0, strides)


def _access(node: Node) -> Access:
    """The address of a load, or the value of an index, by final axes."""
    own: Axes = node.attrs.get("own", node.axes)
    shift: int = node.attrs.get("shift", 0)
    offset = shift + (node.stored[1].offset if node.stored else 0)
    return _linear(offset, zip(own, node.attrs["strides"], strict=True))


def _bounds(node: Node) -> tuple[tuple[int, Access], ...]:
    """The bounds of a load, by final axes."""
    rows: Sequence[Bound] = node.attrs.get("bounds", ())
    return tuple((row.size, _linear(row.start, row.along)) for row in rows)


def _linear(start: int, along: Iterable[tuple[Axis, int]]) -> Access:
    strides: Strides = {}
    for axis, stride in along:
        parts = leaves((axis,))
        for part, inner in zip(parts, contiguous_strides([a.size for a in parts]), strict=True):
            strides[part] = strides.get(part, 0) + stride * inner
    return Access(start, strides)

"""A group of flow ops as values over loop axes: what is loaded, computed and met.

:func:`irc.kernels.rules.trace` walks the ops of a group once, keeps shape ops as views of memory or
as rearranged axes, and unifies the axes of values that meet. :mod:`irc.kernels.nest` says which
are tasks and which reduced, or refuses with the reason; :mod:`irc.kernels.lower` writes the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.kernels.axes import Axes, Axis, leaves
from irc.kernels.axes import unify as unified
from irc.kernels.view import View

Kind: TypeAlias = Literal["load", "constant", "index", "pointwise", "reduce", "contract"]
Dims: TypeAlias = tuple[Axes, ...]
Stored: TypeAlias = tuple[SSAValue, View]
"""A value in memory: the contiguous tensor that holds it, and where in it."""


class GroupError(Exception):
    """A group that is no single kernel; the text says why.

    Attributes:
        copies: values outside the group that, made contiguous first, would allow it.
    """

    def __init__(
        self, reason: str, copies: Sequence[tuple[SSAValue, tuple[int, ...]]] = ()
    ) -> None:
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


class Trace:
    """The state of a walk over a group."""

    def __init__(self, source: Callable[[SSAValue], Stored]) -> None:
        self.source = source
        self.values: dict[SSAValue, Term | Stored] = {}
        self.nodes: list[Node] = []
        self.reductions: list[tuple[Node, Axes]] = []
        self.op: FlowOp | None = None

    def node(self, kind: Kind, dtype: str, axes: Axes, **rest: Any) -> Node:
        """Add a node, named after the op that is being walked."""
        op = self.op
        node = Node(kind, dtype, axes, **rest)
        if op is not None:
            node.loc, node.id = loc_of(op), id_of(op)
        self.nodes.append(node)
        return node

    def stored(self, value: SSAValue) -> Stored | None:
        """Return where a value lies, None for one that the group computes."""
        if value not in self.values:
            self.values[value] = self.source(value)
        known = self.values[value]
        return None if isinstance(known, Term) else known

    def term(self, value: SSAValue) -> Term:
        """Return a value as a term; one in memory is loaded, once."""
        if (stored := self.stored(value)) is not None:
            self.values[value] = self.load(value, stored)
        term = self.values[value]
        assert isinstance(term, Term)
        return term

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

    def unify(self, left: Axes, right: Axes, where: str) -> None:
        if left != right and not unified(left, right):
            copies = [
                (node.source, ()) for node in self.nodes
                if node.kind == "load" and node.source is not None
                and node.stored is not None and node.stored[1].strides is None
            ]  # fmt: skip
            raise GroupError(f"sizes do not nest in {where}", copies)


def leaf_set(axes: Axes) -> frozenset[Axis]:
    """Return the final axes behind some axes, as a set."""
    return frozenset(leaves(axes))


def flat(dims: Dims) -> Axes:
    """Return the axes of all dims, row-major."""
    return tuple(axis for axes in dims for axis in axes)

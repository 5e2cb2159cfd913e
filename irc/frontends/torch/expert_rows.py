"""What a loop over experts does with the rows of each, read from a traced graph.

A mask says which tokens chose an expert. ``torch.where(mask)``, ``mask.nonzero()`` and ``x[mask]``
select its rows; the expert computes each by itself, and a weight of each row scales the result.
What is read here is by structure: names of attributes and classes say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any, TypeGuard

import torch
from torch.fx import Node

from irc.frontends.torch.repeat import is_mark
from irc.frontends.torch.written import is_written

aten = torch.ops.aten

WHOLE = frozenset({aten.where.default, aten.nonzero_numpy.default})
"""Calls that give one coordinate for each dim of a mask."""
SAME = frozenset(
    {aten.to.dtype, aten._to_copy.default, aten.contiguous.default, aten.clone.default,
     aten.alias.default, aten.type_as.default}
)  # fmt: skip
"""Calls that give what they take, but for its dtype and its memory. What is detached differs: it
has no gradient."""
SHAPED = frozenset(
    {aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default,
     aten.reshape.default, aten.view.default}
)  # fmt: skip
ACTIVATIONS = {
    aten.silu.default: "silu", aten.silu_.default: "silu", aten.relu.default: "relu",
    aten.relu_.default: "relu", aten.gelu.default: "gelu",
}  # fmt: skip


@dataclass(frozen=True)
class Gathered:
    """Rows of a tensor.

    Attributes:
        base: the tensor.
        lead: its dims of size 1 before those that are indexed.
        mask: what selects.
        dims: of the mask, one for each indexed dim of the tensor.
    """

    base: Node
    lead: int
    mask: Node
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Linear:
    """A product with a matrix.

    Attributes:
        matrix: [out, in], or [in, out] where it is ``turned``.
        turned: it is the right side of a plain product.
        bias: [out] or None.
        part: which of how many equal parts of the output this is.
    """

    matrix: Node
    turned: bool
    bias: Node | None
    part: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Expert:
    """Two products with an activation between them, and perhaps a gate.

    Attributes:
        rows: what it takes.
        act: name of the activation (`irc.runtime.experts`).
        gate: what is activated; the first product where there is no gate.
        up: what the activation is multiplied with; None without a gate.
        down: the last product.
    """

    rows: Gathered
    act: str
    gate: Linear
    up: Linear | None
    down: Linear


@dataclass(frozen=True)
class Choice:
    """A mask that says where an index is a number.

    Attributes:
        index: the experts that tokens chose.
        dims: the index's dim for each dim of the mask.
        expert: the number.
        reduced: an index has several choices of a token, and the mask is true where one is it.
    """

    index: Node
    dims: tuple[int, ...]
    expert: int
    reduced: bool = False


def is_node(value: Any) -> bool:
    """Return whether a value is a node: of any kind, so that what it was given may be asked."""
    return isinstance(value, Node)


def is_several(value: Any) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a tuple or a list: of anything."""
    return isinstance(value, tuple | list)


def shape(node: Any) -> tuple[Any, ...]:
    """Return the shape of a node's value; empty where it is no tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _dtype(node: Any) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def numbers(node: Any) -> tuple[Any, ...] | None:
    """Return the shape of a node's value where it does not depend on values."""
    sizes = shape(node)
    known = all(isinstance(size, int) or size.node.has_hint() for size in sizes)
    return sizes if known else None


def same(a: Any, b: Any) -> bool:
    """Return whether two values are one, or computed alike from the same; draws differ."""
    if isinstance(a, Node) and isinstance(b, Node):
        if a is b:
            return True
        alike = a.op == b.op == "call_function" and a.target is b.target
        tags = getattr(a.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags or a.target is aten.dropout.default:
            return False
        return alike and a.kwargs == b.kwargs and same(a.args, b.args)
    if is_several(a) and is_several(b):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


class Reader:
    """Reads the expressions of one graph, and keeps what it has read.

    Attributes:
        read: the nodes that belong to loops.
    """

    def __init__(self) -> None:
        self.read: set[Node] = set()

    def _of(self, node: Any, *targets: Any) -> bool:
        matches = is_node(node) and node.op == "call_function" and node.target in targets
        if matches:
            self.read.add(node)
        return matches

    def plain(self, node: Any, casts: bool = False, floats: bool = False) -> Any:
        """Return what a value is but for copies, dropout that is off, equal shapes, and casts.

        Args:
            node: the value.
            casts: follow all casts: those of a mask, which is 0 or 1.
            floats: follow casts from float to float.
        """
        while is_node(node):
            copied = self._of(node, *SAME) and (casts or _is_cast(node, floats))
            off = self._of(node, aten.dropout.default) and not (node.args[1] and node.args[2])
            shaped = self._of(node, aten.reshape.default, aten.view.default) and _equal_rows(node)
            if copied or off or shaped:
                node = node.args[0]
            elif self._of(node, getitem) and is_mark(node.args[0]):
                node = node.args[0].args[0][node.args[1]]
            else:
                break
        return node

    def coordinate(self, node: Any) -> tuple[Node, int] | None:
        """Return mask and dim of a vector of coordinates."""
        while self._of(node, *SHAPED) and len(shape(node)) == 1:
            node = node.args[0]
        if self._of(node, getitem) and self._of(node.args[0], *WHOLE):
            return node.args[0].args[0], node.args[1]
        if self._of(node, getitem) and self._of(node.args[0], aten.unbind.int):
            pairs = node.args[0].args[0]
            dim = node.args[0].args[1] if len(node.args[0].args) > 1 else 0
            if self._of(pairs, aten.t.default, aten.numpy_T.default) and dim == 0:
                pairs, dim = pairs.args[0], 1
            return self._column(pairs, dim, node.args[1])
        if self._of(node, aten.select.int):
            return self._column(*node.args)
        if self._of(node, aten.nonzero.default) and len(shape(node.args[0])) == 1:
            return node.args[0], 0
        return None

    def _column(self, pairs: Any, dim: int, number: int) -> tuple[Node, int] | None:
        if not self._of(pairs, aten.nonzero.default) or dim not in (1, -1):
            return None
        return pairs.args[0], number % len(shape(pairs.args[0]))

    def gathered(self, node: Any) -> Gathered | None:
        """Return which rows of which tensor a value is."""
        if self._of(node, aten.index_select.default) and node.args[1] == 0:
            base, indices = node.args[0], [node.args[2]]
        elif self._of(node, aten.index.Tensor):
            base, indices = node.args[0], list(node.args[1])
        else:
            return None
        lead = 0
        while lead < len(indices) and indices[lead] is None:
            lead += 1
        chosen = self.chosen(indices[lead:])
        if chosen is None or any(size != 1 for size in shape(base)[:lead]):
            return None
        return Gathered(base, lead, *chosen)

    def chosen(self, indices: list[Any]) -> tuple[Node, tuple[int, ...]] | None:
        """Return mask and dims of the coordinates that index a tensor."""
        parts: list[tuple[Node, int]] = []
        for index in indices:
            if isinstance(index, Node) and index.meta["val"].dtype == torch.bool:
                parts += [(index, dim) for dim in range(len(shape(index)))]
            elif (coordinate := self.coordinate(index)) is not None:
                parts.append(coordinate)
            else:
                return None
        if not parts or not all(same(mask, parts[0][0]) for mask, _ in parts):
            return None
        return parts[0][0], tuple(dim for _, dim in parts)

    def expert(self, node: Any) -> Expert | None:
        """Return what expert gives a value."""
        last = self._linear(self.plain(node))
        if last is None:
            return None
        down, inner = last
        inner = self.plain(inner)
        sides = [(inner, None)]
        if self._of(inner, aten.mul.Tensor):
            left, right = map(self.plain, inner.args)
            sides = [(left, right), (right, left)]
        for activated, other in sides:
            expert = self._activated(activated, other, down)
            if expert is not None:
                return expert
        return None

    def _activated(self, activated: Any, other: Any, down: Linear) -> Expert | None:
        if not self._of(activated, *ACTIVATIONS):
            return None
        act = ACTIVATIONS[activated.target]
        if act == "gelu" and activated.kwargs.get("approximate", "none") == "tanh":
            act = "gelu_tanh"
        first = self._part(self.plain(activated.args[0]))
        second = self._part(other) if other is not None else None
        if first is None or (other is not None and second is None):
            return None
        gate, source = first
        rows = self.gathered(self.plain(source))
        if rows is None or (second is not None and not same(second[1], source)):
            return None
        return Expert(rows, act, gate, None if second is None else second[0], down)

    def _part(self, node: Any) -> tuple[Linear, Node] | None:
        """Return a product, or one of the equal parts of a product's output."""
        if not self._of(node, getitem):
            return self._linear(node)
        cut, number = node.args
        last = len(cut.args) > 2 and cut.args[2] in (-1, len(shape(cut.args[0])) - 1)
        if not self._of(cut, aten.chunk.default, aten.split.Tensor) or not last:
            return None
        width = shape(node)[-1]
        whole = self._linear(self.plain(cut.args[0]))
        if whole is None or shape(cut.args[0])[-1] != 2 * width:
            return None
        return replace(whole[0], part=(number, 2)), whole[1]

    def _linear(self, node: Any) -> tuple[Linear, Node] | None:
        if self._of(node, aten.linear.default):
            x, matrix, *rest = node.args
            bias = rest[0] if rest else None
            linear = Linear(matrix, False, bias)
        elif self._of(node, aten.matmul.default, aten.mm.default):
            x, matrix = node.args
            linear = Linear(matrix, True, None)
        elif self._of(node, aten.addmm.default) and not node.kwargs:
            bias, x, matrix = node.args
            linear = Linear(matrix, True, bias)
        elif self._of(node, aten.add.Tensor) and len(node.args) == 2 and not node.kwargs:
            product = self._linear(node.args[0])
            if product is None or product[0].bias is not None or len(shape(node.args[1])) != 1:
                return None
            linear, x = replace(product[0], bias=node.args[1]), product[1]
        else:
            return None
        fixed = len(numbers(linear.matrix) or ()) == 2 and (
            linear.bias is None or numbers(linear.bias) == (shape(node)[-1],)
        )
        return (linear, x) if fixed and len(shape(x)) == 2 else None

    def scaled(self, node: Any) -> tuple[Any, list[Gathered]] | None:
        """Split what is added to rows into an expert's result and the weights of its rows."""
        node = self.plain(node, floats=True)
        if not self._of(node, aten.mul.Tensor):
            return node, []
        for value, factor in (node.args, node.args[::-1]):
            weight = self._weight(factor) if isinstance(factor, Node) else None
            if weight is not None:
                inner = self.scaled(value)
                return None if inner is None else (inner[0], [*inner[1], weight])
        return node, []

    def _weight(self, node: Node) -> Gathered | None:
        """Return the number of each row that a value is."""
        if any(size != 1 for size in shape(node)[1:]):
            return None
        while self._of(node, *SHAPED) or (self._of(node, *SAME) and _is_cast(node, floats=True)):
            node = node.args[0]  # type: ignore[assignment]  # they take one tensor
        rows = self.gathered(node)
        if rows is None or any(
            size != 1 for size in shape(rows.base)[rows.lead + len(rows.dims) :]
        ):
            return None
        return rows

    def choice(self, mask: Any) -> Choice | None:
        """Return which number of which index a mask is true for."""
        mask = self.plain(mask, casts=True)
        if (
            self._of(mask, aten.eq.Scalar)
            and type(mask.args[1]) is int
            and _dtype(mask.args[0]) in (torch.int64, torch.int32)
        ):
            return Choice(mask.args[0], tuple(range(len(shape(mask)))), mask.args[1])
        if self._of(mask, aten.any.dim) and len(mask.args) == 2:
            inner = self.choice(mask.args[0])
            if inner is None or inner.reduced:
                return None
            dim = mask.args[1] % len(inner.dims)
            return Choice(inner.index, inner.dims[:dim] + inner.dims[dim + 1 :], inner.expert, True)
        if self._of(mask, aten.select.int):
            classes = self._classes(mask.args[0])
            dim = mask.args[1] % len(shape(mask.args[0]))
            if classes is not None and classes[1][dim] is None and mask.args[2] >= 0:
                dims = [d for d in classes[1] if d is not None]
                return Choice(classes[0], tuple(dims), mask.args[2])
        return None

    def _classes(self, node: Any) -> tuple[Node, tuple[int | None, ...]] | None:
        """Return the index of a one-hot tensor, and the index's dims; None: of classes."""
        node = self.plain(node, casts=True)
        if self._of(node, aten.one_hot.default):
            return node.args[0], (*range(len(shape(node)) - 1), None)
        if self._of(node, aten.permute.default, aten.transpose.int):
            inner = self._classes(node.args[0])
            if inner is None:
                return None
            order = list(range(len(inner[1])))
            if node.target is aten.permute.default:
                order = [dim % len(order) for dim in node.args[1]]
            else:
                a, b = (dim % len(order) for dim in node.args[1:])
                order[a], order[b] = order[b], order[a]
            return inner[0], tuple(inner[1][dim] for dim in order)
        return None


def differs(index: Any) -> bool:
    """Return whether a token's choices are known to differ: they are those of ``topk``."""
    while isinstance(index, Node) and index.target in (*SAME, aten.view.default):
        if is_written(index):
            return False
        if index.target is aten.view.default and shape(index)[-1] != shape(index.args[0])[-1]:
            return False
        index = index.args[0]  # they take one tensor
    return bool(
        isinstance(index, Node)
        and index.target is getitem
        and not is_written(index)
        and index.args[1] == 1
        and getattr(index.args[0], "target", None) is aten.topk.default
    )


def _is_cast(node: Node, floats: bool) -> bool:
    """Return whether a copy keeps the dtype, or goes ``floats`` from one real dtype to another."""
    after, before = (_dtype(each) for each in (node, node.args[0]))
    return after == before or (
        floats and all(getattr(each, "is_floating_point", False) for each in (after, before))
    )


def _equal_rows(node: Node) -> bool:
    """Return whether a reshape drops dims of size 1 alone from rows [n, width]."""
    before, after = shape(node.args[0]), shape(node)
    kept = [size for size in before if not (isinstance(size, int) and size == 1)]
    return len(after) == 2 and (
        list(map(str, kept)) == list(map(str, after))
        or list(map(str, before)) == list(map(str, after))
    )

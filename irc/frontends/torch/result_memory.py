"""Where the results of a graph lie in memory: as eager's do.

A program gives tensors of its own, row by row. Callers see more than numbers: the order of dims in
memory (channels last), dims without memory of their own (expand), and whose memory it is: a view of
an argument, or of another result, changes with it. A graph's fake values say all of that.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import Graph, Node
from torch.utils._pytree import tree_map

from irc.frontends.torch.tensor_memory import memory_of_node
from irc.plan.schema import row_major

RENEWED = "irc_renewed"
"""Marks nodes whose fake value lies in memory that they do not write to (in-place ops renewed)."""

LOOSE = "irc_loose"
"""Marks placeholders whose values may lie otherwise than their fake ones: a result that is a view
of one in the trace gets memory of its own, with the strides of the trace. So does a result that has
the mark itself."""


ITSELF = frozenset(
    f"aten::{name}"
    for name in ("to", "type_as", "contiguous", "positive", "resolve_conj", "resolve_neg")
)
"""Ops that give their operand itself where it is already as they are to make it."""


PERHAPS = ITSELF | {f"aten::{name}" for name in ("reshape", "flatten", "ravel", "reshape_as")}
"""Ops that may copy, though their schema says that they give a view."""


SILENT = frozenset({"aten::_unsafe_view"})
"""Ops that give a view, though their schema does not say so: reshape makes them behind copies."""


@dataclass(frozen=True)
class View:
    """A tensor in the memory of another one, which is given row by row or as it was traced.

    Attributes:
        shape: its sizes, as symbols where a graph leaves them open; so the other numbers.
        strides: in elements.
        offset: of its first element from the first of the other tensor, in its own elements.
        dtype: its own.
        conjugates: the other tensor's numbers are read as their conjugates, which torch does when
            somebody reads them.
        negates: likewise as their negatives, the imaginary part of such a tensor for one.
    """

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    conjugates: bool = False
    negates: bool = False

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the view of a tensor."""
        view = self._plain(memory)
        view = view.conj() if self.conjugates else view
        return (
            torch._neg_view(view)  # pyright: ignore[reportPrivateImportUsage]
            if self.negates
            else view
        )

    def _plain(self, memory: torch.Tensor) -> torch.Tensor:
        start: Any = memory.storage_offset()
        if memory.dtype is self.dtype:
            return memory.as_strided(self.shape, self.strides, start + self.offset)
        offset = start * memory.itemsize // self.dtype.itemsize + self.offset
        view = torch.empty(0, dtype=self.dtype, device=memory.device)
        return view.set_(memory.untyped_storage(), offset, self.shape, self.strides)

    def numbered(self, number: Callable[[Any], Any]) -> View:
        """Return the same view with numbers for symbols."""
        shape, strides = (tuple(map(number, each)) for each in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides, offset=number(self.offset))


@dataclass(frozen=True)
class Lies:
    """Where a node's tensor lies.

    Attributes:
        source: a placeholder, or the node that the program is to compute row by row.
        view: of the source's tensor; None where it is that itself.
    """

    source: Node
    view: View | None = None


def placed(nodes: Sequence[Node]) -> list[Lies]:
    """Say where the tensors of a graph's results lie; the graph gets nodes for sources it lacks."""
    sources: dict[Node, Node] = {}
    bases = {node: owner(node) for node in nodes}
    bases = {n: n if LOOSE in n.meta or LOOSE in base.meta else base for n, base in bases.items()}
    times = Counter(bases.values())
    return [_place(node, bases[node], times[bases[node]] > 1, sources) for node in nodes]


def _place(node: Node, base: Node, is_shared: bool, sources: dict[Node, Node]) -> Lies:
    if base is node and node.op == "placeholder":
        return Lies(node)
    if base.op == "placeholder":
        return Lies(base, view_of(node, base))
    if base is not node and not is_shared and _order(node) is not None:
        base = node
    if base is not node and base.op != "call_function":
        return Lies(node)
    if base not in sources:
        if (source := _laid_out(base)) is None:
            return Lies(node)
        sources[base] = source
    source = sources[base]
    if source is node and is_row_major(node):
        return Lies(node)
    return Lies(source, view_of(node, base))


def origin(node: Node) -> Node:
    """Return the node whose very tensor a node's is, not another view of its memory."""
    while isinstance(op := node.target, torch._ops.OpOverload) and op._schema.name in ITSELF:
        if (base := _viewed(node)) is None:
            break
        node = base
    return node


def owner(node: Node) -> Node:
    """Return the node in whose tensor's memory a node's lies: itself where it made that."""
    while (base := _viewed(node)) is not None:
        node = base
    return node


def may_own(node: Node) -> Node | None:
    """Return the argument in whose memory a node's tensor lies or not, as its strides decide."""
    is_open = False
    while True:
        op = node.target
        if isinstance(op, torch._ops.OpOverload) and op._schema.name in PERHAPS:
            base = node.args[0]
            # A tensor of another dtype is a copy, however its operand lies.
            if not isinstance(base, Node) or base.meta["val"].dtype is not node.meta["val"].dtype:
                return None
            is_open = True
        else:
            base = _viewed(node)
        if base is None:
            return node if is_open and node.op == "placeholder" else None
        node = base


def _viewed(node: Node) -> Node | None:
    """Return the operand that a node's tensor is a view of."""
    call = node.args[0] if node.target is getitem else node
    if not isinstance(call, Node) or not isinstance(op := call.target, torch._ops.OpOverload):
        return None
    schema = op._schema
    if RENEWED in node.meta or (here := memory_of_node(node)) is None or schema.is_mutable:
        return None
    told = [each.alias_info is not None for each in schema.arguments]
    operands = [x for x, is_told in zip(call.args, told, strict=False) if is_told]
    if any(told) and schema.name not in PERHAPS:
        return next((x for x in operands if isinstance(x, Node)), None)
    if schema.name in SILENT or (
        not any(told)
        and torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    ):
        operands = call.all_input_nodes  # dropout that is off gives its operand, and says nothing
    return next((x for x in operands if isinstance(x, Node) and memory_of_node(x) == here), None)


def view_of(node: Node, source: Node) -> View:
    """Return what part of a node's memory another node's tensor is."""
    value, whole = node.meta["val"], source.meta["val"]
    start = whole.storage_offset()
    if whole.dtype is not value.dtype:
        start = start * whole.dtype.itemsize // value.dtype.itemsize
    offset = value.storage_offset() - start
    is_same = whole.dtype is value.dtype  # a view of other numbers loses what torch does lazily
    return View(
        tuple(value.shape), tuple(value.stride()), offset, value.dtype,
        value.is_conj() != (is_same and whole.is_conj()),
        value.is_neg() != (is_same and whole.is_neg()),
    )  # fmt: skip


def _laid_out(node: Node) -> Node | None:
    """Return a node that, row by row, is a node's memory; None where torch's cannot be copied."""
    if (order := _order(node)) is not None:
        return _turned(node, order)
    return _spread(node)


def _order(node: Node) -> tuple[int, ...] | None:
    """Return a tensor's dims in the order in which they lie in memory; None if it has gaps.

    Of sizes that are open, the numbers decide with which the graph was traced.
    """
    value = node.meta["val"]
    hints: Iterator[tuple[Any, ...]] = (
        tuple(map(hint_of, each)) for each in (value.shape, value.stride())
    )
    shape, strides = hints
    if None in shape or None in strides or value.is_conj() or value.is_neg():
        return None
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
    step = 1
    for dim in reversed(order):
        if shape[dim] != 1 and strides[dim] != step:
            return None
        step *= shape[dim]
    return tuple(dim for dim in order)


def hint_of(size: Any) -> int | None:
    """Return the number that a size has or, where it is open, had in the trace; None for others."""
    return size if isinstance(size, int) else size.node.hint


def is_row_major(node: Node) -> bool:
    """True where a tensor lies as a program's result does.

    Dims of one element say nothing: what torch traces for them differs from what its kernels give.
    """
    value = node.meta["val"]
    shape, strides = (tuple(map(hint_of, each)) for each in (value.shape, value.stride()))
    pairs = zip(shape, strides, row_major([size or 0 for size in shape]), strict=True)
    return all(size == 1 or one == other for size, one, other in pairs)


def _turned(node: Node, order: tuple[int, ...]) -> Node:
    """Return a node with the dims in the order in which a node's lie in memory; itself if so."""
    kept = [dim for dim in order if hint_of(node.meta["val"].shape[dim]) != 1]
    if kept == sorted(kept):
        return node
    return _appended(node, torch.ops.aten.permute.default, list(order))


def _spread(node: Node) -> Node | None:
    """Return a node's numbers as a vector with zeros in the gaps that are between them in memory.

    None where elements share places. Of sizes that are open, torch notes what is asked here.
    """
    value = node.meta["val"]
    shape, strides = (tuple(map(hint_of, each)) for each in (value.shape, value.stride()))
    if None in shape or None in strides or value.is_conj() or value.is_neg():
        return None
    if 0 in shape:
        return node
    order = sorted(range(len(shape)), key=lambda dim: (shape[dim] != 1, -(strides[dim] or 0)))
    kept = [dim for dim in order if shape[dim] != 1]
    sizes = [_computed(node.graph, torch.ops.aten.sym_size.int, node, dim) for dim in kept]
    steps = [_computed(node.graph, torch.ops.aten.sym_stride.int, node, dim) for dim in kept]
    span: Any = 1
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if _value(step) < _value(span):
            return None
        span = (_value(size) - 1) * _value(step) + _value(span)
    node = _appended(node, torch.ops.aten.permute.default, order)
    node = _appended(node, torch.ops.aten.reshape.default, [*sizes, 1])
    span = 1
    while sizes:
        size, step = sizes.pop(), steps.pop()
        gap = _computed(node.graph, operator.sub, step, span)
        if _value(gap) > 0:
            node = _appended(node, torch.ops.aten.constant_pad_nd.default, [0, gap])
        last = _computed(node.graph, operator.mul, size, step)
        node = _appended(node, torch.ops.aten.reshape.default, [*sizes, last])
        span = _computed(node.graph, operator.sub, last, gap)
        if _value(gap) > 0:
            node = _appended(node, torch.ops.aten.slice.Tensor, len(sizes), 0, span)
    return node


def _appended(node: Node, op: torch._ops.OpOverload, *args: Any) -> Node:
    """Return a node that is made of another one behind all that a graph computes."""
    with node.graph.inserting_before(_output(node.graph)):
        added = node.graph.call_function(op, (node, *args))
    with enable_python_dispatcher():
        added.meta.update(node.meta, val=op(node.meta["val"], *tree_map(_value, args)))
    return added


def _computed(graph: Graph, op: Callable[..., Any], *args: Any) -> Any:
    """Return a number, or a node for it where sizes of a graph are open."""
    number = op(*map(_value, args))
    if isinstance(number, int):
        return number
    with graph.inserting_before(_output(graph)):
        node = graph.call_function(op, args)
    node.meta["val"] = number
    return node


def _value(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, Node) else arg


def return_too(nodes: Sequence[Node], known: Sequence[Any]) -> None:
    """Let a graph return nodes that it does not return yet.

    What nobody reads is not translated, nor given back by the block that it is in.
    """
    if more := [node for node in nodes if node not in known]:
        output = _output(more[0].graph)
        output.args = ((output.args[0], *more),)


def _output(graph: Graph) -> Node:
    (output,) = (node for node in graph.nodes if node.op == "output")
    return output


def sharing(nodes: Sequence[Any], written: Mapping[Node, Node]) -> list[Any]:
    """Say of each result whose memory it lies in, alike for a graph before and after changes.

    Args:
        nodes: the results; those that are no tensors say nothing.
        written: by the node of a value, the placeholder in whose memory that will have
            been written.

    Returns:
        for each its argument's name, or the position of the first result in the same memory.
    """
    owners: list[Any] = []
    first: dict[Any, int] = {}
    for i, node in enumerate(nodes):
        if not isinstance(node, Node) or memory_of_node(node) is None:
            owners.append(None)
            continue
        base = owner(node)
        base = written.get(node, written.get(base, base))
        if base.op == "placeholder":
            owners.append(base.name)
        else:
            owners.append(first.setdefault(base, i))
    return owners


def traced_sharing(nodes: Sequence[Any], graph: Graph) -> list[Any]:
    """Return what :func:`sharing` does, for a graph as it was traced: nothing has been renewed."""
    held = {memory_of_node(node): node.name for node in graph.nodes if node.op == "placeholder"}
    owners: list[Any] = []
    first: dict[Any, int] = {}
    for i, node in enumerate(nodes):
        here = memory_of_node(node) if isinstance(node, Node) else None
        if here is None:
            owners.append(None)
        else:
            owners.append(held[here] if here in held else first.setdefault(here, i))
    return owners

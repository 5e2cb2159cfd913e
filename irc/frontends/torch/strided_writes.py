"""In-place ops on transposed memory become copies into it, which keep how it lies.

What an in-place op writes to stays as it lies. The op that returns a new value in its place may
give one that lies in another way (``masked_fill`` of a transposed tensor gives rows), and what is
a view of it, or returned, would have other strides than in eager mode. A copy keeps its target's.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import Argument

from irc.frontends.torch.overlapping_writes import name_of
from irc.frontends.torch.result_memory import hint_of


def copy_into_strided(graph: Graph) -> None:
    """Write ``op_(x, y)`` as ``copy_(x, op(x, y))`` where ``x`` does not lie row by row.

    ``op(x, y, out=z)`` becomes ``copy_(z, op(x, y, out=e))`` with rows ``e`` of the dtype of ``z``.

    Args:
        graph: of torch.export, with its writes; it is changed.
    """
    for node in list(graph.nodes):
        op = _out_of_place(node)
        if op is not None:
            target = node.args[0]
            with graph.inserting_before(node):
                value = graph.call_function(op, node.args, node.kwargs)
        elif _is_out_strided(node):
            target = node.kwargs["out"]
            assert isinstance(target, Node) and callable(node.target)
            rows: dict[str, Argument] = {"memory_format": torch.contiguous_format}
            with graph.inserting_before(node):
                empty = graph.call_function(torch.ops.aten.empty_like.default, (target,), rows)
                value = graph.call_function(node.target, node.args, {**node.kwargs, "out": empty})
            empty.meta = dict(target.meta)
        else:
            continue
        with graph.inserting_before(node):
            written = graph.call_function(torch.ops.aten.copy_.default, (target, value))
        value.meta, written.meta = dict(node.meta), dict(node.meta)
        node.replace_all_uses_with(written)
        graph.erase_node(node)


def copy_into_strided_calls(graph: Graph) -> None:
    """Do as :func:`copy_into_strided` where torch's own way to make a graph functional loses them.

    Args:
        graph: of Dynamo, with its writes; it is changed. Of its methods only those of
            :data:`TURNING` become copies whose new value lies otherwise than what they write to.
    """
    moved = _moved(graph)
    for place, node in enumerate(list(graph.nodes)):
        target = node.args[0] if node.op == "call_method" and node.args else None
        later = frozenset(value for value, last in moved.items() if place < last)
        if isinstance(target, Node) and _is_turned_by(node, target, later):
            with graph.inserting_before(node):
                # Backward may read what the operand was, which is written over here.
                before = graph.call_method("clone", (target,))
                value = graph.call_method(name_of(node)[:-1], (before, *node.args[1:]), node.kwargs)
                written = graph.call_method("copy_", (target, value))
            before.meta = dict(target.meta)
            value.meta, written.meta = dict(node.meta), dict(node.meta)
            node.replace_all_uses_with(written)
            graph.erase_node(node)


def _is_turned_by(node: Node, target: Node, moved: frozenset[int]) -> bool:
    """True where the value that a method returns lies otherwise than what its twin writes to."""
    name, known = name_of(node), target.meta.get("example_value")
    if name not in TURNING or not isinstance(known, FakeTensor):
        return False
    if known.layout is not torch.strided or _is_row_major(known):
        return False
    values = [each.meta.get("example_value") for each in (target, *node.all_input_nodes)]
    if not moved.isdisjoint(map(id, values)):
        return False
    args, kwargs = torch.fx.map_arg(
        (node.args, node.kwargs), lambda operand: operand.meta.get("example_value")
    )
    with known.fake_mode, torch.no_grad():
        return _hints(getattr(torch.Tensor, name[:-1])(*args, **kwargs)) != _hints(known)


def _moved(graph: Graph) -> dict[int, int]:
    """Return the identities of traced values that are given another form (``t_``), and where last.

    A trace knows how they lie after all of it: at nodes before that it may have been otherwise.
    """
    moved: dict[int, int] = {}
    for place, node in enumerate(graph.nodes):
        target = node.args[0] if node.op == "call_method" and node.args else None
        if isinstance(target, Node) and _moves(name_of(node)):
            moved[id(target.meta.get("example_value"))] = place
    return moved


def _moves(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") else None
    if packet is None or name.endswith("__"):
        return False
    ops = [getattr(packet, overload) for overload in packet.overloads()]
    return name in RESIZING or any(torch.Tag.inplace_view in op.tags for op in ops)


def _hints(value: torch.Tensor) -> list[tuple[int | None, int | None]]:
    """Return sizes and strides of dims with more than one element, as they were in the trace."""
    pairs = [(hint_of(n), hint_of(k)) for n, k in zip(value.shape, value.stride(), strict=True)]
    return [pair for pair in pairs if pair[0] != 1]


def _out_of_place(node: Node) -> OpOverload | None:
    """Return the op that gives a new value; None for what is no such write."""
    op = node.target
    if not isinstance(op, OpOverload) or not op._schema.is_mutable or op in KEEP:
        return None
    if torch.Tag.inplace_view in op.tags:  # the tensor lies otherwise from there on
        return None
    space, _, name = op._schema.name.partition("::")
    first = node.args[0] if node.args else None
    known = first.meta.get("val") if isinstance(first, Node) else None
    if space != "aten" or not name.endswith("_") or not _is_strided(known):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    # `floor_divide_.Tensor` has a twin without a name of its own.
    return getattr(packet, op._overloadname, None) or getattr(packet, "default", None)


def _is_strided(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not _is_row_major(value)


def _is_out_strided(node: Node) -> bool:
    """True for a write to an ``out`` that does not lie row by row and keeps its shape."""
    op, out = node.target, node.kwargs.get("out")
    if not isinstance(op, OpOverload) or op.namespace != "aten" or not isinstance(out, Node):
        return False
    known = out.meta.get("val")
    if not isinstance(known, FakeTensor) or not _is_strided(known):
        return False
    args, kwargs = torch.fx.map_arg(
        (node.args, dict(node.kwargs)), lambda operand: operand.meta.get("val")
    )
    with known.fake_mode, torch.no_grad():
        value = cast(torch.Tensor, cast(Any, op)(*args, **{**kwargs, "out": known.new_empty(0)}))
    return value.shape == known.shape


TURNING = frozenset({
    "addbmm_", "addmm_", "addr_", "baddbmm_", "copysign_", "cumprod_", "cumsum_", "floor_divide_",
    "index_add_", "index_copy_", "index_fill_", "index_put_", "index_reduce_", "masked_fill_",
    "masked_scatter_", "mvlgamma_", "put_", "renorm_", "scatter_", "scatter_add_",
    "scatter_reduce_", "tril_", "triu_", "xlogy_",
})  # fmt: skip
"""Methods whose twins give rows, whatever their operand, in eager mode or as irc takes them apart,
and have the same derivative.

Others keep how a dense operand lies; some (``logical_not_``, ``bernoulli_``) have a derivative that
their twin has not."""

RESIZING = ("resize_", "resize_as_")
"""Methods that leave what they write to with another shape."""


KEEP = frozenset({torch.ops.aten.copy_.default, torch.ops.aten.detach_.default})


def _is_row_major(value: torch.Tensor) -> bool:
    """True also where a size has no number: which it is, is not asked, as a guard would fix it."""
    step = 1
    for size, stride in reversed(_hints(value)):
        if size is None or stride is None:
            return True
        if stride != step:
            return False
        step *= size
    return True

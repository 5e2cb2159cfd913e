"""In-place ops on transposed memory become copies into it, which keep how it lies.

What an in-place op writes to stays as it lies. The op that returns a new value in its place may
give one that lies in another way (``masked_fill`` of a transposed tensor gives rows), and what is
a view of it, or returned, would have other strides than in eager mode. A copy keeps its target's.
"""

# pyright: basic
from __future__ import annotations

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node


def copy_into_strided(graph: Graph) -> None:
    """Write ``op_(x, y)`` as ``copy_(x, op(x, y))`` where ``x`` does not lie row by row.

    Args:
        graph: of torch.export, with its writes; it is changed.
    """
    for node in list(graph.nodes):
        op = _out_of_place(node)
        if op is None:
            continue
        target = node.args[0]
        with graph.inserting_before(node):
            value = graph.call_function(op, node.args, node.kwargs)
            written = graph.call_function(torch.ops.aten.copy_.default, (target, value))
        value.meta, written.meta = dict(node.meta), dict(node.meta)
        node.replace_all_uses_with(written)
        graph.erase_node(node)


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
    if space != "aten" or not name.endswith("_") or not isinstance(known, torch.Tensor):
        return None
    if known.layout is not torch.strided or _is_row_major(known):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, op._overloadname, None)


KEEP = frozenset({torch.ops.aten.copy_.default, torch.ops.aten.detach_.default})


def _is_row_major(value: torch.Tensor) -> bool:
    step = 1
    for size, stride in reversed([*zip(value.shape, value.stride(), strict=True)]):
        if not isinstance(size, int) or not isinstance(stride, int):
            return True  # which of them is open is not asked: a guard would fix it
        if size != 1 and stride != step:
            return False
        step *= size
    return True

"""Gradients lie in memory as eager's: of whose memory a backward graph's results may be views.

``torch.autograd.grad`` hands out what the graph gives: the columns of a product, the parts of the
gradient that came in (``hstack``), one number for all elements (``sum``).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch._functorch._aot_autograd.utils import (
    _is_tangent,  # pyright: ignore[reportPrivateUsage] - what a backward graph's arguments are
)
from torch.fx import GraphModule, Node

from irc.frontends.torch.graphs import FlatProgram
from irc.frontends.torch.result_memory import LOOSE, hint_of, is_row_major, owner
from irc.torch_backend.compiled import Flat

WORK = 10_000
"""Steps at most in which it is decided whether two tensors have elements in common."""

ANYWHERE = 1 << 40
"""An address: places are compared, nothing is read there."""


def mark_loose(graph: GraphModule) -> None:
    """Mark arguments of a backward graph that may lie otherwise than its trace says.

    AOTAutograd lays the gradients that come in as those of the trace; what a forward graph saves,
    it gives row by row.
    """
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or _is_tangent(node):
            continue
        if value.layout is not torch.strided or not is_row_major(node):
            node.meta[LOOSE] = True


def mark_overlapping(graph: GraphModule) -> None:
    """Mark gradients with elements of another one, each of which gets memory of its own.

    A gradient of which nobody has the tensor becomes ``.grad`` of a parameter as it is, and is
    added to in place by the next backward pass. Others with its elements would be added to with it;
    torch asks who has the tensor, not who has the memory.
    """
    (output,) = graph.graph.find_nodes(op="output")
    results = [node for node in dict.fromkeys(output.all_input_nodes) if _is_strided(node)]
    taken: list[Node] = []
    for node in sorted(results, key=lambda each: each.op != "placeholder"):
        if any(owner(other) is owner(node) and _overlap(node, other) for other in taken):
            node.meta[LOOSE] = True
        else:
            taken.append(node)


def _is_strided(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _overlap(node: Node, other: Node) -> bool:
    """True where two tensors of one memory have elements in common, or may have."""
    places = _place(node), _place(other)
    if any(place is None for place in places):
        return True
    try:
        return np.shares_memory(*places, max_work=WORK)  # pyright: ignore[reportArgumentType]
    except np.exceptions.TooHardError:
        return True


def _place(node: Node) -> np.ndarray[Any, Any] | None:
    """Return an array that lies as a tensor does, which nobody may read; None for open sizes."""
    value = node.meta["val"]
    numbers = [hint_of(each) for each in (value.storage_offset(), *value.shape, *value.stride())]
    if None in numbers:
        return None
    start, *rest = (int(number) for number in numbers if number is not None)
    shape, strides = rest[: value.ndim], rest[value.ndim :]
    interface = {
        "version": 3,
        "typestr": f"|V{value.itemsize}",
        "data": (ANYWHERE + start * value.itemsize, True),
        "shape": tuple(shape),
        "strides": tuple(stride * value.itemsize for stride in strides),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


def resolving(run: Flat, graph: GraphModule, program: FlatProgram) -> Flat:
    """Return what runs a backward graph, on arguments with the numbers that their memory has.

    The parts of a complex gradient are real views of it, and it may be a conjugate that torch
    computes when somebody reads it.

    Args:
        run: runs the program.
        graph: that the program is of.
        program: says which results are views of arguments.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    views = [value for kind, value in program.results if kind == "argument view"]
    places = {i for i, view in views if view.dtype is not placeholders[i].meta["val"].dtype}
    if not places:
        return run

    def resolved(*args: Any) -> Sequence[Any]:
        arguments = list(args)
        for i in places:
            arguments[i] = arguments[i].resolve_conj().resolve_neg()
        return run(*arguments)

    return resolved

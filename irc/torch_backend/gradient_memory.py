"""Gradients lie in memory as eager's: of whose memory a backward graph's results may be views.

``torch.autograd.grad`` hands out what the graph gives: the columns of a product, the parts of the
gradient that came in (``hstack``), one number for all elements (``sum``).
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import _is_tangent
from torch.fx import GraphModule

from irc.frontends.torch.graphs import FlatProgram
from irc.frontends.torch.result_memory import LOOSE, is_row_major
from irc.torch_backend.compiled import Flat


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
        given = list(args)
        for i in places:
            given[i] = given[i].resolve_conj().resolve_neg()
        return run(*given)

    return resolved

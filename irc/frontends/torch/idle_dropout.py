"""Dropout that is off returns its operand itself; torch's traces take it for a copy.

What writes to one writes to the other, and the strides of both are the same. So it is left out
before there is a trace: its fake values would say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule

DROPOUTS = (F.dropout, torch.dropout, torch.ops.aten.dropout.default)
"""Those of which torch's own decomposition makes a copy; the other kinds return their operand."""


def drop_idle(module: GraphModule) -> None:
    """Take dropout that is off out of a graph, and out of those that it runs."""
    for child in module.modules():
        if isinstance(child, GraphModule) and _without_idle(child.graph):
            child.recompile()


def _without_idle(graph: Graph) -> bool:
    """Take dropout that is off out of one graph; True where there was some."""
    were = len(graph.nodes)
    for node in list(graph.nodes):
        if (operand := idle(node.target, node.args, node.kwargs)) is not None:
            node.replace_all_uses_with(operand)
            graph.erase_node(node)
    return len(graph.nodes) < were


def idle(target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return the operand of dropout that drops nothing, None for all other calls."""
    if target not in DROPOUTS:
        return None
    told = dict(zip(("input", "p", "train"), args, strict=False)) | dict(named)
    chance = told.get("p", 0.5)
    if not isinstance(chance, int | float) or not 0 <= chance <= 1:
        return None  # torch refuses it
    is_on = chance > 0 and told.get("training", told.get("train", True))
    return None if is_on else told["input"]

"""Settings of the process that ops read without being told: the default dtype and device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _device
from torch.utils import _pytree as pytree

from irc.frontends.torch.outside import Question


def default_device() -> torch.device | None:
    """Return where ops make tensors that are told no device; None where nobody has chosen."""
    return _device.CURRENT_DEVICE


def is_elsewhere() -> bool:
    """True where ops that are told no device make tensors that no plan for the CPU reads."""
    device = default_device()
    return device is not None and torch.device(device).type != "cpu"


def settings_of(module: GraphModule, roles: Mapping[Node, str]) -> list[Question]:
    """Return the settings that may have decided something in a graph.

    The default dtype is that of a fractional result whose operands are all whole numbers, or none;
    the default device is that of a result without operands.

    Args:
        module: the graph, with its fake values.
        roles: what placeholders mean; a constant may have been made while the graph was traced.
    """
    asked: dict[Question, None] = {}
    graphs = [child.graph for child in module.modules() if isinstance(child, GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        is_constant = roles.get(node) == "constant"
        if node.op != "call_function" and not is_constant:
            continue
        operands = node.all_input_nodes
        if not operands:
            asked[default_device] = None
        if _is_inexact(node) and not any(map(_is_inexact, operands)):
            asked[torch.get_default_dtype] = None
    return [*asked]


def _is_inexact(node: Node) -> bool:
    leaves: list[Any] = pytree.tree_leaves(node.meta.get("val"))
    return any(
        isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()) for x in leaves
    )

"""Repeated layers in a graph: intervals of nodes that differ only in their operands.

Every node knows the module it was traced in. The children of one container (an ``nn.ModuleList``,
an ``nn.Sequential``) cover intervals; intervals of one canonical form become one function and calls
of it. The comparison is of the traced graph, so it cannot be fooled by equal classes with other
behaviour, and attributes that the graph does not depend on (``layer_idx``) do not matter.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from irc.frontends.torch.locations import location

MIN_OPS = 4
"""Smaller blocks cost more as calls than they save."""

NUMBERED = re.compile(r"(?:^|\.)\d+$")
RANDOM = ("aten.dropout", "aten.native_dropout", "aten.rand", "aten.bernoulli")
"""Ops that draw from the program's seed: their block takes a seed of its own at each call."""


@dataclass(frozen=True)
class Region:
    """Nodes ``start`` to ``stop`` of a graph: a layer that stands elsewhere too.

    Attributes:
        inputs: nodes outside that it reads, in the order of first use.
        outputs: nodes inside that others read, in order.
        key: equal for regions of one canonical form.
        loc: source line of the first node.
        draws: it has random ops.
    """

    start: int
    stop: int
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    key: str
    loc: str
    draws: bool = False


def regions(nodes: Sequence[Node]) -> list[Region]:
    """Return the repeated layers of a graph, in order, not overlapping; O(nodes)."""
    index = {node: i for i, node in enumerate(nodes)}
    candidates: list[Region] = []
    for start, stop in _intervals(nodes):
        region = _region(nodes, index, start, stop)
        if region is not None:
            candidates.append(region)
    times = Counter(region.key for region in candidates)
    return [region for region in candidates if times[region.key] > 1]


def _intervals(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Return maximal runs of nodes in one child of a container."""
    runs: list[tuple[int, int]] = []
    current, start = "", 0
    for i, node in enumerate(nodes):
        path = _child(node)
        if path is None and node.op == "call_function" and not node.users:
            continue
        if (path or "") != current:
            if current:
                runs.append((start, i))
            current, start = path or "", i
    if current:
        runs.append((start, len(nodes)))
    return runs


def _child(node: Node) -> str | None:
    """Return the outermost numbered module that the node was traced in, with its call."""
    if node.op != "call_function":
        return None
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        if NUMBERED.search(path):
            # A module that is called twice has two keys for one path ("layer@1").
            return f"{path}@{key.rpartition('@')[2]}" if "@" in key else path
    return None


def _region(nodes: Sequence[Node], index: dict[Node, int], start: int, stop: int) -> Region | None:
    inputs: dict[Node, int] = {}
    local: dict[Node, int] = {}
    lines: list[Any] = []
    outputs: list[Node] = []
    draws = False
    for node in nodes[start:stop]:
        if node.op != "call_function" or not node.users:
            continue
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            continue
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return None
        draws = draws or _draws(node)
        line = [
            str(node.target),
            _form(node.args, inputs, local),
            _form(node.kwargs, inputs, local),
            _type(value),
        ]
        local[node] = len(local)
        lines.append(line)
        if any(not start <= index[user] < stop for user in node.users):
            if not isinstance(value, torch.Tensor):
                return None
            outputs.append(node)
    if len(lines) < MIN_OPS or not outputs:
        return None
    taken = [_type(node.meta.get("val")) for node in inputs]
    key = json.dumps([lines, taken, [local[node] for node in outputs]])
    first = next(node for node in nodes[start:stop] if node in local)
    return Region(start, stop, tuple(inputs), tuple(outputs), key, location(first), draws)


def _draws(node: Node) -> bool:
    name = str(node.target)
    if "scaled_dot_product" in name:
        place = 4 if name.startswith("aten.scaled_dot_product_attention") else 3
        dropout_p = node.args[place] if len(node.args) > place else node.kwargs.get("dropout_p", 0)
        return bool(dropout_p)
    return name.startswith(RANDOM) and not ("dropout" in name and node.args[2:] == (False,))


def _form(value: Any, inputs: dict[Node, int], local: dict[Node, int]) -> Any:
    """Return an argument with nodes numbered: inside by position, outside by first use."""
    match value:
        case Node():
            number = value.meta.get("val")
            if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
                return f"size {number}"
            if value in local:
                return f"%{local[value]}"
            return f"^{inputs.setdefault(value, len(inputs))}"
        case dict():
            return {key: _form(item, inputs, local) for key, item in value.items()}
        case list() | tuple():
            return [_form(item, inputs, local) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return repr(value)


def _type(value: Any) -> str:
    if isinstance(value, list | tuple):
        return str([_type(item) for item in value])
    return (
        f"{value.dtype}{[str(size) for size in value.shape]}"
        if isinstance(value, torch.Tensor)
        else str(value)
    )

"""Checks of tensors, such as ``assert (x > 0).all()``: computed in the graph, raised behind it.

Dynamo writes an assertion about a tensor as ``torch._assert_async``, which has no result. What it
looks at becomes a result of the graph, and each call asks torch whether it holds.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from irc.frontends.torch.tensor_checks import CHECKS
from irc.torch_backend.compiled import Flat

ONCE = frozenset(
    {"tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint", "wrap_with_autocast",
     "wrap_with_set_grad_enabled", "invoke_subgraph"}
)  # fmt: skip
"""Ops that run a graph as a part of the one they are in."""


def take_checks(gm: GraphModule) -> list[str]:
    """Take the checks out of a graph; what they look at are its last results from then on.

    Args:
        gm: a graph of Dynamo; it is changed, and so are the graphs that it runs as a part of it
            (of ``torch.utils.checkpoint``, of autocast), whose checks are results of theirs.

    Returns:
        what each of them says where it does not hold.
    """
    (output,) = gm.graph.find_nodes(op="output")
    said: list[str] = []
    results = [*output.args[0]]
    parts: dict[str, tuple[int, list[str]]] = {}
    for node in list(gm.graph.nodes):
        if node.op != "output" and node.target in CHECKS:
            value = node.args[0] if node.args else node.kwargs["input"]
            with gm.graph.inserting_before(node):  # what is written to it later is not looked at
                results.append(gm.graph.call_method("clone", (value,)))
            said.append(node.args[1] if len(node.args) > 1 else node.kwargs.get("assert_msg", ""))
            gm.graph.erase_node(node)
        elif (name := _run_as_part(node, gm)) is not None:
            part = getattr(gm, name)
            if name not in parts:
                (own,) = part.graph.find_nodes(op="output")
                parts[name] = len(own.args[0]), take_checks(part)
            count, inner = parts[name]
            with gm.graph.inserting_after(node):
                results += [
                    gm.graph.call_function(getitem, (node, count + i)) for i in range(len(inner))
                ]
            said += inner
    if said:
        output.args = (tuple(results), *output.args[1:])
        gm.recompile()
    return said


def _run_as_part(node: Node, gm: GraphModule) -> str | None:
    """Return which graph a node runs, once, whatever the values are; None where it runs none."""
    if node.op != "call_function" or str(node.target) not in ONCE:
        return None
    names = [
        str(given.target)
        for given in node.args
        if isinstance(given, Node) and given.op == "get_attr"
        and isinstance(getattr(gm, str(given.target), None), GraphModule)
    ]  # fmt: skip
    if len(names) != 1:
        return None
    (output,) = getattr(gm, names[0]).graph.find_nodes(op="output")
    return names[0] if isinstance(output.args[0], tuple | list) else None


def checking(run: Flat, said: Sequence[str]) -> Flat:
    """Return what runs a graph without its checks, and then looks whether they hold.

    Raises:
        RuntimeError: by a call, where one does not; on a GPU when it gets there.
    """

    def checked(*args: Any) -> Any:
        results = run(*args)
        kept = len(results) - len(said)
        for value, text in zip(results[kept:], said, strict=True):
            torch.ops.aten._assert_async(value, *([text] if text else []))
        return results[:kept]

    return checked

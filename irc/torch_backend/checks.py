"""Checks of tensors, such as ``assert (x > 0).all()``: computed in the graph, raised behind it.

Dynamo writes an assertion about a tensor as ``torch._assert_async``, which has no result. What it
looks at becomes a result of the graph, and each call asks torch whether it holds.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from irc.frontends.torch.tensor_checks import CHECKS
from irc.torch_backend.compiled import Flat


def take_checks(gm: GraphModule) -> list[str]:
    """Take the checks out of a graph; what they look at are its last results from then on.

    Args:
        gm: a graph of Dynamo; it is changed.

    Returns:
        what each of them says where it does not hold.
    """
    checks = [node for node in gm.graph.nodes if node.op != "output" and node.target in CHECKS]
    (output,) = gm.graph.find_nodes(op="output")
    said: list[str] = []
    results = [*output.args[0]]
    for node in checks:
        value = node.args[0] if node.args else node.kwargs["input"]
        with gm.graph.inserting_before(node):  # what is written to it later is not looked at
            results.append(gm.graph.call_method("clone", (value,)))
        said.append(node.args[1] if len(node.args) > 1 else node.kwargs.get("assert_msg", ""))
        gm.graph.erase_node(node)
    if checks:
        output.args = (tuple(results), *output.args[1:])
        gm.recompile()
    return said


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

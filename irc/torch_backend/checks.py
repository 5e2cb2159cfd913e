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

BRANCHES, LOOP = "cond", "while_loop"
"""Ops that run one of two graphs, or one for as long as another says."""


def take_checks(gm: GraphModule) -> list[str]:
    """Take the checks out of a graph; what they look at are its last results from then on.

    Args:
        gm: a graph of Dynamo; it is changed, and so are the graphs that it runs as a part of it
            (of ``torch.utils.checkpoint``, of autocast), whose checks are results of theirs. Of
            the branches of ``torch.cond`` the one that does not run has none that fails; a
            ``while_loop`` carries whether they have held so far, and ends where one does not.

    Returns:
        what each of them says where it does not hold.
    """
    output = _output_of(gm)
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
        elif (graphs := _graphs_of(node, gm, BRANCHES, 1)) is not None:
            inner = _take_from_branches(*graphs, _differentiated(node))
            results += _last_results(node, graphs[0], len(inner))
            said += inner
        elif (graphs := _graphs_of(node, gm, LOOP, 0)) is not None:
            inner = _take_from_loop(node, *graphs)
            results += _last_results(node, graphs[1], len(inner))
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


def _graphs_of(
    node: Any, gm: GraphModule, op: str, first: int
) -> tuple[GraphModule, GraphModule] | None:
    """Return both graphs that an op runs, which it has from argument ``first`` on."""
    if node.op != "call_function" or str(node.target) != op:
        return None
    a, b = (getattr(gm, str(given.target), None) for given in node.args[first : first + 2])
    if not (isinstance(a, GraphModule) and isinstance(b, GraphModule)):
        return None
    in_tuples = [isinstance(_output_of(part).args[0], tuple | list) for part in (a, b)]
    return (a, b) if in_tuples[1] and (in_tuples[0] or op == LOOP) else None


def _last_results(node: Node, part: GraphModule, count: int) -> list[Node]:
    """Return the last results of an op that runs a graph, which are what it looks at."""
    output = _output_of(part)
    total = len(output.args[0]) if count else 0
    with node.graph.inserting_after(node):
        return [node.graph.call_function(getitem, (node, total - count + i)) for i in range(count)]


def _differentiated(node: Any) -> int | None:
    """Return which operand of ``torch.cond`` has a gradient; None where none has."""
    for i, operand in enumerate(node.args[3]):
        value = operand.meta.get("example_value") if isinstance(operand, Node) else None
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point():
            return i
    return None


def _take_from_branches(a: GraphModule, b: GraphModule, traced: int | None) -> list[str]:
    """Take the checks of each branch; the other gives true in their places.

    Args:
        a: runs where the condition holds.
        b: runs where it does not.
        traced: an operand with a gradient. torch differentiates branches all of whose results
            depend on one.
    """
    said = [take_checks(branch) for branch in (a, b)]
    counts = [len(texts) for texts in said]
    if not any(counts):
        return []
    for branch, own, before, after in ((a, counts[0], 0, counts[1]), (b, counts[1], counts[0], 0)):
        output = _output_of(branch)
        given = branch.graph.find_nodes(op="placeholder")
        kept = len(output.args[0]) - own
        with branch.graph.inserting_before(output):
            held = [
                *[_true(branch.graph) for _ in range(before)],
                *[_holds(branch, value) for value in output.args[0][kept:]],
                *[_true(branch.graph) for _ in range(after)],
            ]
            if traced is not None:
                nothing = _nothing_of(branch, given[traced])
                held = [branch.graph.call_function(torch.add, (h, nothing)) for h in held]
        output.args = ((*output.args[0][:kept], *held), *output.args[1:])
        branch.recompile()
    return [text for texts in said for text in texts]


def _nothing_of(gm: GraphModule, operand: Node) -> Node:
    """Return 0, which has a gradient by an operand: the sum of none of its elements."""
    flat = gm.graph.call_method("reshape", (operand, (-1,)))
    none = gm.graph.call_function(getitem, (flat, slice(0, 0)))
    return gm.graph.call_method("sum", (none,))


def _take_from_loop(node: Any, goes_on: GraphModule, body: GraphModule) -> list[str]:
    """Take the checks of a loop's body; whether each has held so far is carried."""
    said = take_checks(body)
    if not said:
        return said
    _, _, carried, others = node.args
    so_far = _carried(body, len(carried), len(said))
    output = _output_of(body)
    kept = len(output.args[0]) - len(said)
    with body.graph.inserting_before(output):
        held = [
            body.graph.call_function(torch.logical_and, (before, _holds(body, value)))
            for before, value in zip(so_far, output.args[0][kept:], strict=True)
        ]
    output.args = ((*output.args[0][:kept], *held), *output.args[1:])
    body.recompile()
    so_far = _carried(goes_on, len(carried), len(said))
    output = _output_of(goes_on)
    in_tuple = isinstance(output.args[0], tuple | list)
    (condition,) = output.args[0] if in_tuple else output.args
    with goes_on.graph.inserting_before(output):
        for before in so_far:
            condition = goes_on.graph.call_function(torch.logical_and, (condition, before))
    output.args = ((condition,) if in_tuple else condition, *output.args[1:])
    goes_on.recompile()
    with node.graph.inserting_before(node):
        first = [_true(node.graph) for _ in said]
    node.args = (*node.args[:2], (*carried, *first), others)
    return said


def _true(graph: Any) -> Node:
    """Return a truth value that holds."""
    return graph.call_function(torch.ones, ((),), {"dtype": torch.bool})


def _output_of(gm: GraphModule) -> Any:
    """Return the node of a graph's results, which are in its first argument."""
    (output,) = gm.graph.find_nodes(op="output")
    return output


def _holds(gm: GraphModule, value: Any) -> Node:
    """Return whether what a check looks at holds, as a truth value of its own memory."""
    told = gm.graph.call_function(torch.ne, (value, 0))
    return gm.graph.call_method("reshape", (told, ()))


def _carried(gm: GraphModule, position: int, count: int) -> list[Node]:
    """Give a graph more arguments, in front of argument ``position``."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    place = placeholders[position] if position < len(placeholders) else None
    behind = placeholders[-1].next if placeholders else next(iter(gm.graph.nodes))
    with gm.graph.inserting_before(place or behind):
        return [gm.graph.placeholder(f"held_{i}") for i in range(count)]


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

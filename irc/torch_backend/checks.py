"""Checks of tensors, such as ``assert (x > 0).all()``: computed in the graph, raised behind it.

Dynamo writes an assertion about a tensor as ``torch._assert_async``, which has no result. What it
looks at becomes a result of the graph, and each call asks torch whether it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from irc.frontends.torch.drawn_checks import REFUSED, probabilities_of
from irc.frontends.torch.tensor_checks import CHECKS
from irc.torch_backend.check_nodes import (
    are_probabilities,
    called,
    differentiated,
    holds,
    nothing_of,
    output_of,
    true,
)
from irc.torch_backend.compiled import Flat
from irc.torch_backend.loop_checks import take_from_loop, take_from_steps
from irc.torch_backend.transformed_checks import Transforms

ONCE = frozenset(
    {"tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint", "wrap_with_autocast",
     "wrap_with_set_grad_enabled", "invoke_subgraph"}
)  # fmt: skip
"""Ops that run a graph as a part of the one they are in."""

BRANCHES, LOOP, STEPS = "cond", "while_loop", ("scan", "map_impl")
"""Ops that run one of two graphs, one for as long as another says, or one for each row."""


def take_checks(gm: GraphModule) -> list[str]:
    """Take the checks out of a graph; what they look at are its last results from then on.

    Args:
        gm: a graph of Dynamo; it is changed, and so are the graphs that it runs as a part of it
            (of ``torch.utils.checkpoint``, of autocast), whose checks are results of theirs. Of
            the branches of ``torch.cond`` the one that does not run has none that fails; a
            ``while_loop`` carries whether they have held so far, and ends where one does not;
            ``scan`` and ``map`` give it for each row, as ``vmap`` does.

    Returns:
        what each of them says where it does not hold.
    """
    output = output_of(gm)
    said: list[str] = []
    results = [*output.args[0]]
    parts: dict[str, tuple[int, list[str]]] = {}
    transforms = Transforms(gm.graph, results)
    for node in list(gm.graph.nodes):
        transforms.pass_by(node)
        before = len(results)
        if node.op != "output" and node.target in CHECKS:
            value = node.args[0] if node.args else node.kwargs["input"]
            with gm.graph.inserting_before(node):  # what is written to it later is not looked at
                results.append(_copied(gm.graph, value, transforms.are_open))
            said.append(node.args[1] if len(node.args) > 1 else node.kwargs.get("assert_msg", ""))
            gm.graph.erase_node(node)
        elif (probabilities := probabilities_of(node.target, node.args, node.kwargs)) is not None:
            with gm.graph.inserting_before(node):
                results.append(are_probabilities(gm.graph, probabilities))
            said.append(REFUSED)
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
            inner = _take_from_branches(*graphs, differentiated(node.args[3]))
            results += _last_results(node, graphs[0], len(inner))
            said += inner
        elif (graphs := _graphs_of(node, gm, LOOP, 0)) is not None:
            of_condition, inner = take_from_loop(node, *graphs, take_checks)
            held = _last_results(node, graphs[1], len(of_condition) + len(inner))
            first = len(of_condition)
            results += held[first:] + held[:first]  # in a trip the body comes first
            said += inner + of_condition
        elif (body := _body_of(node, gm)) is not None:
            inner = take_from_steps(node, body, take_checks)
            for held in _last_results(node, body, len(inner)):
                with gm.graph.inserting_after(held):
                    results.append(gm.graph.call_function(torch.all, (held,)))
            said += inner
        transforms.keep(range(before, len(results)))
    if said:
        output.args = (tuple(results), *output.args[1:])
        gm.recompile()
    return said


def _copied(graph: Graph, value: Any, is_transformed: bool) -> Node:
    """Return what a check looks at as it is now; fake values are not known inside transforms."""
    if is_transformed:
        return graph.call_function(torch.clone, (value,))
    return called(graph, torch.clone, value)


def _run_as_part(node: Node, gm: GraphModule) -> str | None:
    """Return which graph a node runs, once, whatever the values are; None where it runs none."""
    if node.op != "call_function" or str(node.target) not in ONCE:
        return None
    names = [
        str(argument.target)
        for argument in node.args
        if isinstance(argument, Node) and argument.op == "get_attr"
        and isinstance(getattr(gm, str(argument.target), None), GraphModule)
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
    a, b = (getattr(gm, str(argument.target), None) for argument in node.args[first : first + 2])
    if not (isinstance(a, GraphModule) and isinstance(b, GraphModule)):
        return None
    in_tuples = [isinstance(output_of(part).args[0], tuple | list) for part in (a, b)]
    return (a, b) if in_tuples[1] and (in_tuples[0] or op == LOOP) else None


def _body_of(node: Node, gm: GraphModule) -> GraphModule | None:
    """Return the graph that an op runs for each row; None where it is no such op."""
    if node.op != "call_function" or str(node.target) not in STEPS:
        return None
    named: Any = node.args[0]
    body = getattr(gm, str(named.target), None)
    is_known = isinstance(body, GraphModule) and isinstance(output_of(body).args[0], tuple | list)
    return body if is_known else None


def _last_results(node: Node, part: GraphModule, count: int) -> list[Node]:
    """Return the last results of an op that runs a graph, which are what it looks at."""
    output = output_of(part)
    total = len(output.args[0]) if count else 0
    with node.graph.inserting_after(node):
        return [node.graph.call_function(getitem, (node, total - count + i)) for i in range(count)]


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
        output = output_of(branch)
        placeholders = branch.graph.find_nodes(op="placeholder")
        kept = len(output.args[0]) - own
        with branch.graph.inserting_before(output):
            held = [
                *[true(branch.graph) for _ in range(before)],
                *[holds(branch.graph, value) for value in output.args[0][kept:]],
                *[true(branch.graph) for _ in range(after)],
            ]
            if traced is not None:
                nothing = nothing_of(branch.graph, placeholders[traced])
                held = [branch.graph.call_function(torch.add, (h, nothing)) for h in held]
        output.args = ((*output.args[0][:kept], *held), *output.args[1:])
        branch.recompile()
    return [text for texts in said for text in texts]


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

"""Checks of tensors inside loops: a loop carries whether they have held, or gives it for each step.

``while_loop`` has a graph that says whether it goes on, and a body; ``scan`` and ``map`` have a
body that runs for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, GraphModule, Node

from irc.torch_backend.check_nodes import (
    both,
    differentiated,
    holds,
    more_arguments,
    nothing_of,
    output_of,
    true,
    written_into,
)

Take: TypeAlias = Callable[[GraphModule], list[str]]
"""Takes the checks out of a graph: :func:`irc.torch_backend.checks.take_checks`."""


def take_from_loop(
    node: Any, goes_on: GraphModule, body: GraphModule, take: Take
) -> tuple[list[str], list[str]]:
    """Take the checks of a ``while_loop``; whether each has held so far is carried.

    The loop ends where one has not. What it carries in the end is what the checks look at: its
    last results, in order.

    Args:
        node: the loop.
        goes_on: the graph that says whether it goes on.
        body: its other graph.
        take: takes the checks out of a graph.

    Returns:
        what those of the condition say, and what those of the body say.
    """
    of_condition = _take_from_condition(node, goes_on, body, take)
    return of_condition, _take_from_body(node, goes_on, body, take)


def _take_from_condition(
    node: Any, goes_on: GraphModule, body: GraphModule, take: Take
) -> list[str]:
    """Take the checks of what says whether a loop goes on.

    It gives nothing but that, so it is computed in front of the loop and at the end of the body,
    and carried with what its checks look at:

        while goes_on(x): x = body(x)

        held = goes_on(x)
        while all(held): x = body(x); held = goes_on(x)
    """
    output = output_of(goes_on)
    before = output.args
    if not isinstance(before[0], tuple | list):
        output.args = ((before[0],), *before[1:])
    said = take(goes_on) if isinstance(output.args[0][0], Node) else []
    if not said:
        output.args = before
        return said
    _, _, carried, others = node.args
    gm, graph = node.graph.owning_module, node.graph
    with graph.inserting_before(node):
        first = written_into(gm, goes_on, (*carried, *others))
        first = [holds(graph, value) for value in first]
    own = body.graph.find_nodes(op="placeholder")[len(carried) :]
    goes, *so_far = more_arguments(body, len(carried), len(first))
    del goes  # it has held, or the body would not run
    output = output_of(body)
    with body.graph.inserting_before(output):
        goes, *values = written_into(body, goes_on, (*output.args[0], *own))
        held = [holds(body.graph, goes)]
        for old, value in zip(so_far, values, strict=True):
            held.append(both(body.graph, old, holds(body.graph, value)))
    output.args = ((*output.args[0], *held), *output.args[1:])
    body.recompile()
    goes_on.graph = _conjunction(len(carried), len(first), len(others))
    node.args = (*node.args[:2], (*carried, *first), others)
    return said


def _conjunction(before: int, count: int, behind: int) -> Graph:
    """Return a graph that says whether all of some arguments hold, which lie between others."""
    graph = Graph()
    placeholders = [graph.placeholder(f"given_{i}") for i in range(before + count + behind)]
    result, *rest = placeholders[before : before + count]
    for value in rest:
        result = both(graph, result, value)
    graph.output(result)
    return graph


def _take_from_body(node: Any, goes_on: GraphModule, body: GraphModule, take: Take) -> list[str]:
    said = take(body)
    if not said:
        return said
    _, _, carried, others = node.args
    so_far = more_arguments(body, len(carried), len(said))
    output = output_of(body)
    kept = len(output.args[0]) - len(said)
    with body.graph.inserting_before(output):
        held = [
            both(body.graph, before, holds(body.graph, value))
            for before, value in zip(so_far, output.args[0][kept:], strict=True)
        ]
    output.args = ((*output.args[0][:kept], *held), *output.args[1:])
    body.recompile()
    so_far = more_arguments(goes_on, len(carried), len(said))
    output = output_of(goes_on)
    in_tuple = isinstance(output.args[0], tuple | list)
    (condition,) = output.args[0] if in_tuple else output.args
    with goes_on.graph.inserting_before(output):
        for before in so_far:
            condition = both(goes_on.graph, condition, before)
    output.args = ((condition,) if in_tuple else condition, *output.args[1:])
    goes_on.recompile()
    with node.graph.inserting_before(node):
        first = [true(node.graph) for _ in said]
    node.args = (*node.args[:2], (*carried, *first), others)
    return said


def take_from_steps(node: Any, body: GraphModule, take: Take) -> list[str]:
    """Take the checks of a body that runs for each row; it gives whether they hold, row by row.

    Where an operand has a gradient, torch wants one of all that the body gives.
    """
    said = take(body)
    if not said:
        return said
    output = output_of(body)
    kept = len(output.args[0]) - len(said)
    with body.graph.inserting_before(output):
        held = [holds(body.graph, value) for value in output.args[0][kept:]]
        traced = differentiated([x for group in node.args[1:] for x in group])
        if traced is not None:
            nothing = nothing_of(body.graph, body.graph.find_nodes(op="placeholder")[traced])
            held = [body.graph.call_function(torch.add, (each, nothing)) for each in held]
    output.args = ((*output.args[0][:kept], *held), *output.args[1:])
    body.recompile()
    return said

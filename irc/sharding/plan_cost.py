"""Why the plan is as it is: each op's choice held against its runner-up, as small JSON.

The runner-up of an op is the signature that would cost least more if this op alone changed its
mind: its own time, and the boxing to and from what its neighbours keep.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from irc.dialects.flow import id_of
from irc.sharding.boxing import Boxing
from irc.sharding.graph import Graph
from irc.sharding.problem import Net, Problem
from irc.sharding.program import Solution
from irc.sharding.trees import Trees

CLOSE = 3
"""So many candidates of an op are priced exactly; the others are further by the sum of their
paths."""


def plan_cost(graph: Graph, solution: Solution, cluster: str, boxing: Boxing, trees: Trees) -> str:
    """Return the report that auto-shard leaves in ``irc.plan_cost``."""
    return json.dumps(
        {
            "cluster": cluster,
            "objective_s": float(f"{solution.seconds:.7g}"),
            "bound_s": _short(solution.bound_s),
            "gap": _short(solution.gap),
            "nodes": solution.num_nodes,
            "columns": solution.num_columns,
            "bytes_held": graph.problem.num_bytes(solution.choice),
            "ops": _ops(graph, solution.choice, boxing, trees),
        },
        separators=(",", ":"),
    )


def _ops(graph: Graph, choice: Sequence[int], boxing: Boxing, trees: Trees) -> list[dict[str, Any]]:
    nets = _nets_of(graph.problem)
    rows: list[dict[str, Any]] = []
    for op, (index, signatures) in graph.ops.items():
        node, chosen = graph.problem.nodes[index], choice[index]
        row: dict[str, Any] = {
            "id": id_of(op),
            "node": node.name,
            "count": node.count,
            "chosen": str(signatures[chosen]),
            "seconds": _short(node.seconds[chosen]),
        }
        found = _runner_up(graph.problem, nets.get(index, []), index, choice, boxing, trees)
        if found is not None:
            row["runner_up"], row["more_s"] = str(signatures[found[0]]), _short(found[1])
        rows.append(row)
    return rows


def _nets_of(problem: Problem) -> dict[int, list[Net]]:
    found: dict[int, list[Net]] = {}
    for net in problem.nets:
        for node in dict.fromkeys((net.source.node, *(sink.node for sink in net.sinks))):
            found.setdefault(node, []).append(net)
    return found


def _runner_up(
    problem: Problem,
    nets: Sequence[Net],
    index: int,
    choice: Sequence[int],
    boxing: Boxing,
    trees: Trees,
) -> tuple[int, float] | None:
    node, chosen = problem.nodes[index], choice[index]

    def changed(option: int) -> list[int]:
        return [option if n == index else other for n, other in enumerate(choice)]

    def estimate(option: int) -> float:
        after = changed(option)
        return node.count * node.seconds[option] + sum(
            net.count * _paths(net, after, boxing) for net in nets
        )

    def exact(option: int) -> float:
        after, total = changed(option), node.count * node.seconds[option]
        for net in nets:
            tree = problem.tree(net, after, trees)
            if tree is None:
                return float("inf")
            total += net.count * tree.seconds
        return total

    others = [option for option in range(len(node.seconds)) if option != chosen]
    close = sorted(others, key=estimate)[:CLOSE]
    priced = [(exact(option), option) for option in close]
    if not priced or min(priced)[0] == float("inf"):
        return None
    seconds, option = min(priced)
    return option, seconds - exact(chosen)


def _paths(net: Net, choice: Sequence[int], boxing: Boxing) -> float:
    """Return what boxing costs if no reader shares a step."""
    source = net.source.placements[choice[net.source.node]]
    targets = [sink.placements[choice[sink.node]] for sink in net.sinks]
    return float(boxing.matrix(net.shape, net.dtype, [source], targets).sum())


def _short(value: float) -> float:
    """Keep four digits: more say nothing, and make the text differ between machines."""
    return float(f"{value:.4g}")

"""Why the plan is as it is: each op's choice held against its runner-up, as small JSON.

The runner-up of an op is the signature that would cost least more if this op alone changed its
mind: its own time, and the boxing to and from what its neighbours keep.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.dialects.flow import id_of
from irc.search.by_function import seconds_by_function
from irc.search.graph import Graph
from irc.search.problem import Net, Problem
from irc.search.program import Solution
from irc.sharding.boxing import Boxing
from irc.sharding.trees import Trees

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLOSE = 3
"""So many candidates of an op are priced exactly; the others are further by the sum of their
paths."""


def plan_cost(
    graph: Graph,
    solution: Solution,
    cluster: str,
    boxing: Boxing,
    trees: Trees,
    *,
    overlapped_s: float | None = None,
    runners_up: bool = True,
    limit_costs: float | None = None,
) -> str:
    """Return the report that auto-shard leaves in ``irc.plan_cost``.

    Args:
        graph: the problem.
        solution: the choice.
        cluster: its name.
        boxing: prices of boxings.
        trees: boxings that were looked up.
        overlapped_s: seconds of a call of the choice with its collectives under compute; None: they
            are added up.
        runners_up: say of each op what else it might do, which takes a while.
        limit_costs: the part by which the memory makes the choice dearer; None: not known.
    """
    objective = solution.seconds if overlapped_s is None else overlapped_s
    if graph.problem.memory_bytes is None:
        limit_costs = None
    return json.dumps(
        {
            "cluster": cluster,
            "objective_s": float(f"{objective:.7g}"),
            "added_up_s": float(f"{solution.seconds:.7g}"),
            "bound_s": float(f"{solution.bound_s:.7g}"),
            "gap": _short(solution.gap),
            "nodes": solution.num_nodes,
            "columns": solution.num_columns,
            **_memory(graph, solution, trees),
            **({} if limit_costs is None else {"limit_costs": _short(limit_costs)}),
            **_functions(graph, solution, boxing, trees),
            **({"ops": _ops(graph, solution.choice, boxing, trees)} if runners_up else {}),
        },
        separators=(",", ":"),
    )


def _memory(graph: Graph, solution: Solution, trees: Trees) -> dict[str, Any]:
    """Say what a device holds when it holds most, when that is, and what it is."""
    liveness = graph.problem.liveness
    if liveness is None:
        return {}
    held, moment = liveness.worst(solution.choice, trees)
    return {
        "bytes_held": held,
        "bytes_limit": graph.problem.memory_bytes,
        "peak_at": liveness.label(moment),
        "peak_bytes": liveness.breakdown(moment, solution.choice, trees),
    }


def _functions(
    graph: Graph, solution: Solution, boxing: Boxing, trees: Trees
) -> dict[str, dict[str, dict[str, float]]]:
    """Say of a stage of a pipeline what each of its functions takes, and how often it runs."""
    if graph.facts.runs is None:
        return {}
    by_kind = seconds_by_function(graph, solution.choice, boxing, trees)
    shown = {
        kind: {"runs": f.runs, "seconds": float(f"{f.seconds:.7g}")} for kind, f in by_kind.items()
    }
    return {"functions": shown}


def _ops(graph: Graph, choice: Sequence[int], boxing: Boxing, trees: Trees) -> list[dict[str, Any]]:
    nets = _nets_of(graph.problem)
    rows: list[dict[str, Any]] = []
    runners_up: dict[int, tuple[int, float] | None] = {}
    for op, (index, signatures) in graph.ops.items():
        node, chosen = graph.problem.nodes[index], choice[index]
        row: dict[str, Any] = {
            "id": id_of(op),
            "node": node.name,
            "count": node.count,
            "chosen": str(signatures[chosen]),
            "seconds": _short(node.seconds[chosen]),
        }
        if index not in runners_up:
            of_node = nets.get(index, [])
            runners_up[index] = _runner_up(graph.problem, of_node, index, choice, boxing, trees)
        if (runner_up := runners_up[index]) is not None:
            other, more_s = runner_up
            row["runner_up"], row["more_s"] = str(signatures[other]), _short(more_s)
            row["runner_up_s"] = _short(node.seconds[other])
        rows.append(row)
    return rows


def _nets_of(problem: Problem) -> dict[int, list[Net]]:
    nets: dict[int, list[Net]] = {}
    for net in problem.nets:
        for node in dict.fromkeys((net.source.node, *(sink.node for sink in net.sinks))):
            nets.setdefault(node, []).append(net)
    return nets


def _runner_up(
    problem: Problem,
    nets: Sequence[Net],
    index: int,
    choice: Sequence[int],
    boxing: Boxing,
    trees: Trees,
) -> tuple[int, float] | None:
    node, chosen = problem.nodes[index], choice[index]

    total = np.array(node.seconds) * node.count
    for net in nets:
        total = total + net.count * _paths(net, index, choice, boxing)

    def exact(option: int) -> float:
        after = [*choice]
        after[index] = option
        seconds = node.count * node.seconds[option]
        for net in nets:
            tree = problem.tree(net, after, trees)
            if tree is None:
                return float("inf")
            seconds += net.count * tree.seconds
        return seconds

    close = [int(option) for option in np.argsort(total, kind="stable") if option != chosen]
    priced = [(exact(option), option) for option in close[:CLOSE]]
    if not priced or min(priced)[0] == float("inf"):
        return None
    seconds, option = min(priced)
    return option, seconds - exact(chosen)


def _paths(net: Net, index: int, choice: Sequence[int], boxing: Boxing) -> NDArray[np.float64]:
    """Return for each option of a node what boxing costs if no reader shares a step."""
    ports = (net.source, *net.sinks)
    number = next(len(port.placements) for port in ports if port.node == index)
    placed = [
        list(port.placements) if port.node == index else [port.placements[choice[port.node]]]
        for port in ports
    ]
    total = np.zeros(number)
    for sink in placed[1:]:
        table = boxing.matrix(net.shape, net.dtype, placed[0], sink)
        total = total + (table.diagonal() if len(table) == len(table.T) > 1 else table.ravel())
    return total


def _short(value: float) -> float:
    """Keep four digits: more say nothing, and make the text differ between machines."""
    return float(f"{value:.4g}")

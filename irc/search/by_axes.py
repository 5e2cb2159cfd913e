"""A program that is too large for one search is searched axis by axis first.

On a mesh of one axis an op has a handful of signatures, on one of two axes their pairs: the program
grows with the square and more, the time to solve it faster. So each axis is searched alone, and one
axis of all ranks; what an op does there are its *ways* (`irc.search.options`), from which the axes
of the whole mesh choose together. How far the plan may be from the best one is not known then: the
bound is what all ops take where each has its cheapest signature, and nothing is moved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from xdsl.dialects.builtin import ModuleOp

from irc.constraints.resolve import Constraints
from irc.cost.model import ClusterCost
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.placement import Mesh
from irc.search.facts import Facts
from irc.search.graph import Wishes
from irc.search.options import Key, Way, Ways, ways_of
from irc.search.solved import Plan, TooSmall


class Search(Protocol):
    """:func:`irc.search.on_mesh.search`, as far as it is called here."""

    def __call__(
        self,
        module: ModuleOp,
        cost: ClusterCost,
        wishes: Wishes,
        *,
        node_limit: int,
        beat_s: float = ...,
        facts: Facts,
        ways: Ways | None = ...,
    ) -> Plan:
        """Find the cheapest plan that fits."""
        ...


def search_by_axes(
    search: Search,
    module: ModuleOp,
    cost: ClusterCost,
    wishes: Wishes,
    facts: Facts,
    num_columns: int,
    *,
    node_limit: int,
    beat_s: float,
) -> Plan:
    """Find a good plan that fits; see :func:`irc.search.on_mesh.search`, which ``search`` is.

    Raises:
        TooSmall: nothing fits.
        Worse: nothing is cheaper than ``beat_s``.
    """
    print(
        f"irc: planning on {cost.mesh} takes {num_columns} columns; axis by axis first",
        file=sys.stderr,
    )
    ways: dict[Key, frozenset[Way]] = {}
    least = 0.0
    for mesh in dict.fromkeys(_axes(cost.mesh)):
        alone = ClusterCost(cost.cluster, mesh)
        plan = _on_one(search, module, alone, wishes, facts, node_limit)
        share = mesh.num_ranks / cost.mesh.num_ranks
        nodes = plan.graph.problem.nodes
        least = max(least, share * sum(min(node.seconds) * node.count for node in nodes))
        for op, (node, signatures) in plan.graph.ops.items():
            assert isinstance(op, FlowOp)
            key, chosen = facts.key(op), signatures[plan.solution.choice[node]]
            ways[key] = ways.get(key, frozenset()) | frozenset(ways_of(chosen, mesh.names))
    # What the user says of an op may ask for a way that none of the axes has taken.
    for name, func in facts.functions.items():
        for op in func.body.block.ops:
            if isinstance(op, FlowOp) and f"{name}/{id_of(op)}" in wishes.constraints.ops:
                ways.pop(facts.key(op), None)
    full_plan = search(
        module, cost, wishes, node_limit=node_limit, beat_s=beat_s, facts=facts, ways=ways
    )
    solution = replace(full_plan.solution, bound_s=min(least, full_plan.solution.bound_s))
    return replace(full_plan, solution=solution)


def _axes(mesh: Mesh) -> Iterator[Mesh]:
    """Yield each axis alone, and all ranks on the last one."""
    for axis in mesh.axes:
        yield Mesh((axis,))
    yield Mesh(((mesh.names[-1], mesh.num_ranks),))


def _on_one(
    search: Search,
    module: ModuleOp,
    cost: ClusterCost,
    wishes: Wishes,
    facts: Facts,
    node_limit: int,
) -> Plan:
    # Constraints are said of all axes together. Fewer ranks may not have the memory.
    free = replace(wishes, constraints=Constraints(cost.mesh))
    try:
        return search(module, cost, free, node_limit=node_limit, facts=facts)
    except TooSmall:
        enough = replace(free, memory_bytes=ENOUGH, stored_bytes=None)
        return search(module, cost, enough, node_limit=node_limit, facts=facts)


ENOUGH = 1 << 60
"""Bytes that any plan fits into."""

"""The best plan of a module on one mesh, within the memory of a device.

Memory is looked at second: without a bound a weight simply lies as its reader wants it, and where
the cheapest such plan fits there is nothing to add. Where it does not fit, everything that
outlives an op may lie otherwise than its readers want, and the search goes again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import comb, perm

from xdsl.dialects.builtin import ModuleOp

from irc.cost.model import ClusterCost
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.search.by_axes import search_by_axes
from irc.search.facts import Facts
from irc.search.graph import Graph, Wishes
from irc.search.options import Known, Options, Ways
from irc.search.problem import Problem
from irc.search.program import Solution, TooLarge, solve
from irc.search.relaxation import Infeasible
from irc.search.shared import known_of
from irc.search.solved import Plan, Shortage, TooSmall
from irc.sharding.trees import Trees

MOST_COLUMNS = 150_000
"""A larger program is taken apart by axes (:mod:`irc.search.by_axes`): of one with 392,000 columns
(T5 with two layers each way, on two axes) HiGHS had no relaxation after 400 s."""

MOST_PLACEMENTS = 3_000
"""Of one tensor. The distances of 3,552, a matrix on five axes, take a minute; of six, 26,608."""

MARGIN = 1.08
"""Of a device's memory this part is left to the allocator and the libraries: Mist reports 8 to 9 %
more reserved than allocated, OneFlow divides by 1.06."""


def budget_bytes(cost: ClusterCost) -> int:
    """Return how many bytes of a device a plan may take."""
    return int(cost.cluster.device.memory_bytes / MARGIN)


def search(
    module: ModuleOp,
    cost: ClusterCost,
    wishes: Wishes,
    *,
    node_limit: int = 10_000,
    beat_s: float = float("inf"),
    facts: Facts | None = None,
    ways: Ways | None = None,
    shortage: Shortage | None = None,
) -> Plan:
    """Find the cheapest plan that fits.

    Args:
        module: level flow.
        cost: the cost model, on a mesh.
        wishes: what the user fixes; without a budget, that of the cluster's device holds.
        node_limit: branch-and-bound nodes.
        beat_s: stop where nothing cheaper is to be found.
        facts: what is known of the module.
        ways: what axes may do in each op, so that many meshes can be tried; None: anything.
        shortage: what is known of the memory, and is added to.

    Raises:
        TooSmall: nothing fits.
        Worse: nothing is cheaper than ``beat_s``.
        IrcError: ``mesh-axes`` where a tensor may lie in too many ways.
    """
    _check_axes(module, cost.mesh)
    budget = budget_bytes(cost) if wishes.memory_bytes is None else wishes.memory_bytes
    # What another search numbered its ops by is of no use here.
    known = known_of(cost) if facts is None and ways is None else Known()
    facts = facts or Facts(module, known.numbers, known.traffics)
    options = Options(cost, facts.key, facts.traffic, ways, known)
    trees = Trees(cost.boxing)
    shortage = shortage or Shortage()

    most = MOST_COLUMNS if ways is None and len(cost.mesh.axes) > 1 else float("inf")

    def best(problem: Problem) -> Solution:
        return solve(
            problem,
            cost.boxing,
            node_limit=node_limit,
            beat_s=beat_s,
            trees=trees,
            branching=ways is None,
            moments=shortage.moments,
            most_columns=most,
        )

    try:
        return _search(module, cost, wishes, facts, options, shortage, budget, trees, best)
    except TooLarge as error:
        return search_by_axes(
            search,
            module,
            cost,
            wishes,
            facts,
            error.num_columns,
            node_limit=node_limit,
            beat_s=beat_s,
        )


def _check_axes(module: ModuleOp, mesh: Mesh) -> None:
    kinds = {value.type for op in module.walk() for value in (*op.operands, *op.results)}
    shapes = [kind.static_shape() for kind in kinds if isinstance(kind, TensorType)]
    most = max((num_placements(shape, mesh) for shape in shapes), default=0)
    if most > MOST_PLACEMENTS:
        raise IrcError(
            "mesh-axes",
            f"a mesh of {len(mesh.axes)} axes is too large to search",
            because=f"one tensor may lie in {most} ways on {mesh}; at most {MOST_PLACEMENTS} "
            "are compared",
            help="join axes: one of 4 ranks instead of two of 2",
        )


def num_placements(shape: tuple[int, ...], mesh: Mesh) -> int:
    """Return in how many ways a tensor may lie on a mesh, at most.

    Axes that split one dim do so in some order; the others hold a whole or a part of a sum.

    >>> num_placements((8, 8), Mesh.parse("data=2,tensor=2"))
    18
    """
    real = [size for _, size in mesh.axes if size > 1]
    dims = sum(any(length % size == 0 for size in real) for length in shape)
    count = 0
    for split in range(len(real) + 1 if dims else 1):
        orders = perm(dims + split - 1, split) if split else 1
        count += comb(len(real), split) * 2 ** (len(mesh.axes) - split) * orders
    return count


def _search(
    module: ModuleOp,
    cost: ClusterCost,
    wishes: Wishes,
    facts: Facts,
    options: Options,
    shortage: Shortage,
    budget: int,
    trees: Trees,
    best: Callable[[Problem], Solution],
) -> Plan:
    free: Solution | None = None
    if not shortage.is_known:
        unbounded = replace(wishes, memory_bytes=None, stored_bytes=None)
        graph = Graph(module, cost, unbounded, facts, options)
        free = best(graph.problem)
        stored = graph.problem.liveness.stored(free.choice) if graph.problem.liveness else 0
        is_stored = wishes.stored_bytes is None or stored <= wishes.stored_bytes
        if free.num_bytes <= budget and is_stored:
            return Plan(graph, free, trees, 0.0)
        shortage.is_known = True
    graph = Graph(module, cost, replace(wishes, memory_bytes=budget), facts, options)
    try:
        solution = best(graph.problem)
    except Infeasible:
        raise TooSmall(graph) from None
    shortage.moments.update(dict.fromkeys(solution.moments))
    part = solution.seconds / free.seconds - 1 if free is not None and free.seconds else None
    return Plan(graph, solution, trees, part)

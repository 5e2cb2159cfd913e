"""The memory of a program on one device: nothing is split, and nothing is to be chosen."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.placement import Mesh
from irc.search.graph import Graph, Wishes
from irc.search.program import solve
from irc.sharding.trees import Trees

ALONE = Mesh.parse("device=1")


@dataclass(frozen=True)
class Held:
    """What a device holds when it holds most.

    Attributes:
        num_bytes: so many bytes.
        moment: the op.
        parts: what they are, by kind of value.
    """

    num_bytes: int
    moment: str
    parts: dict[str, int]


def held_alone(module: ModuleOp) -> Held:
    """Return what one device holds of a program of level flow whose sizes are numbers."""
    cost = ClusterCost(find_cluster("this-host"), ALONE)
    graph = Graph(module, cost, Wishes())
    trees = Trees(cost.boxing)
    choice = solve(graph.problem, cost.boxing, trees=trees).choice
    liveness = graph.problem.liveness
    assert liveness is not None
    num_bytes, moment = liveness.worst(choice, trees)
    parts = liveness.breakdown(moment, choice, trees)
    return Held(num_bytes, liveness.label(moment), parts)

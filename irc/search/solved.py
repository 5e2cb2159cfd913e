"""What a search for placements gives, and where nothing fits."""

from __future__ import annotations

from dataclasses import dataclass, field

from irc.search.graph import Graph
from irc.search.liveness import Moment
from irc.search.program import Solution
from irc.sharding.trees import Trees


@dataclass(frozen=True)
class Plan:
    """What was found on one mesh.

    Attributes:
        graph: the problem that was solved last, and what its ports stand for.
        solution: the choice.
        trees: boxings that were looked up.
        limit_costs: the part by which the memory makes it dearer than the cheapest of all; None
            where that is not known.
    """

    graph: Graph
    solution: Solution
    trees: Trees
    limit_costs: float | None = None


@dataclass
class Shortage:
    """When memory was short on the meshes before: most likely it is then on the next one, too.

    Attributes:
        moments: when it was.
        is_known: the cheapest plan did not fit, so that plans are bounded from the start.
    """

    moments: dict[Moment, None] = field(default_factory=dict["Moment", None])
    is_known: bool = False


class TooSmall(Exception):  # noqa: N818 - what the solver says, not a fault
    """No plan fits into the memory.

    Attributes:
        graph: the problem without a solution.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(f"no plan fits into {graph.problem.memory_bytes} bytes")
        self.graph = graph

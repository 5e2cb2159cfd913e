"""A memory budget that cannot be met, and why.

Constraints come in named groups: the budget, each statement of the user, and what the entry asks of
its inputs. The conflict is what is left when no group can be left out without a plan appearing (a
deletion filter, Chinneck and Dravnieks 1991).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from irc.errors import IrcError
from irc.search.graph import Graph
from irc.search.least import is_feasible, least_memory
from irc.sharding.boxing import Boxing
from irc.sharding.trees import Trees

SHOWN = 3

Build = Callable[[Sequence[str]], Graph]
"""Makes the problem with the named groups only."""


def infeasible(graph: Graph, boxing: Boxing, groups: Sequence[str], build: Build) -> IrcError:
    """Return the error for a budget that nothing fits into.

    Args:
        graph: the problem with all groups.
        boxing: transitions and their prices.
        groups: names of the groups that may be left out, beside the budget.
        build: makes the problem again.
    """
    option, budget = "memory_bytes", graph.problem.memory_bytes or 0
    stored = graph.problem.stored_bytes
    if stored is not None and least_memory(graph.problem, boxing, stored=True)[0] > stored:
        option, budget = "stored_bytes", stored
    least, choice = least_memory(graph.problem, boxing, stored=option == "stored_bytes")
    needed = list(groups)
    for group in groups:
        without = [other for other in needed if other != group]
        if not is_feasible(build(without).problem, boxing):
            needed = without
    because = [f"group memory: {option}={budget}; a plan needs {least} at least"]
    because += [f"group {group}" for group in needed]
    because += _holders(graph, choice, Trees(boxing))
    return IrcError(
        "sharding-infeasible",
        f"no sharding holds {budget} bytes on a device",
        because=because,
        help=f"the smallest budget that works is {option}={least}",
    )


def _holders(graph: Graph, choice: Sequence[int], trees: Trees) -> list[str]:
    liveness = graph.problem.liveness
    assert liveness is not None
    _, moment = liveness.worst(choice, trees)
    parts = liveness.breakdown(moment, choice, trees)
    largest = sorted(parts.items(), key=lambda item: -item[1])[:SHOWN]
    return [f"at {liveness.label(moment)}: {what} hold {size} bytes" for what, size in largest]

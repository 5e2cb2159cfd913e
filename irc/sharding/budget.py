"""A memory budget that cannot be met, and why."""

from __future__ import annotations

from irc.errors import IrcError
from irc.sharding.problem import Node, Problem

SHOWN = 3


def check_budget(problem: Problem) -> None:
    """Check that some choice holds the budget.

    Arguments choose freely of each other, and every placement of one can be boxed to what a reader
    wants; so the least memory is the sum of each argument's least, and the arguments whose options
    are all large (pinned whole, or of sizes that no axis divides) are the conflict.

    Raises:
        IrcError: ``sharding-infeasible``, with the smallest budget that works.
    """
    budget = problem.memory_bytes
    if budget is None:
        return
    held = [node for node in problem.nodes if node.num_bytes]
    least = sum(min(node.num_bytes) for node in held)
    if least <= budget:
        return
    stuck = sorted((n for n in held if len(n.num_bytes) == 1), key=_least, reverse=True)
    groups = [
        f"group memory: memory_bytes={budget}; "
        f"parameters, buffers and constants need {least} at least"
    ]
    groups += [
        f"group pin: {node.name} holds {_least(node)} bytes as it is pinned"
        for node in stuck[:SHOWN]
    ]
    largest = sorted((n for n in held if n not in stuck), key=_least, reverse=True)
    groups += [
        f"{node.name} needs {_least(node)} bytes, split as far as it goes"
        for node in largest[:SHOWN]
    ]
    raise IrcError(
        "sharding-infeasible",
        f"no sharding holds {budget} bytes on a device",
        because=groups,
        help=f"the smallest budget that works is memory_bytes={least}",
    )


def _least(node: Node) -> int:
    return min(node.num_bytes)

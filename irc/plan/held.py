"""What a plan of one device holds, against what the device may hold.

With one device nothing is to be chosen: a budget is met, or it is not. On a mesh the search keeps
to it (:mod:`irc.search.on_mesh`) as far as it knows, and what it does not know of is held against
it here; in stages :mod:`irc.programs.stage_memory` does so.
"""

from __future__ import annotations

import json

from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.errors import IrcError
from irc.plan.schema import Plan


def held_bytes(plan: Plan) -> int:
    """Return what a rank of a plan holds at the worst moment."""
    own = [plan.buffers[index] for index in (*plan.weights, *plan.inputs)]
    own += [b for b in plan.buffers if b.storage in ("prepared", "output")]
    return plan.arena_bytes + sum(buffer.size_bytes for buffer in own)


def said_bytes(module: ModuleOp, within: int) -> int:
    """Return what the search of placements says that a rank of its program holds at most.

    Args:
        module: of the plan, with what its search says.
        within: what the search was allowed; that where it says nothing.
    """
    report = module.attributes.get("irc.plan_cost")
    return json.loads(report.data)["bytes_held"] if isinstance(report, StringAttr) else within


def over(held: int, limit: int) -> IrcError:
    """Return the error of a mesh on which every plan holds more than it may."""
    return IrcError(
        "sharding-infeasible",
        f"the plan that holds least has {held} bytes on a device, which may hold {limit}",
        because="beside what placements decide are alignment, and what collectives that are under"
        " way at a time send and receive",
        help=f"the smallest budget that works is about memory_bytes={held}",
    )


def check_budget(plan: Plan, memory_bytes: int | None, stored_bytes: int | None) -> None:
    """Check that a plan of one device holds no more than it may.

    Args:
        plan: the plan.
        memory_bytes: the most at any moment; None for what there is.
        stored_bytes: the most all the time: weights, states, and what is prepared of weights.

    Raises:
        IrcError: ``sharding-infeasible`` with the smallest budget that works.
    """
    buffers = plan.buffers
    loaded = sum(buffers[index].size_bytes for index in plan.weights)
    prepared = sum(b.size_bytes for b in buffers if b.storage == "prepared")
    passed = sum(buffers[index].size_bytes for index in plan.inputs)
    passed += sum(b.size_bytes for b in buffers if b.storage == "output")
    stored = loaded + prepared
    because = [
        f"weights and states: {loaded} bytes; prepared of weights: {prepared} bytes",
        f"inputs and outputs: {passed} bytes; the arena: {plan.arena_bytes} bytes",
    ]
    limits = {"memory_bytes": memory_bytes, "stored_bytes": stored_bytes}
    held = {"memory_bytes": stored + passed + plan.arena_bytes, "stored_bytes": stored}
    for option, limit in limits.items():
        if limit is not None and held[option] > limit:
            raise IrcError(
                "sharding-infeasible",
                f"the plan holds {held[option]} bytes, and its one device may hold {limit}",
                because=because,
                help=f"the smallest budget that works is {option}={held[option]}; a mesh splits "
                "what is held over several devices",
            )


def smallest_budget(error: IrcError) -> int | None:
    """Return the bytes that an error of memory says would do; None where it says none."""
    _, marker, rest = error.help.partition("memory_bytes=")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if marker and digits else None

"""Who lies in a plan's arena when it is fullest."""

from __future__ import annotations

from dataclasses import dataclass

from irc.plan.schema import Plan, Step
from irc.simulate.plan import lifetimes, op_of, steps


@dataclass(frozen=True)
class Tenant:
    """A value in the arena.

    Attributes:
        what: the op that makes it, and its id.
        line: of the model; empty where none is known.
        dtype, shape: on one rank.
    """

    what: str
    line: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class Peak:
    """The moment at which most is alive.

    Attributes:
        at: the op that runs then, and its id.
        line: of the model; empty where none is known.
        num_bytes: alive.
        tenants: the largest first.
    """

    at: str
    line: str
    num_bytes: int
    tenants: tuple[Tenant, ...]


def arena_peak(plan: Plan) -> Peak | None:
    """Return the fullest moment of a call, in the order of its steps; None without an arena."""
    order = [step for _, step in steps(plan)]
    spans = lifetimes(plan, order)
    if not spans:
        return None
    changes = [0] * (len(order) + 1)
    for root, (first, last) in spans.items():
        changes[first] += plan.buffers[root].size_bytes
        changes[last + 1] -= plan.buffers[root].size_bytes
    alive, most, moment = 0, -1, 0
    for time in range(len(order)):
        alive += changes[time]
        if alive > most:
            most, moment = alive, time
    at = order[moment]
    tenants = [
        Tenant(
            f"{op_of(plan, order[first])} {plan.buffers[root].source or order[first].id}",
            _line(order[first]),
            plan.buffers[root].dtype,
            plan.buffers[root].shape,
            plan.buffers[root].size_bytes,
        )
        for root, (first, last) in spans.items()
        if first <= moment <= last
    ]
    tenants.sort(key=lambda each: -each.num_bytes)
    return Peak(f"{op_of(plan, at)} {at.id}", _line(at), most, tuple(tenants))


def _line(step: Step) -> str:
    return "" if step.loc == "unknown" else step.loc

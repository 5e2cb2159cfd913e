"""Which steps of a plan are library calls: all else that computes is a kernel of irc."""

from __future__ import annotations

from collections import Counter

from irc.ops import names
from irc.plan.schema import Library, Plan

LOCAL = ("comm.local_chunk", "comm.rank_index")
"""What ranks read of their own place: no library has a part in it."""


def library_steps(plan: Plan) -> list[Library]:
    """Return the steps that a library runs at each call of a plan."""
    return [a for a in plan.actions if isinstance(a, Library) and a.op not in LOCAL]


def library_calls(plan: Plan) -> Counter[str]:
    """Count the library calls of a plan by name.

    The plan alone knows: an op without a form in flow may have a kernel, and one with a form may
    have none (random numbers, a row too long to sort, complex or empty tensors). The first go by
    the library's name (``aten::linalg_qr``), the others by that in flow (``flow.sort``).
    """
    return Counter(name_of(step) for step in library_steps(plan))


def fall_backs(plan: Plan) -> Counter[str]:
    """Count those calls that compute an op without a form in flow: what irc does not know."""
    return Counter(name_of(step) for step in library_steps(plan) if falls_back(step))


def falls_back(step: Library) -> bool:
    """True for a call of an op that has no form in flow."""
    return step.op == names.EXTERN


def name_of(step: Library) -> str:
    """Return the name of what is called."""
    return str(step.attrs["target"]) if falls_back(step) else step.op

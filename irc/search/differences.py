"""From one configuration to another in steps of one decision each: what each decision is worth.

The steps are planned and simulated like anything else, so that they add up to the whole difference.
Where one decision alone has no plan (it does not fit, or an axis is missing), it is taken together
with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from irc.search.configurations import IN_PARTS, PLAIN, Configuration

if TYPE_CHECKING:
    from irc.search.judge import Judged, Verdict


@dataclass(frozen=True)
class Decision:
    """One line of a difference.

    Attributes:
        what: was decided otherwise, as ``mesh`` or ``mesh and micro-batches``.
        before, after: what it was, and what it is.
        verdict: what the simulator says after it.
        step_s: by how much the step is longer after it.
        compute_s, bubble_s, exposed_s: parts of that: waiting for other ranks, for collectives,
            and the rest.
    """

    what: str
    before: str
    after: str
    verdict: Verdict
    step_s: float
    compute_s: float
    bubble_s: float
    exposed_s: float


@dataclass(frozen=True)
class Difference:
    """Why one configuration takes longer than another.

    Attributes:
        before, after: where it begins, and where it ends.
        decisions: line by line; their ``step_s`` add up to the difference of the steps.
    """

    before: Configuration
    after: Configuration
    decisions: tuple[Decision, ...]


def difference(
    before: Judged, after: Judged, judged: Callable[[Configuration], Judged]
) -> Difference:
    """Explain the difference of two configurations, each with a plan.

    Args:
        before: where to begin.
        after: where to end.
        judged: plans a configuration and simulates it, or says why there is none.
    """
    assert before.verdict is not None
    own, verdict = before.configuration, before.verdict
    lines: list[Decision] = []
    names: list[str] = []
    for name, following in _steps(before.configuration, after.configuration):
        names.append(name)
        is_last = following == after.configuration
        next_verdict = (after if is_last else judged(following)).verdict
        if next_verdict is None:
            continue
        lines.append(_line(names, own, following, verdict, next_verdict))
        own, verdict, names = following, next_verdict, []
    return Difference(before.configuration, after.configuration, tuple(lines))


def _steps(before: Configuration, after: Configuration) -> Iterator[tuple[str, Configuration]]:
    """Yield the decisions in which two differ, and what comes of each after those before it."""
    own = before
    if own.mesh != after.mesh:
        # What axes are for is said of a mesh, and a schedule of stages.
        schedule = own.schedule if min(own.pipe, after.pipe) > 1 else after.schedule
        own = replace(own, mesh=after.mesh, layout=after.layout, schedule=schedule)
        yield "mesh", own
    for name in ("layout", "micro_batches", "schedule", "recompute", "in_parts"):
        if getattr(own, name) != getattr(after, name):
            own = replace(own, **{name: getattr(after, name)})
            yield name.replace("_", "-"), own
    if own != after:
        yield "memory", after


def _line(
    names: list[str],
    before: Configuration,
    after: Configuration,
    old: Verdict,
    new: Verdict,
) -> Decision:
    bubble = new.bubble * new.step_s - old.bubble * old.step_s
    exposed = new.exposed_s - old.exposed_s
    step = new.step_s - old.step_s
    return Decision(
        " and ".join(names),
        ", ".join(_said(name, before) for name in names),
        ", ".join(_said(name, after) for name in names),
        new,
        step,
        step - bubble - exposed,
        bubble,
        exposed,
    )


def _said(name: str, own: Configuration) -> str:
    match name:
        case "mesh":
            mesh = str(own.mesh) or "one device"
            return f"{mesh} as {own.layout}" if own.layout else mesh
        case "layout":
            return own.layout or "what is fastest"
        case "micro-batches":
            return f"{own.micro_batches}"
        case "schedule":
            return own.schedule if own.pipe > 1 else PLAIN
        case "in-parts":
            return IN_PARTS[own.in_parts]
        case "memory":
            most = own.memory_bytes
            return "as allowed" if most is None else f"within {most} bytes"
        case _:
            return own.recompute

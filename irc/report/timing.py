"""Where the time of a call goes: its actions, and how far communication hides behind compute."""

from __future__ import annotations

from dataclasses import dataclass

from irc.plan.schema import Call, Plan, Start, Step, Wait
from irc.simulate.plan import predict, steps


@dataclass(frozen=True)
class Split:
    """A predicted call, in seconds.

    Attributes:
        total_s: what the plan states; None where an action has no price.
        compute_s: all kernels, library ops and copies of a rank.
        communication_s: all collectives of a rank.
        exposed_s: of the communication, what compute does not hide.
    """

    total_s: float | None
    compute_s: float
    communication_s: float
    exposed_s: float


@dataclass(frozen=True)
class ActionRow:
    """Actions that are alike: launches of one kernel from one line, or one library op."""

    what: str
    loc: str
    ids: tuple[str, ...]
    runs: int
    seconds: float | None


def split(plan: Plan) -> Split:
    """Return the predicted time and its parts."""
    order = [step for _, step in steps(plan)]
    compute = sum(_seconds(s) or 0.0 for s in order if not isinstance(s, Start | Wait))
    communication = sum(s.seconds or 0.0 for s in order if isinstance(s, Start))
    exposed = predict(plan).seconds - compute if communication else 0.0
    return Split(plan.predicted_s, compute, communication, max(0.0, exposed))


def action_rows(plan: Plan) -> list[ActionRow]:
    """Return what runs, the dearest first; views and copies of ranks' own chunks included."""
    alike: dict[tuple[str, str], list[Step]] = {}
    for _, step in steps(plan):
        if not isinstance(step, Start | Wait):
            alike.setdefault((_what(plan, step), step.loc), []).append(step)
    rows = [
        ActionRow(
            what,
            loc,
            tuple(dict.fromkeys(step.id.rpartition("/")[2] for step in group)),
            len(group),
            _sum([_seconds(step) for step in group]),
        )
        for (what, loc), group in alike.items()
    ]
    return sorted(rows, key=lambda row: -(row.seconds or 0.0))


def _what(plan: Plan, step: Step) -> str:
    if isinstance(step, Call):
        return plan.kernels[step.kernel].name
    return getattr(step, "op", "copy")


def _seconds(step: Step) -> float | None:
    return None if isinstance(step, Wait) else step.seconds


def _sum(parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None

"""What the functions and actions of a rehearsed rank took, beside what the plan says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan, Start, Wait
from irc.runtime.rehearsal_report import ActionTime, FunctionTime
from irc.simulate.labels import Labels
from irc.simulate.plan import steps
from irc.simulate.step_events import UPDATE
from irc.trace.form import COLLECTIVE, KERNEL, TRANSFER
from irc.trace.rows import DID, WAITED, Recorded, Row

CALL = "call"
EXPOSED = (COLLECTIVE, TRANSFER)
BATCH = "batch"
"""What is computed of the whole batch: sums over it, and the norm of gradients."""
OF_BATCH = ("sums", "shares", "norm")


class Times(NamedTuple):
    """What a rank took.

    Attributes:
        functions: their compute.
        actions: of each function, in the order of their first run.
        exposed_s: waits for collectives and messages.
    """

    functions: tuple[FunctionTime, ...]
    actions: tuple[ActionTime, ...]
    exposed_s: float


class _Function(NamedTuple):
    """A function that a rank runs: how often in a whole step, and its plans."""

    runs: int
    plans: tuple[Plan, ...]


def times_of(plan: LoadedPlan | PartsPlan, rank: int, noted: Recorded) -> Times:
    """Read the notes of a step that one rank ran.

    Args:
        plan: the plan.
        rank: which ran.
        noted: what it noted, each launch by itself.
    """
    known, named = _functions(plan, rank)
    seconds, runs = dict[str, float](), Counter[str]()
    rows: dict[tuple[str, str, str], list[Row]] = {}
    for name, own in _by_function(noted, named):
        runs[name] += 1
        for row in own:
            seconds[name] = seconds.get(name, 0.0) + row.end_s - row.begin_s
            rows.setdefault((name, row.label.id, row.label.name), []).append(row)
    functions = tuple(
        FunctionTime(
            name,
            each.runs,
            _predicted(each.plans),
            seconds[name] / runs[name] if runs[name] else None,
        )
        for name, each in known.items()
    )
    prices = {name: _prices(each.plans) for name, each in known.items()}
    actions = tuple(
        ActionTime(
            function,
            number,
            name,
            len(own),
            prices.get(function, {}).get((number, name)),
            sum(row.end_s - row.begin_s for row in own) / len(own),
            own[0].label.num_bytes,
        )
        for (function, number, name), own in rows.items()
    )
    waits = (row for row in noted.rows if row.form == WAITED and row.kind in EXPOSED)
    return Times(functions, actions, sum(row.end_s - row.begin_s for row in waits))


def _functions(
    plan: LoadedPlan | PartsPlan, rank: int
) -> tuple[dict[str, _Function], Mapping[str, str]]:
    """Return the functions of a rank by name, and by label of their runs the name."""
    if isinstance(plan, LoadedPlan):
        return {CALL: _Function(1, (plan.plan,))}, {}
    place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
    stages, functions, named = plan.parts_at(place), dict[str, _Function](), dict[str, str]()
    for event in plan.tapes[place].events:
        if event.what == "run":
            action = event.action
            kind = plan.wiring.kind(action.kind, action.micro_batch)
            name = f"{action.stage}{kind}"
            own = plan.parts[stages[action.stage]][kind].plan
            functions[name] = _Function(
                functions[name].runs + 1 if name in functions else 1, (own,)
            )
            named[str(action)] = name
    for stage, part in stages.items():
        if "step" in plan.parts[part]:
            name = f"{stage}{UPDATE}"
            functions[name] = _Function(1, (plan.parts[part]["step"].plan,))
            named[name] = name
    each = [plan.parts[part] for part in dict.fromkeys(stages.values())]
    own = tuple(
        loaded.plan for part in each for k, loaded in part.items() if k.startswith(OF_BATCH)
    )
    if own:
        functions[BATCH] = _Function(1, own)
    return functions, named


def _by_function(noted: Recorded, named: Mapping[str, str]) -> Iterator[tuple[str, list[Row]]]:
    """Yield each run of a function with what it computed: its own row comes behind them."""
    own, others = list[Row](), list[Row]()
    for row in noted.rows:
        if row.form == DID and row.kind == KERNEL:
            (others if named and row.where.stage is None else own).append(row)
        elif row.kind == "function" and row.label.name in named:
            yield named[row.label.name], own
            own = []
    if not named:
        yield CALL, own
    elif others:
        yield BATCH, others


def _predicted(plans: tuple[Plan, ...]) -> float | None:
    """Return the seconds of compute of some plans; None where one has no price."""
    every = [
        step.seconds
        for plan in plans
        for _, step in steps(plan)
        if not isinstance(step, Start | Wait)
    ]
    known = [seconds for seconds in every if seconds is not None]
    return sum(known) if len(known) == len(every) else None


def _prices(plans: tuple[Plan, ...]) -> dict[tuple[str, str], float | None]:
    prices: dict[tuple[str, str], float | None] = {}
    for plan in plans:
        labels = Labels(plan)
        for _, step in steps(plan):
            if not isinstance(step, Start | Wait):
                label = labels(step)
                prices[label.id, label.name] = step.seconds
    return prices

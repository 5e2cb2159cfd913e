"""``--why-not``: what the plan would be, had the user pinned a placement that it does not have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.constraints.pins import Statement, parse_constraints, parse_pattern
from irc.dialects.builder import arguments, entry
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.errors import IrcError
from irc.logs import PROGRESS
from irc.report.diff import Changes, placement_changes, transition_lines
from irc.report.evidence import Evidence
from irc.report.table import counted, pairs, percent, seconds, signed, size
from irc.search.facts import LOADED
from irc.sharding.mesh import mesh_of
from irc.sharding.shards import local_shape

PlanAgain: TypeAlias = Callable[[ModuleOp, Mapping[str, Any]], None]
"""Runs auto-shard with the given options on a module, in place."""

ANSWERS = ("sharding-infeasible", "mesh-axis-indivisible")
"""Errors that say why a placement cannot be: they are the answer."""

OPTIONS = "irc.auto_shard"


@dataclass(frozen=True)
class Cost:
    """What a choice costs by the search's prices, before fusion."""

    total_s: float
    compute_s: float
    bytes_held: int

    @property
    def communication_s(self) -> float:
        """Boxings."""
        return self.total_s - self.compute_s


@dataclass(frozen=True)
class WhyNot:
    """The answer.

    Attributes:
        reason: why it cannot be; empty where it can.
        chosen, pinned: what the plan costs, and what it would.
        changes: what else would change.
    """

    question: str
    reason: tuple[str, ...]
    chosen: Cost | None = None
    pinned: Cost | None = None
    changes: Changes | None = None


def why_not(
    evidence: Evidence,
    target: str,
    placement: str,
    plan_again: PlanAgain,
    *,
    placements: str = "",
) -> WhyNot:
    """Plan again with one more pin.

    Args:
        evidence: the plan.
        target: a glob of op ids, or of names of arguments.
        placement: the placement of the result, or of the argument.
        plan_again: runs auto-shard.
        placements: the notation of the changes, as :func:`irc.report.notation.written` has it.

    Raises:
        IrcError: ``option-value`` for a plan without a search; what a pin can raise.
    """
    options = _options(evidence)
    pattern = parse_pattern(placement)
    kind = "" if _is_argument(evidence, target) else "op "
    old = str(options.get("pins", ""))
    # It holds against whatever the user had pinned.
    highest = max((s.priority for s in parse_constraints(old)), default=0)
    pin = f'pin {kind}"{target}" = {pattern} priority {highest + 1}'
    question = f"{kind}{target} = {pattern}"
    now = evidence.before("auto-shard")
    PROGRESS.info("placements as they are")
    plan_again(now, options)
    then = evidence.before("auto-shard")
    PROGRESS.info("placements with the pin")
    try:
        plan_again(then, {**options, "pins": f"{old}\n{pin}"})
    except IrcError as error:
        if error.code not in ANSWERS:
            raise
        notes = [note for note in error.because if pin not in note and question not in note]
        return WhyNot(question, tuple(filter(None, (error.message, *notes, error.help))))
    return WhyNot(question, (), _cost(now), _cost(then), placement_changes(now, then, placements))


def write(answer: WhyNot) -> str:
    """Lay out the answer."""
    if answer.chosen is None or answer.pinned is None or answer.changes is None:
        rows = [("infeasible" if i == 0 else "", text) for i, text in enumerate(answer.reason)]
        return "\n".join([answer.question, *("  " + line for line in pairs(rows))])
    more = answer.pinned.total_s - answer.chosen.total_s
    if not answer.changes.num_ops and not answer.changes.arguments:
        return f"{answer.question}\n  it is so already"
    rows = [
        ("costs", _costs(answer.chosen, answer.pinned, more)),
        ("", "by the search's prices: compute and communication added up, before fusion"),
    ]
    held = answer.pinned.bytes_held - answer.chosen.bytes_held
    if held:
        rows.append(("memory", f"a rank holds {size(abs(held))} {'more' if held > 0 else 'less'}"))
    changes = answer.changes
    rows.append(
        ("changes", f"{counted(changes.num_ops, 'op')}, {changes.num_unchanged} stay as they are")
    )
    lines = [answer.question, *("  " + line for line in pairs(rows))]
    lines += ["  " + line for line in transition_lines(changes.ops, "op")]
    return "\n".join([*lines, *("  " + t for t in transition_lines(changes.arguments, "argument"))])


def _costs(chosen: Cost, pinned: Cost, more: float) -> str:
    if abs(more) < 1e-12:
        return f"nothing: another plan of {seconds(chosen.total_s)} has it"
    parts = (
        f"compute {signed(pinned.compute_s - chosen.compute_s)}",
        f"communication {signed(pinned.communication_s - chosen.communication_s)}",
    )
    return (
        f"{signed(more)} on {seconds(chosen.total_s)} ({percent(more, chosen.total_s)}): "
        + ", ".join(parts)
    )


def _options(evidence: Evidence) -> dict[str, Any]:
    if "auto-shard" not in evidence.passes:
        raise IrcError(
            "option-value",
            "the plan is for one device, where nothing has a placement",
            help="compile it with --mesh",
        )
    attr = evidence.after("auto-shard").attributes.get(OPTIONS)
    if not isinstance(attr, StringAttr):
        raise IrcError(
            "plan-corrupt",
            f"the plan does not say how it was searched: its IR has no {OPTIONS}",
            help="compile the model again with this irc",
        )
    try:
        options: dict[str, Any] = dict(json.loads(attr.data))
    except (ValueError, TypeError, RecursionError):
        raise IrcError("plan-corrupt", f"{OPTIONS} is not a JSON object") from None
    return options


def _is_argument(evidence: Evidence, target: str) -> bool:
    statement = Statement("pin", "argument", target, parse_pattern("*"))
    names = [name for _, name, _ in arguments(entry(evidence.logical))]
    return any(map(statement.matches, names))


def _cost(module: ModuleOp) -> Cost:
    attr = module.attributes["irc.plan_cost"]
    assert isinstance(attr, StringAttr)
    plan_cost = json.loads(attr.data)
    compute = sum(float(row["seconds"]) * int(row["count"]) for row in plan_cost["ops"])
    return Cost(float(plan_cost["added_up_s"]), compute, _bytes_held(module))


def _bytes_held(module: ModuleOp) -> int:
    """Return the bytes of parameters, buffers and constants that the first rank holds."""
    mesh = mesh_of(module)
    return sum(
        prod(local_shape(value.type.static_shape(), value.type.placement, mesh))
        * ITEM_BYTES[value.type.dtype]
        for role, _, value in arguments(entry(module))
        if role in LOADED and isinstance(value.type, TensorType) and value.type.placement
    )

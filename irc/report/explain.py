"""``irc explain plan``: what was decided, what it costs, and what it was held against.

`irc.report.facts` collects what the plan folder holds, here it is laid out; ``--json`` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from irc.dialects.placement import Mesh
from irc.errors import IrcError, did_you_mean
from irc.report.evidence import Evidence
from irc.report.facts import Explanation, gather
from irc.report.groups import Group
from irc.report.notation import DTENSOR, NOTATIONS, in_dtensor
from irc.report.ops import OpRow
from irc.report.table import counted, pairs, percent, seconds, signed, size, table
from irc.report.timing import ActionRow, Split

SHOWN = 12
"""Rows of a long table; --op and --json show all."""


def explain_plan(
    folder: str | Path,
    *,
    op: str = "",
    fusion: bool = False,
    as_json: bool = False,
    placements: str = "",
) -> str:
    """Explain a plan from its folder.

    Args:
        folder: the plan.
        op: an id or a glob of ids (``b0n14``, ``block_0/*``): explain these ops only.
        fusion: explain the fusion groups only.
        as_json: print all facts as JSON.
        placements: the notation that they are shown in, ``oneflow`` or ``dtensor``; by default
            OneFlow's, and those of arguments in both.

    Raises:
        IrcError: for a folder that is no plan, and for an op that the plan does not have.
    """
    evidence = Evidence.of(folder)
    explanation = gather(evidence)
    if placements == DTENSOR:
        explanation = _in_dtensor(explanation, evidence.mesh)
    if op:
        rows = _matching(explanation.ops, op)
        if as_json:
            return _json([asdict(row) for row in rows])
        return "\n\n".join(_op(row) for row in rows)
    if fusion:
        if as_json:
            return _json([asdict(group) for group in explanation.fusion])
        return "\n".join(_fusion(explanation.fusion, all_ops=True)) or "the plan fuses nothing"
    return _json(asdict(explanation)) if as_json else write(explanation, placements)


def _in_dtensor(explanation: Explanation, mesh: Mesh) -> Explanation:
    """Write the signatures of ops and the changes of placements as DTensor does."""

    def told(row: OpRow) -> OpRow:
        other = row.runner_up
        if other is not None:
            other = replace(other, signature=in_dtensor(other.signature, mesh))
        return replace(row, signature=in_dtensor(row.signature, mesh), runner_up=other)

    return replace(
        explanation,
        ops=[told(row) for row in explanation.ops],
        fallbacks=[told(row) for row in explanation.fallbacks],
        collectives=[
            replace(c, change=in_dtensor(c.change, mesh)) for c in explanation.collectives
        ],
    )


def write(explanation: Explanation, placements: str = "") -> str:
    """Lay out the facts for a terminal, placements in a notation."""
    sections = [
        _heading(explanation),
        _section("Arguments", _arguments(explanation, placements)),
        _section("Where the time goes", _actions(explanation.actions)),
        _section("Collectives", _collectives(explanation)),
    ]
    if explanation.mesh:
        sections.append(_section("Signatures, the dearest ops first", _ops(explanation.ops)))
    sections.append(_section("Planned by fall-back", _fallbacks(explanation)))
    if explanation.fusion:
        sections.append(_section("Fusion groups", _fusion(explanation.fusion)))
    return "\n\n".join(sections)


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *lines])


def _heading(explanation: Explanation) -> str:
    ranks = 1
    for axis_size in explanation.mesh.values():
        ranks *= axis_size
    mesh = ", ".join(f"{axis}={n}" for axis, n in explanation.mesh.items()) or "one device"
    rows = [
        ("plan", f"{explanation.hash[:16]}, kernels for {explanation.backend}"),
        ("mesh", f"{mesh} ({counted(ranks, 'rank')}), priced for {explanation.cluster}"),
    ]
    rows += [("idle", line) for line in explanation.idle]
    if explanation.blocks:
        calls = ", ".join(
            f"@{name} runs {counted(n, 'time')}" for name, n in explanation.blocks.items()
        )
        rows.append(("blocks", calls))
    rows += [("time", _time(explanation.time)), ("memory", _memory(explanation))]
    if explanation.search:
        if "peak_at" in explanation.search:
            rows.append(("peak", _peak(explanation.search)))
        rows.append(("search", _search(explanation.search, explanation.time.total_s)))
    if len(explanation.mesh) > 1:
        rows.append(("notation", f"a placement says ({', '.join(explanation.mesh)})"))
    return "\n".join(pairs(rows))


def _time(time: Split) -> str:
    text = f"{seconds(time.total_s)} a call: compute {seconds(time.compute_s)}"
    if not time.communication_s:
        return f"{text}, no communication"
    hidden = time.communication_s - time.exposed_s
    return (
        f"{text}, communication {seconds(time.communication_s)}"
        f" ({seconds(time.exposed_s)} exposed, {seconds(max(0.0, hidden))} behind compute)"
    )


def _memory(explanation: Explanation) -> str:
    return (
        f"a rank holds {size(explanation.weight_bytes)} of weights and "
        f"{size(explanation.arena_bytes)} of arena"
        f" (at least {size(explanation.arena_lower_bytes)})"
    )


def _peak(search: dict[str, Any]) -> str:
    """Say what a device holds when it holds most, as the search counts it: before fusion."""
    parts: dict[str, float] = search.get("peak_bytes", {})
    held = ", ".join(f"{name} {size(part)}" for name, part in parts.items() if part)
    limit = search.get("bytes_limit")
    bound = f" of {size(limit)} allowed" if limit else ""
    return f"{size(search['bytes_held'])}{bound} at {search['peak_at']}, before fusion: {held}"


def _search(search: dict[str, Any], predicted_s: float | None) -> str:
    gap = float(search.get("gap", 0.0))
    proof = "proven optimal" if gap <= 1e-6 else f"at most {gap:.2%} above the optimum"
    objective, saved = search.get("objective_s"), search.get("saved_by_cuts_s", 0.0)
    added_up = search.get("added_up_s", objective)
    cut = ""
    if objective and saved:
        cut = f"{seconds(objective)} less {seconds(saved)} that cuts save, "
        objective -= saved
    apart = f" ({_apart(objective / predicted_s - 1)})" if objective and predicted_s else ""
    return (
        f"objective {cut}{seconds(objective)}{apart}; compute and communication added up "
        f"{seconds(added_up)} before fusion, {proof}"
        f" ({search.get('columns', 0):,} columns, {counted(search.get('nodes', 0), 'node')})"
    )


def _apart(part: float) -> str:
    """Say how far the search's objective is from what is predicted."""
    if abs(part) < 5e-4:
        return "as predicted"
    return f"{abs(part):.1%} {'above' if part > 0 else 'below'} what is predicted"


def _arguments(explanation: Explanation, placements: str) -> list[str]:
    shown = [name for name in NOTATIONS if placements in ("", name)] if explanation.mesh else []
    heads = ("name", "role", "shape", *(NOTATIONS[name] for name in shown), "a rank holds")
    rows = [
        (
            row.names,
            row.role,
            f"{row.dtype}{list(row.shape)}",
            *(getattr(row, name) for name in shown),
            size(row.bytes_per_rank),
        )
        for row in explanation.arguments
    ]
    return table(heads, rows, right="lll" + "l" * len(shown) + "r")


def _actions(actions: Sequence[ActionRow]) -> list[str]:
    timed = [row for row in actions if row.seconds]
    total = sum(row.seconds or 0.0 for row in timed)
    rows = [
        (
            seconds(row.seconds),
            percent(row.seconds or 0.0, total),
            str(row.runs),
            row.what,
            _few(row.ids),
            row.loc,
        )
        for row in timed[:SHOWN]
    ]
    lines = table(("time", "share", "runs", "what", "ops", "source"), rows, right="rrr")
    return lines + _rest(len(timed), SHOWN, "kinds of action")


def _collectives(explanation: Explanation) -> list[str]:
    if not explanation.collectives:
        return ["  none"]
    rows = [
        (
            seconds(c.seconds),
            size(c.bytes),
            str(c.runs),
            f"{c.kind}[{c.axis}]",
            c.dtype,
            c.change,
            c.why,
        )
        for c in explanation.collectives
    ]
    heads = ("time", "bytes", "runs", "collective", "dtype", "boxing", "why")
    return table(heads, rows, right="rrr")


def _ops(ops: Sequence[OpRow]) -> list[str]:
    # Constants and views have a price only so that the search does not choose at random.
    ranked = sorted((row for row in ops if row.flops), key=lambda row: -row.total_s)
    rows = [
        (
            seconds(row.total_s),
            str(row.count),
            row.name,
            row.what,
            row.signature,
            "+" + seconds(row.runner_up.more_s) if row.runner_up else "",
            row.runner_up.signature if row.runner_up else "no other signature",
        )
        for row in ranked[:SHOWN]
    ]
    heads = ("compute", "runs", "op", "what", "chosen", "instead", "the runner-up")
    lines = table(heads, rows, right="rrlllr")
    return lines + _rest(len(ranked), SHOWN, "ops", "; --op ID explains one")


def _op(row: OpRow) -> str:
    rows = [
        ("source", row.loc),
        ("result", f"{list(row.shape)}, {counted(row.count, 'run')} a call"),
    ]
    if row.signature:
        rows.append(("chosen", row.signature))
    cost = f"compute {seconds(row.compute_s)}"
    if row.communication_s:
        cost += f", communication of its operands {seconds(row.communication_s)}"
    rows.append(("cost", f"{cost}, {row.flops:,} FLOPs; each run"))
    if row.runner_up is not None:
        rows += [
            ("runner-up", row.runner_up.signature),
            ("", _difference(row)),
        ]
    elif row.signature:
        rows.append(("runner-up", "none: no other signature fits its neighbours"))
    return "\n".join([f"{row.name}  {row.what}", *("  " + line for line in pairs(rows))])


def _difference(row: OpRow) -> str:
    other = row.runner_up
    assert other is not None
    text = f"{seconds(other.more_s)} more in all"
    if other.compute_s is None or other.communication_s is None:
        return text
    parts = f"compute {signed(other.compute_s)}, communication {signed(other.communication_s)}"
    return f"{text}: {parts}"


def _fallbacks(explanation: Explanation) -> list[str]:
    if not explanation.fallbacks:
        return ["  none: every op has signatures of its own"]
    total = sum(row.flops * row.count for row in explanation.ops)
    rows = [
        (
            row.name,
            row.what,
            str(row.count),
            percent(row.flops * row.count, total),
            seconds(row.total_s),
            ", ".join(row.assumed) or "no signature but replicated",
            row.loc,
        )
        for row in explanation.fallbacks
    ]
    heads = ("op", "what", "runs", "FLOPs", "compute", "not declared", "source")
    return table(heads, rows, right="llrrr")


def _fusion(groups: Sequence[Group], *, all_ops: bool = False) -> list[str]:
    if all_ops:
        return [
            line
            for group in groups
            for line in (
                f"{group.id}  {group.kind}, {counted(group.runs, 'run')}, {group.loc}",
                f"  why  {group.why}",
                *(f"       {op}" for op in group.ops),
            )
        ]
    several = [group for group in groups if len(group.ops) > 1]
    if not several:
        return ["  none: each kernel computes one op"]
    rows = [(g.id, g.kind, str(g.runs), str(len(g.ops)), g.why, g.loc) for g in several[:SHOWN]]
    lines = table(("group", "kind", "runs", "ops", "why", "source"), rows, right="llrr")
    return lines + _rest(len(several), SHOWN, "groups", "; --fusion shows all")


def _rest(number: int, shown: int, noun: str, hint: str = "; --json has all") -> list[str]:
    return [f"  ... and {number - shown} more {noun}{hint}"] if number > shown else []


def _few(ids: Sequence[str]) -> str:
    return " ".join(ids[:3]) + (f" +{len(ids) - 3}" if len(ids) > 3 else "")


def _matching(rows: Sequence[OpRow], pattern: str) -> list[OpRow]:
    matching = [
        row
        for row in rows
        if fnmatchcase(row.name, pattern) or fnmatchcase(row.name.partition("/")[2], pattern)
    ]
    if not matching:
        ids = [name for row in rows for name in (row.name, row.name.partition("/")[2])]
        raise IrcError(
            "option-value", f"the plan has no op '{pattern}'", help=did_you_mean(pattern, ids)
        )
    return matching


def _json(value: object) -> str:
    return json.dumps(value, indent=1)

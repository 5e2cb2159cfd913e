"""The difference of two configurations as text: which decision is worth how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from irc.report.table import signed, table
from irc.search.differences import Decision, Difference


def as_plain(difference: Difference) -> dict[str, object]:
    """Return a difference as plain data; times are in seconds, ``step_s`` of each adds up."""
    decisions: list[dict[str, object]] = []
    for own in difference.decisions:
        plain = asdict(own)
        plain["step_s_after"] = plain.pop("verdict")["step_s"]
        decisions.append(plain)
    return {
        "before": str(difference.before), "after": str(difference.after), "decisions": decisions
    }  # fmt: skip


def difference_lines(difference: Difference) -> list[str]:
    """Write a difference, with its sum in the last line."""
    rows = [_row(own.what, own.before, own.after, [own]) for own in difference.decisions]
    rows.append(_row("in all", "", "", difference.decisions))
    heads = ("decision", "stated", "chosen", "step", "compute", "bubble", "exposed")
    return [
        f"from {difference.before} to {difference.after}",
        *table(heads, rows, right="lllrrrr"),
    ]


def _row(what: str, before: str, after: str, decisions: Sequence[Decision]) -> tuple[str, ...]:
    parts = [(own.step_s, own.compute_s, own.bubble_s, own.exposed_s) for own in decisions]
    sums = [sum(column) for column in zip(*parts, strict=True)] or [0.0] * 4
    return (what, before, after, *map(signed, sums))

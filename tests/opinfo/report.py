"""The tables of entries, and the line that sums one up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tests.opinfo.expected import LEFT
from tests.opinfo.ways import Way

Table = dict[str, list[Any]]
"""Outcomes of an entry's samples, by its name."""

ORDER = ("failing", "left", "fall-back", "native")
"""Verdicts, the worst first: an entry has that of its worst sample."""


def verdict(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """Return an entry's verdict; one without samples is native, there is nothing to compile."""
    verdicts = {outcome["verdict"] for outcome in outcomes}
    return next((each for each in ORDER if each in verdicts), "native")


def reason(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """Return the commonest reason for the verdict."""
    worst = verdict(outcomes)
    reasons = Counter(o["reason"] for o in outcomes if o["verdict"] == worst and o["reason"])
    return reasons.most_common(1)[0][0] if reasons else ""


def line(name: str, outcomes: Sequence[Mapping[str, Any]]) -> str:
    """Return an entry's line of the table."""
    worst = verdict(outcomes)
    bad = sum(o["verdict"] == worst for o in outcomes)
    count = f"{bad}/{len(outcomes)}" if bad != len(outcomes) else f"{len(outcomes)}"
    return f"{name:45} {worst:9} {count:>9}  {reason(outcomes)}".rstrip()


def unexpected(table: Mapping[str, Sequence[Mapping[str, Any]]], way: Way) -> list[str]:
    """Return a line for each entry that fails, or that capture leaves though no table says so."""
    lines = [f"{way}: {n} fails: {reason(o)}" for n, o in table.items() if verdict(o) == "failing"]
    if way.through == "torch.compile":
        lines += [
            f"{way}: {n} is left by torch's capture, and not in LEFT of tests/opinfo/expected.py: "
            f"{reason(o)}"
            for n, o in table.items()
            if verdict(o) == "left" and n not in LEFT
        ]
    return lines


def counts(tables: Mapping[Way, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    """Return one table of all ways, as Markdown: entries by verdict."""
    rows = [f"| {'way':30} | entries | {' | '.join(reversed(ORDER))} |", "|---|" + "---|" * 5]
    for way, table in tables.items():
        verdicts = Counter(map(verdict, table.values()))
        numbers = " | ".join(f"{verdicts[each]:>{len(each)}}" for each in reversed(ORDER))
        rows.append(f"| {way!s:30} | {len(table):7} | {numbers} |")
    left = {name for table in tables.values() for name, o in table.items() if verdict(o) == "left"}
    return "\n".join([*rows, f"{len(left)} entries are left by capture in some way"])


def summary(table: Mapping[str, Sequence[Mapping[str, Any]]], way: Way) -> str:
    """Return the last line: entries by verdict, samples, and what a compilation takes."""
    counts = Counter(verdict(outcomes) for outcomes in table.values())
    samples = Counter(o["verdict"] for outcomes in table.values() for o in outcomes)
    times = [o["compile_ms"] for outcomes in table.values() for o in outcomes if o["compile_ms"]]
    middle = f", {median(times):.0f} ms a compilation (median)" if times else ""
    return (
        f"opinfo {way}: {len(table)} entries: {counts['native']} native, "
        f"{counts['fall-back']} fall-back, {counts['left']} left by torch's capture, "
        f"{counts['failing']} failing; {sum(samples.values())} samples, "
        f"{samples['failing']} failing{middle}"
    )

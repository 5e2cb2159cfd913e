"""The kernels of a plan by their share of the time, with the text that is compiled."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from irc.plan.load import LoadedPlan
from irc.plan.schema import Call, Plan, Start, Step, Wait
from irc.report.html.element import Child, Element, bar, code, e, rest, section, table
from irc.report.table import counted, percent, seconds, size
from irc.simulate.plan import op_of, steps

SHOWN = 40
MOST_SOURCES = 12
MOST_LINES = 160
MOST_CHARACTERS = 12_000
"""Of the text of a kernel that is shown, in lines and in all."""


@dataclass
class Ran:
    """A kernel, or an op that a library runs.

    Attributes:
        name: without its number in the plan.
        runs: in a call or step.
        seconds: of all runs; of runs that nothing prices, nothing.
        lines: of the model.
        source: the text of the kernel; empty of an op of a library.
        file: its name in the plan.
    """

    name: str
    is_kernel: bool
    runs: int = 0
    seconds: float = 0.0
    lines: dict[str, None] = field(default_factory=dict[str, None])
    source: str = ""
    file: str = ""


def ran(plans: Sequence[tuple[LoadedPlan, int]]) -> list[Ran]:
    """Return what runs, the dearest first; kernels of one text are one, whatever their number.

    Args:
        plans: each with how often it runs.
    """
    rows: dict[tuple[str, str], Ran] = {}
    for loaded, runs in plans:
        texts = _texts(loaded)
        plain = {
            k.name: _plain(k.name, texts.get(k.name, ("", ""))[1]) for k in loaded.plan.kernels
        }
        for _, step in steps(loaded.plan):
            if isinstance(step, Start | Wait):
                continue
            name, digest = _named(loaded.plan, step, plain)
            own = rows.setdefault((name, digest), Ran(name, isinstance(step, Call)))
            own.runs += runs
            own.seconds += runs * (step.seconds or 0.0)
            if step.loc != "unknown":
                own.lines[step.loc] = None
            if isinstance(step, Call) and not own.file:
                own.file, own.source = texts.get(loaded.plan.kernels[step.kernel].name, ("", ""))
    return sorted(rows.values(), key=lambda row: (-row.seconds, row.name))


def _texts(loaded: LoadedPlan) -> dict[str, tuple[str, str]]:
    """Return file and text of each kernel; none where the plan is priced alone."""
    return {
        PurePosixPath(name).stem: (name, text.decode("utf-8", "replace"))
        for name, text in loaded.texts.items()
        if name.startswith("kernels/")
    }


def _plain(name: str, text: str) -> tuple[str, str]:
    """Return the name without its number, and a digest of its text without that as well."""
    plain = re.sub(r"^k[0-9]+_", "", name)
    return plain, hashlib.sha256(text.replace(name, plain).encode()).hexdigest()


def _named(plan: Plan, step: Step, plain: dict[str, tuple[str, str]]) -> tuple[str, str]:
    if isinstance(step, Call):
        return plain[plan.kernels[step.kernel].name]
    target = getattr(step, "attrs", {}).get("target", "")
    return str(target) or op_of(plan, step), ""


def kernels_section(rows: Sequence[Ran], unit: str, backend: str) -> Element:
    """Return the section."""
    total = sum(row.seconds for row in rows)
    kernels = [row for row in rows if row.is_kernel]
    lead = (
        f"{counted(len(kernels), 'kernel')} for {backend} and "
        f"{counted(len(rows) - len(kernels), 'op')} of libraries or copies, by their part of the "
        f"compute of a {unit}, {seconds(total)}."
    )
    sources, cells = 0, list[tuple[Child, ...]]()
    for row in rows[:SHOWN]:
        shown = _source(row) if row.source and sources < MOST_SOURCES else None
        sources += shown is not None
        cells.append(
            (
                e("div", code(row.name), shown),
                _lines(list(row.lines)),
                f"{row.runs:,}",
                seconds(row.seconds),
                percent(row.seconds, total),
                bar(row.seconds, rows[0].seconds, "compute"),
            )
        )
    heads = ("kernel", "lines of the model", "runs", "time", "share", "")
    body = table(heads, cells, right="llrrrl", label="Kernels by their share of the time")
    left = None
    if sum(bool(row.source) for row in rows) > sources:
        text = f"The text of the {sources} dearest is here; kernels/ in the plan's folder has all."
        left = e("p", text, class_="note")
    return section("kernels", "Kernels", lead, body, rest(len(rows), SHOWN, "row"), left)


def _lines(lines: Sequence[str]) -> Child:
    shown: list[Child] = [e("div", code(line)) for line in lines[:3]]
    if len(lines) > 3:
        shown.append(e("div", f"and {len(lines) - 3} more", class_="note"))
    return shown


def _source(row: Ran) -> Element:
    lines = row.source.splitlines()
    text = "\n".join(lines[:MOST_LINES])[:MOST_CHARACTERS]
    cut = None
    if len(text) < len("\n".join(lines)):
        whole = f"{counted(len(lines), 'line')}, {size(len(row.source.encode()))}"
        cut = e("p", f"The beginning of {whole}: {row.file} has the rest.", class_="note")
    block = e("pre", code(text), tabindex=0)
    return e("details", e("summary", row.file), block, cut)

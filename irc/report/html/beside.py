"""Another plan beside this one: the figures of both, and which weights lie otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from irc.plan.host import is_host, load_host
from irc.plan.parts_files import is_parts, load_parts
from irc.report.evidence import Evidence
from irc.report.html.element import Element, section, table
from irc.report.html.figures import Figures, figures_of, figures_of_host, figures_of_parts
from irc.report.html.placements_beside import laid_in, placements_beside
from irc.report.parts_facts import gather_parts, simulated_step
from irc.report.table import percent, seconds, size

ROWS: tuple[tuple[str, Callable[[Figures], float | None], Callable[[float], str]], ...] = (
    ("time of a call or step", lambda f: f.seconds, seconds),
    ("tokens or samples a second", lambda f: f.items_per_s, lambda n: f"{n:,.0f}"),
    ("held by the fullest rank", lambda f: float(f.held_bytes), lambda n: size(int(n))),
    ("compute of a rank", lambda f: f.compute_s, seconds),
    ("collectives of a rank", lambda f: f.communication_s, seconds),
    ("compute waits for collectives", lambda f: f.exposed_s, seconds),
    ("ranks wait for other stages", lambda f: f.bubble, lambda share: percent(share, 1.0)),
)


def figures_of_folder(folder: str | Path) -> Figures:
    """Return the figures of a plan of any kind."""
    if is_host(folder):
        return figures_of_host(load_host(folder))
    if is_parts(folder):
        plan = load_parts(folder)
        step = simulated_step(plan)
        return figures_of_parts(plan, gather_parts(plan, step), step)
    return figures_of(Evidence.of(folder))


def beside_section(folder: str | Path, other: str | Path) -> Element:
    """Return the section: what is known of both plans, and the ratio of the second to the first.

    Raises:
        IrcError: errors of either plan's folder.
    """
    own, theirs = figures_of_folder(folder), figures_of_folder(other)
    names = Path(folder).resolve().name, Path(other).resolve().name
    rows = [
        ("mesh", *(f.mesh_text or "one device" for f in (own, theirs)), ""),
        ("priced for", own.cluster, theirs.cluster, ""),
        ("kernels for", own.backend, theirs.backend, ""),
    ]  # fmt: skip
    for name, read, said in ROWS:
        a, b = read(own), read(theirs)
        if a is not None or b is not None:
            ratio = f"{b / a:.2f}" if a and b is not None else ""
            rows.append((name, *("" if x is None else said(x) for x in (a, b)), ratio))
    lead = (
        f"{names[0]} and {names[1]}; the last column is the second by the first."
        " irc diff says what differs in ops and kernels."
    )
    heads = ("", names[0], names[1], "ratio")
    return section(
        "beside", "Beside another plan", lead,
        table(heads, rows, right="lrrr", label="Both plans"),
        placements_beside(laid_in(folder), laid_in(other), names),
    )  # fmt: skip

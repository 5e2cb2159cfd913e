"""The head of a page: what the plan is, in some figures and one sentence."""

from __future__ import annotations

from irc.report.html.element import Child, Element, add, code, definitions, e, key, parts_bar
from irc.report.html.figures import Figures
from irc.report.table import counted, percent, seconds, size

MEMORY_KINDS = ("weight", "prepared", "passed", "arena")


def head(of: Figures, title: str, facts: list[tuple[str, Child]]) -> Element:
    """Return the head.

    Args:
        of: the figures of the plan.
        title: what the plan is called.
        facts: further names and what they are.
    """
    mesh = of.mesh_text
    header = e(
        "header",
        e("p", "irc report", class_="kicker"),
        e("h1", title),
        e("p", sentence(of), class_="lead"),
        e("div", _figures(of), class_="figures"),
        id="plan",
    )
    add(header, time_figure(of))
    add(header, memory_figure(of))
    rows: list[tuple[str, Child]] = [
        ("mesh", f"{mesh or 'one device'} ({counted(of.ranks, 'rank')})"),
        ("priced for", of.cluster + (f", devices {of.device}" if of.device else "")),
        ("kernels for", of.backend),
        *facts,
        ("plan", code(of.hash[:16])),
    ]
    header.append(definitions(rows))
    return header


def sentence(of: Figures) -> str:
    """Say in words what a plan is, and how long it takes."""
    where = f"{counted(of.ranks, 'rank')}" + (f", {of.mesh_text}" if of.mesh else "")
    text = f"A plan of {of.what} for {where} of {of.cluster}."
    if of.seconds is None:
        return f"{text} Values of a call decide what runs, so its time is not predicted."
    text += f" By prediction a {of.unit} takes {seconds(of.seconds)}"
    if of.exposed_s is None:
        return f"{text}."
    waits = percent(of.exposed_s, of.seconds)
    text += (
        f", of which compute waits for collectives in {waits}"
        if of.exposed_s
        else (", and compute never waits for collectives")
    )
    return text + (f" and for other stages in {percent(of.bubble, 1.0)}." if of.bubble else ".")


def _figures(of: Figures) -> list[Element]:
    figures = [
        _figure(f"{of.unit}, predicted", seconds(of.seconds) if of.seconds else "not predicted")
    ]
    if of.items_per_s is not None and of.items is not None:
        figures.append(_figure(f"{of.items[1]} a second", _short(of.items_per_s)))
    share = of.held_bytes / of.capacity if of.capacity else None
    of_what = f"of {size(of.capacity)} a rank" if of.capacity else "held by the fullest rank"
    figures.append(
        _figure(of_what, size(of.held_bytes), None if share is None else percent(share, 1))
    )
    if of.exposed_s is not None and of.seconds:
        figures.append(_figure("exposed communication", percent(of.exposed_s, of.seconds)))
    if of.bubble is not None:
        figures.append(_figure("bubble", percent(of.bubble, 1.0)))
    return figures


def _figure(name: str, value: str, beside: str | None = None) -> Element:
    number, _, unit = value.partition(" ")
    return e(
        "div",
        e("span", number, e("small", f" {unit}") if unit else None, class_="value"),
        e("span", name, f" ({beside})" if beside else None, class_="name"),
    )


def _short(number: float) -> str:
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.3g}"


def time_figure(of: Figures) -> Element | None:
    """Draw what a call goes to."""
    if not of.seconds or of.compute_s is None or of.exposed_s is None:
        return None
    compute = min(of.compute_s, of.seconds)
    exposed = max(0.0, of.seconds - compute)
    hidden = max(0.0, (of.communication_s or 0.0) - of.exposed_s)
    bars = [(compute / of.seconds, "compute", f"compute {seconds(compute)}"),
            (exposed / of.seconds, "exposed", f"waits {seconds(exposed)}")]  # fmt: skip
    names = [("compute", f"compute {seconds(of.compute_s)}")]
    if of.communication_s:
        names += [
            ("exposed", f"waits for collectives {seconds(of.exposed_s)}"),
            ("comm", f"collectives behind compute {seconds(hidden)}"),
        ]
    return e("figure", e("figcaption", f"Where a {of.unit} goes"), parts_bar(bars), key(names))


def memory_figure(of: Figures) -> Element | None:
    """Draw what the fullest rank holds, against what its device has."""
    if not of.held_bytes:
        return None
    whole = max(of.capacity or 0, of.held_bytes)
    kinds = dict(zip((name for name, _ in of.memory), MEMORY_KINDS, strict=False))
    bars = [(n / whole, kinds[name], f"{name} {size(n)}") for name, n in of.memory]
    names = [(kinds[name], f"{name} {size(n)}") for name, n in of.memory]
    if of.capacity:
        names.append(("free", f"free {size(max(0, of.capacity - of.held_bytes))}"))
    caption = "Memory of the fullest rank" if of.ranks > 1 else "Memory"
    return e("figure", e("figcaption", caption), parts_bar(bars), key(names))

"""Elements of a page, and what pages share: figures, bars, tables.

A page is a tree of :mod:`xml.etree` that is printed once, so that names of a model cannot become
markup. There is no attribute ``style``: the page's policy allows its one stylesheet by its digest.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

from irc.errors import printable
from irc.report.table import counted

Element: TypeAlias = ET.Element
Child: TypeAlias = "Element | str | Iterable[Child] | None"


def e(tag: str, *children: Child, **attributes: object) -> Element:
    """Return an element.

    Args:
        tag: its name.
        children: elements and text, in order; None is left out.
        attributes: ``_`` in a name stands for ``-``, and one at its end for nothing (``class_``).
            None and False leave an attribute out, True gives one without a value.

    >>> text_of(e("p", "a < ", e("b", "<b>"), class_="note", hidden=False))
    '<p class="note">a &lt; <b>&lt;b&gt;</b></p>'
    """
    element = ET.Element(tag)
    for name, value in attributes.items():
        if value is not None and value is not False:
            text = "" if value is True else _number(value)
            element.set(name.rstrip("_").replace("_", "-"), text)
    add(element, children)
    return element


def add(parent: Element, child: Child) -> None:
    """Append a child."""
    if child is None:
        return
    if isinstance(child, str):
        text = printable(child.expandtabs(4))
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + text
        else:
            parent.text = (parent.text or "") + text
    elif isinstance(child, ET.Element):
        parent.append(child)
    else:
        for each in cast("Iterable[Child]", child):
            add(parent, each)


def _number(value: object) -> str:
    """Print a value of an attribute: of floats, as much as a picture shows."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
    return printable(str(value))


def text_of(element: Element) -> str:
    """Print an element as HTML."""
    return ET.tostring(element, encoding="unicode", method="html")


def section(name: str, title: str, lead: Child, *children: Child) -> Element:
    """Return a section of the page.

    Args:
        name: its anchor.
        title: its heading.
        lead: one paragraph: what is to be seen here.
        children: the rest.
    """
    return e("section", e("h2", title), e("p", lead, class_="lead"), children, id=name)


def table(
    heads: Sequence[Child], rows: Iterable[Sequence[Child]], *, right: str = "", label: str
) -> Element:
    """Return a table that scrolls inside its own box where it is wider than the page.

    Args:
        heads: one for each column.
        rows: their cells.
        right: for each column ``r`` (a number) or ``l``; columns beyond are left-aligned.
        label: what it is, for who cannot see it.
    """
    sides = ["n" if side == "r" else None for side in right.ljust(len(heads), "l")]
    head = e("tr", (e("th", h, class_=s, scope="col") for h, s in zip(heads, sides, strict=True)))
    body = e(
        "tbody",
        (
            e("tr", (e("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)))
            for row in rows
        ),
    )
    return scrolling(e("table", e("thead", head), body), label)


def scrolling(wide: Child, label: str) -> Element:
    """Return a box that scrolls sideways; the keyboard reaches it."""
    return e("div", wide, class_="wide", tabindex=0, role="region", aria_label=label)


def rest(number: int, shown: int, noun: str) -> Element | None:
    """Say how many rows a table leaves out."""
    if number <= shown:
        return None
    return e("p", f"{counted(number - shown, noun)} more: irc explain plan has all.", class_="note")


def bar(part: float, whole: float, kind: str, title: str = "") -> Element:
    """Return a bar of ``part`` in ``whole``; ``kind`` is the class of its colour."""
    share = min(1.0, part / whole) if whole else 0.0
    return parts_bar([(share, kind, title)])


def parts_bar(parts: Iterable[tuple[float, str, str]]) -> Element:
    """Return a bar of several parts: the share of its width, the class of its colour, a title."""
    svg, at = e("svg", class_="bar", aria_hidden="true"), 0.0
    for share, kind, title in parts:
        if share > 0:
            width = f"{100 * max(share, 0.004):.2f}%"
            svg.append(e("rect", e("title", title) if title else None, x=f"{100 * at:.2f}%",
                         width=width, height="100%", class_=kind))  # fmt: skip
        at += share
    return svg


def key(entries: Iterable[tuple[str, str]]) -> Element:
    """Return what the colours of a picture mean: the class of each, and its name."""
    return e(
        "ul",
        (
            e("li", e("svg", e("rect", width="100%", height="100%", class_=kind),
                      class_="swatch", aria_hidden="true"), name)
            for kind, name in entries
        ),
        class_="key",
    )  # fmt: skip


def definitions(rows: Iterable[tuple[str, Child]]) -> Element:
    """Return names and what they are."""
    return e("dl", ((e("dt", name), e("dd", what)) for name, what in rows), class_="facts")


def code(text: str) -> Element:
    """Return text as it stands in a program."""
    return e("code", text)

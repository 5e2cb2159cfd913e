"""Spans of time at the resolution of a picture: what is too short to see is drawn together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from irc.report.table import counted, seconds


@dataclass(frozen=True)
class Span:
    """A part of a row.

    Attributes:
        begin_s, end_s: when it is.
        kind: the class of its colour.
        title: what it is; of several, how many they are.
        text: that stands on it where there is room.
    """

    begin_s: float
    end_s: float
    kind: str
    title: str
    text: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a timeline: a stream of a rank."""

    name: str
    spans: tuple[Span, ...]


MOST_SPANS = 2500
"""Of a picture: each takes about 150 bytes of the page."""


def fitted(rows: Sequence[Row], total_s: float, pixels: int, most: int = MOST_SPANS) -> list[Row]:
    """Return rows of at most so many spans, the finest that there are of so many pixels or fewer.

    Args:
        rows: the spans of each do not overlap, and are in order.
        total_s: what the picture shows.
        pixels: its width.
        most: spans of all rows together; each row keeps one at least.
    """
    columns = pixels
    while True:
        binned_rows = [Row(row.name, tuple(binned(row.spans, total_s / columns))) for row in rows]
        if columns <= 16 or sum(len(row.spans) for row in binned_rows) <= most:
            return binned_rows
        columns //= 2


def binned(spans: Iterable[Span], least_s: float) -> Iterable[Span]:
    """Yield spans as they are that last so long, and shorter neighbours as one.

    What is drawn together begins within one bin of ``least_s``; its colour is that of the kind
    that takes most of it, and it is as long as its parts, so that pictures do not exaggerate.

    >>> spans = [Span(0, 4, "a", "x"), Span(4, 4.1, "a", "y"), Span(4.2, 4.5, "b", "z")]
    >>> [(s.begin_s, round(s.end_s, 6), s.kind) for s in binned(spans, 1.0)]
    [(0, 4, 'a'), (4, 4.4, 'b')]
    """
    if least_s <= 0:
        yield from spans
        return

    def bin_of(numbered: tuple[int, Span]) -> tuple[int, int]:
        number, span = numbered
        long = span.end_s - span.begin_s >= least_s
        return (1, number) if long else (0, int(span.begin_s / least_s))

    for _, group in groupby(enumerate(spans), bin_of):
        own = [span for _, span in group]
        yield own[0] if len(own) == 1 else _joined(own)


def _joined(spans: Sequence[Span]) -> Span:
    by_kind: dict[str, float] = {}
    for span in spans:
        by_kind[span.kind] = by_kind.get(span.kind, 0.0) + span.end_s - span.begin_s
    busy, begin = sum(by_kind.values()), spans[0].begin_s
    kind = max(by_kind, key=lambda name: by_kind[name])
    said = f"{counted(len(spans), 'action')}, {seconds(busy)} from {seconds(begin)}"
    return Span(begin, begin + busy, kind, said)


def overlaid(starts: Iterable[float], ends: Iterable[float]) -> list[tuple[float, float]]:
    """Return the union of intervals, in order."""
    union: list[tuple[float, float]] = []
    for begin, end in sorted(zip(starts, ends, strict=True)):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((begin, end))
    return union

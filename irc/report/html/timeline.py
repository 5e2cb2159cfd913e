"""When ranks do what: their streams over the time of a call or step, to scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, log10

from irc.report.html.element import Element, e, key, scrolling, section
from irc.report.html.spans import MOST_SPANS, Row, Span, fitted
from irc.report.table import seconds, size
from irc.trace.form import (
    BUBBLE,
    COLLECTIVE,
    COMPUTE,
    HOST,
    KERNEL,
    SCHEDULE,
    STRAGGLER,
    TRANSFER,
    TraceEvent,
    track_order,
)

WIDTH, LEFT, RIGHT = 1160, 128, 12
HEIGHT = {"compute": 22, "other": 12}
KINDS = {
    COLLECTIVE: "exposed", TRANSFER: "exposed", STRAGGLER: "exposed", BUBBLE: "bubble",
    HOST: "host",
}  # fmt: skip
PHASES = {"": "compute", "forward": "compute", "backward": "backward", "update": "update"}
NAMES = {
    "compute": "forward", "backward": "backward", "update": "update",
    "comm": "collective or message", "exposed": "compute waits for it",
    "bubble": "no work (bubble)", "host": "host",
}  # fmt: skip


def rows_of(events: Iterable[TraceEvent], prefix: str = "", *, numbered: bool = False) -> list[Row]:
    """Return a row for each track of a rank.

    Args:
        events: of one rank.
        prefix: the name of its row of compute, above its others; empty where one rank is drawn.
        numbered: the number of a micro-batch stands on what computes it.
    """
    tracks: dict[str, list[TraceEvent]] = {}
    for event in events:
        if event.track != SCHEDULE:  # the functions of a stage, whose kernels are drawn
            tracks.setdefault(event.track, []).append(event)
    rows: list[Row] = []
    for track in sorted(tracks, key=track_order):
        own = sorted(tracks[track], key=lambda event: event.begin_s)
        name = prefix if prefix and track == COMPUTE else track
        rows.append(Row(name, tuple(_span(event, numbered=numbered) for event in own)))
    return rows


def _span(event: TraceEvent, *, numbered: bool) -> Span:
    kind = PHASES[event.phase] if event.kind == KERNEL else KINDS.get(event.kind, "comm")
    said = f"{event.label.name} {seconds(event.seconds)}"
    if event.kind in KINDS and event.kind != BUBBLE:
        said = f"waits for {said}"
    if event.where.micro_batch is not None:
        said += f", micro-batch {event.where.micro_batch}"
    if event.label.num_bytes:
        said += f", {size(event.label.num_bytes)}"
    if event.label.line:
        said += f", {event.label.line}"
    number = event.where.micro_batch if numbered and event.kind == KERNEL else None
    text = "" if number is None else str(number)
    return Span(event.begin_s, event.end_s, kind, said, text)


def drawn(rows: Sequence[Row], total_s: float, label: str, most: int = MOST_SPANS) -> Element:
    """Draw rows over a scale of time; they scroll inside their own box."""
    scale = (WIDTH - LEFT - RIGHT) / total_s if total_s else 0.0
    rows = fitted(rows, total_s, WIDTH - LEFT - RIGHT, most)
    svg, y = e("svg", role="img", aria_label=label, class_="timeline"), 24
    svg.append(e("title", label))
    for row in rows:
        main = any(span.kind in ("compute", "backward", "update", "bubble") for span in row.spans)
        height = HEIGHT["compute" if main else "other"]
        svg.append(e("text", row.name, x=LEFT - 10, y=y + height / 2 + 4, class_="end"))
        svg.append(
            e("rect", x=LEFT, y=y, width=WIDTH - LEFT - RIGHT, height=height, class_="track")
        )
        for span in row.spans:
            x, width = LEFT + span.begin_s * scale, (span.end_s - span.begin_s) * scale
            svg.append(
                e("rect", e("title", span.title), x=x, y=y, width=max(width, 0.4), height=height,
                  class_=span.kind)
            )  # fmt: skip
            if span.text and width > 7 * len(span.text) + 4:
                middle = {"x": x + width / 2, "y": y + height / 2 + 4}
                svg.append(e("text", span.text, **middle, class_="inside"))
        y += height + (6 if main else 4)
    for at in ticks(total_s):
        x = LEFT + at * scale
        svg.append(e("line", x1=x, x2=x, y1=18, y2=y, class_="tick"))
        # The last one would stand over the edge.
        anchor = "middle" if x < WIDTH - RIGHT - 20 else "end"
        svg.append(e("text", seconds(at) if at else "0", x=x, y=12, class_=anchor))
    svg.set("viewBox", f"0 0 {WIDTH} {y + 4}")
    kinds = dict.fromkeys(span.kind for row in rows for span in row.spans)
    single = not {"backward", "update"} & set(kinds)
    named = [(k, "compute" if k == "compute" and single else NAMES[k]) for k in NAMES if k in kinds]
    return e("figure", scrolling(svg, label), key(named))


def ticks(total_s: float, most: int = 8) -> list[float]:
    """Return round moments of a scale.

    >>> ticks(0.0035)
    [0.0, 0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.0035]
    """
    if total_s <= 0:
        return [0.0]
    raw = total_s / most
    power = 10.0 ** floor(log10(raw))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= raw * 0.999)
    return [round(i * step, 12) for i in range(int(total_s / step + 1e-9) + 1)]


def timeline_section(
    rows: Sequence[Row], total_s: float, unit: str, more: Iterable[Element] = (), note: str = ""
) -> Element:
    """Return the section.

    Args:
        rows: of the classes of ranks.
        total_s: of a call or step.
        unit: ``call`` or ``step``.
        more: what opens the inside of something.
        note: of which ranks are drawn.
    """
    lead = (
        f"A predicted {unit}, by the streams of a rank, to scale: {seconds(total_s)} from left to"
        f" right. {note} Point at a span for what it is; spans that are too short to see are drawn"
        " together."
    )
    return section("timeline", "Timeline", lead, drawn(rows, total_s, f"Streams of a {unit}"), more)

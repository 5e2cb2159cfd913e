"""What a rank holds while a call or step runs, and what it is when that is most."""

from __future__ import annotations

from collections.abc import Sequence

from irc.report.html.element import Element, bar, code, e, key, rest, scrolling, section, table
from irc.report.html.timeline import LEFT, RIGHT, WIDTH, ticks
from irc.report.table import seconds, size
from irc.report.tenants import Tenant

SHOWN = 12
HEIGHT = 200
BASE = 26


def memory_section(
    held: Sequence[tuple[float, float]],
    base: float,
    total_s: float,
    lead: str,
    tenants: Element | None,
    capacity: int | None = None,
    name: str = "memory",
) -> Element:
    """Return the section.

    Args:
        held: bytes that come and go, from a moment on, in order.
        base: bytes that are held all the time.
        total_s: of a call or step.
        lead: what it says.
        tenants: what is held at the worst moment.
        capacity: what the device has; drawn where the rank comes near to it.
        name: its anchor.
    """
    picture = _picture(held, base, total_s, capacity) if total_s else None
    return section(name, "Memory over time", lead, picture, tenants)


def _picture(
    held: Sequence[tuple[float, float]], base: float, total_s: float, capacity: int | None
) -> Element:
    """Draw an area over time: the most of each pixel, on top of what is held all the time."""
    columns = WIDTH - LEFT - RIGHT
    levels, level, position = [0.0] * columns, 0.0, 0
    for column in range(columns):
        end, most = total_s * (column + 1) / columns, level
        while position < len(held) and held[position][0] < end:
            level = held[position][1]
            most, position = max(most, level), position + 1
        levels[column] = most
    top = max(levels, default=0.0) + base
    limit = capacity if capacity and capacity < 2 * top else None
    whole = max(top, limit or 0.0) or 1.0
    scale, floor_y = (HEIGHT - 16) / whole, BASE + HEIGHT

    def y(num_bytes: float) -> float:
        return floor_y - num_bytes * scale

    points = [f"M{LEFT} {y(base):.1f}"]
    before = -1.0
    for column, level in enumerate(levels):
        if level != before:
            points.append(f"H{LEFT + column}V{y(base + level):.1f}")
            before = level
    points.append(f"H{LEFT + columns}V{y(base):.1f}Z")
    svg = e("svg", e("title", "Bytes of a rank over time"), role="img", class_="timeline",
            aria_label="Bytes over time", viewBox=f"0 0 {WIDTH} {floor_y + 6}")  # fmt: skip
    svg.append(e("rect", x=LEFT, y=y(base), width=columns, height=base * scale, class_="weight"))
    svg.append(e("path", d="".join(points), class_="arena"))
    marks = [(top, f"most {size(top)}"), (base, f"always {size(base)}")]
    if limit:
        marks.append((limit, f"device {size(limit)}"))
    taken: list[float] = []
    for num_bytes, text in marks:
        at = y(num_bytes)
        svg.append(e("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="mark"))
        shown = at
        while any(abs(shown - other) < 14 for other in taken):
            shown += 14
        taken.append(shown)
        svg.append(e("text", text, x=LEFT - 10, y=shown + 4, class_="end"))
    for at_s in ticks(total_s):
        x = LEFT + at_s / total_s * columns
        anchor = "middle" if x < WIDTH - RIGHT - 20 else "end"
        svg.append(e("text", seconds(at_s) if at_s else "0", x=x, y=12, class_=anchor))
    names = [("arena", "comes and goes"), ("weight", "held all the time")]
    return e("figure", scrolling(svg, "Bytes of a rank over time"), key(names))


def tenants_table(tenants: Sequence[Tenant], peak: float) -> Element:
    """Return what lies in the arena at the worst moment, the largest first."""
    rows = [
        (
            code(each.what),
            code(f"{each.dtype}{list(each.shape)}"),
            code(each.line or "no line of the model"),
            size(each.num_bytes),
            bar(each.num_bytes, peak, "arena"),
        )
        for each in tenants[:SHOWN]
    ]
    heads = ("value", "type of a rank", "line of the model", "bytes", "")
    body = table(heads, rows, right="lllrl", label="Largest values at the worst moment")
    return e("div", e("h3", "What lies there when most does"), body,
             rest(len(tenants), SHOWN, "value"))  # fmt: skip

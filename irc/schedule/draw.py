"""Pictures of a schedule: text for a terminal, SVG for a page."""

from __future__ import annotations

from html import escape

from irc.schedule.actions import Action
from irc.schedule.timeline import Timeline

COLOURS = {
    "F": "#4c78a8",
    "B": "#e45756",
    "I": "#f2a541",
    "W": "#72b67a",
    "S": "#9d7bb8",
    "T": "#c59bd1",
}
BOTH = "#8c6d62"


def as_text(timeline: Timeline, *, width: int = 100) -> str:
    """Draw a line for each rank, to scale; where it is blank a rank idles.

    An action is its letter and micro-batch where there is room, else its letter.

    >>> from irc.schedule.named import generate
    >>> from irc.schedule.timeline import play
    >>> print(as_text(play(generate("1f1b", ranks=2, micro_batches=2)), width=36))
    rank 0  F0-F1-      B0-----   B1----
    rank 1     F0-B0----F1--B1----
    """
    label = max(len(f"rank {len(timeline.spans) - 1}  "), 8)
    columns = max(width - label, 8)
    scale = columns / timeline.makespan if timeline.makespan else 0.0
    lines: list[str] = []
    for rank, spans in enumerate(timeline.spans):
        cells = [" "] * columns
        for action, (begin, end) in zip(timeline.schedule.ranks[rank], spans, strict=True):
            left, right = round(begin * scale), max(round(end * scale), round(begin * scale) + 1)
            text = _short(action, right - left)
            for i, character in enumerate(text):
                if left + i < columns:
                    cells[left + i] = character
        lines.append(f"{f'rank {rank}':{label}}{''.join(cells)}".rstrip())
    return "\n".join(lines)


def _short(action: Action, width: int) -> str:
    letters = "+".join(f"{part.kind}{part.micro_batch}" for part in action.flat)
    if len(letters) < width or (len(letters) == width and width > 1):
        return letters + "-" * (width - len(letters))
    return action.flat[0].kind.ljust(width, "-")


def as_svg(timeline: Timeline, *, width: int = 1200) -> str:
    """Draw an SVG: a row for each rank, a box for each action with its micro-batch; no scripts.

    Args:
        timeline: a schedule that was played.
        width: in pixels.
    """
    row, gap, left = 26, 4, 64
    height = len(timeline.spans) * (row + gap) + 40
    scale = (width - left - 8) / timeline.makespan if timeline.makespan else 0.0
    title = f"{timeline.schedule.name or 'schedule'}: {len(timeline.spans)} ranks"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="11" aria-label="{escape(title, quote=True)}">',
        f"<title>{escape(title)}</title>",
        "<style>.r{fill:currentColor}.a{stroke:#fff;stroke-width:.5}"
        ".n{fill:#fff;text-anchor:middle}</style>",
    ]
    for rank, spans in enumerate(timeline.spans):
        y = rank * (row + gap) + 4
        out.append(f'<text class="r" x="4" y="{y + 17}">rank {rank}</text>')
        for action, (begin, end) in zip(timeline.schedule.ranks[rank], spans, strict=True):
            x, w = left + begin * scale, max((end - begin) * scale, 0.5)
            colour = BOTH if action.parts else COLOURS.get(action.kind, "#999")
            words = f"{action} of rank {rank}: {begin:.6g} to {end:.6g}"
            out.append(
                f'<rect class="a" x="{x:.2f}" y="{y}" width="{w:.2f}" height="{row}" '
                f'fill="{colour}"><title>{escape(words)}</title></rect>'
            )
            name = "+".join(str(part.micro_batch) for part in action.flat)
            if w > 7 * len(name) + 2:
                out.append(f'<text class="n" x="{x + w / 2:.2f}" y="{y + 17}">{name}</text>')
    out += [*_legend(left, height - 12), "</svg>"]
    return "\n".join(out) + "\n"


def _legend(left: int, y: int) -> list[str]:
    names = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient",
             "S": "vocabulary", "T": "its gradient"}  # fmt: skip
    out: list[str] = []
    for i, (kind, name) in enumerate(names.items()):
        x = left + 150 * i
        out.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[kind]}"/>')
        out.append(f'<text class="r" x="{x + 15}" y="{y}">{name}</text>')
    return out

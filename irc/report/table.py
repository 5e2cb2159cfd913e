"""Text for a terminal: aligned tables, and numbers with their units."""

from __future__ import annotations

from collections.abc import Sequence

INDENT = "  "
WIDTH = 12
"""Of a name before what it is."""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> list[str]:
    """Lay out rows under their heads.

    Args:
        heads: one for each column.
        rows: cells as text.
        right: for each column ``r`` or ``l``; columns beyond are left-aligned.
    """
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    sides = right.ljust(len(heads), "l")
    lines: list[str] = []
    for row in (heads, *rows):
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ]
        lines.append(INDENT + INDENT.join(cells).rstrip())
    return lines


def pairs(rows: Sequence[tuple[str, str]], width: int = WIDTH) -> list[str]:
    """Lay out names and what they are."""
    return [f"{name:<{width}}{text}".rstrip() for name, text in rows]


def seconds(value: float | None) -> str:
    """Write a time.

    >>> [seconds(t) for t in (0.0, 7.1e-6, 1.861e-3, 2.5, None)]
    ['0', '7.1 us', '1.861 ms', '2.500 s', '?']
    """
    if value is None:
        return "?"
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value * 1e6:.1f} us"
    return f"{value * 1e3:.3f} ms" if abs(value) < 1 else f"{value:.3f} s"


def signed(value: float) -> str:
    """Write a difference of times; below a twentieth of a microsecond it is rounding.

    >>> [signed(t) for t in (2e-6, -0.25, -1e-15)]
    ['+2.0 us', '-250.000 ms', '+0']
    """
    if abs(value) < 5e-8:
        return "+0"
    return ("+" if value > 0 else "-") + seconds(abs(value))


def size(num_bytes: float) -> str:
    """Write a number of bytes.

    >>> [size(n) for n in (12, 393216, 43380736, 3 * 2**30)]
    ['12 B', '384.0 KiB', '41.4 MiB', '3.0 GiB']
    """
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def percent(part: float, whole: float) -> str:
    """Write a share.

    >>> percent(1, 3)
    '33.3 %'
    """
    return f"{100 * part / whole:.1f} %" if whole else "-"


def counted(number: int, noun: str) -> str:
    """Write a number and its noun.

    >>> counted(1, "rank"), counted(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")

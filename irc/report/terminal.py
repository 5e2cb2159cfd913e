"""Reports on a terminal: titles stand out, and long rows end at the edge. Piped, text is plain."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap

from irc.report.table import WIDTH

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
TITLE = re.compile(r"(?<=\n\n)(\S.*)(?=\n  )")
"""A line after an empty one, with indented lines below it."""


def for_stdout(text: str) -> str:
    """Return a report as standard output should have it."""
    if not sys.stdout.isatty():
        return text
    return dressed(text, shutil.get_terminal_size().columns, color="NO_COLOR" not in os.environ)


def dressed(text: str, columns: int, *, color: bool) -> str:
    """Wrap what stands at the margin, cut rows of tables and say so, make titles bold."""
    lines = text.splitlines()
    cut = [_fitting(line, columns) for line in lines]
    shown = "\n".join(cut)
    if color:
        shown = TITLE.sub(rf"{BOLD}\1{PLAIN}", shown)
    if any(line.endswith("~") for line in cut):
        shown += "\n(~ ends a row that is wider than the terminal; | less -S shows all)"
    return shown


def _fitting(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    if line.startswith(" ") or columns <= 2 * WIDTH:
        return line[: columns - 1].rstrip() + "~"
    return textwrap.fill(line, columns, subsequent_indent=" " * WIDTH, break_on_hyphens=False)

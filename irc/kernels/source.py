"""Text of generated files: indentation, and names and comments that nothing breaks out of."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager


class Source:
    r"""Lines under an indentation.

    >>> source = Source()
    >>> with source.block("if x:"):
    ...     source.line("y = 1")
    >>> str(source)
    'if x:\n    y = 1\n'
    """

    def __init__(self, step: str = "    ") -> None:
        self._lines: list[str] = []
        self._step = step
        self._depth = 0

    def line(self, text: str = "") -> None:
        """Append a line (or several) at the current depth."""
        indent = self._step * self._depth
        self._lines += [f"{indent}{part}".rstrip() for part in text.split("\n")]

    @contextmanager
    def block(self, head: str, tail: str | None = None) -> Generator[None]:
        """Indent what is appended inside; ``tail`` closes it."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1
        if tail is not None:
            self.line(tail)

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def quoted(text: str, limit: int = 80) -> str:
    r"""Return a name from outside as printable ASCII in quotes, for a comment.

    >>> quoted("a\n__global__ b\\")
    '"a\\n__global__ b\\\\"'
    """
    shown = text if len(text) <= limit else text[:limit] + "..."
    # A `??/` is a backslash to old compilers, and a backslash at the end of a line continues it.
    return json.dumps(shown).replace("?", "\\u003f").replace("\x7f", "\\u007f")


def identifier(name: str) -> str:
    """Return a symbol's name as an identifier that is no keyword of any language here.

    >>> identifier("rows_3"), identifier("a.b")
    ('kernel_rows_3', 'kernel_a_b_2e7336')
    """
    clean = re.sub(r"[^A-Za-z0-9_]", "_", name)[:64]
    if clean != name:
        clean += "_" + hashlib.sha256(name.encode()).hexdigest()[:6]
    return clean if clean.startswith("kernel_") else f"kernel_{clean}"


def wrapped(items: Sequence[str], width: int = 90) -> list[str]:
    """Return comma-joined items as lines of at most about ``width`` characters."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= width:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    return lines

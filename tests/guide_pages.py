"""Pages of the guide: their blocks, run in the order in which they stand.

A ``python`` block is executed, or written to a file where its first line is ``# file: NAME``. Of
a ``console`` block each line ``$ irc ..`` is run, and what stands below it is what it prints: a
number behind ``~`` is any number, as times are, and a line ``...`` any lines. A comment
``<!-- not run: WHY -->`` before a block says why it is only read.
"""

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from irc.cli import main

BLOCK = re.compile(
    r"(?:<!-- not run: ([^>]+) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and why it is not run ("" where it is)."""

    language: str
    text: str
    reason: str


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    return [Block(m[2], m[3], m[1] or "") for m in BLOCK.finditer(page)]


def pattern(shown: str) -> str:
    """Return the regular expression that what is shown stands for."""
    lines: list[str] = []
    for line in shown.rstrip().splitlines():
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*?")
        else:
            fixed = (re.escape(part) for part in re.split(r"~\d[\d.]*", line.rstrip()))
            lines.append(r"[\d.]+".join(fixed) + r" *\n")
    return "".join(lines)


def commands(text: str) -> list[tuple[str, str]]:
    """Return each command of a console block, and what is shown below it."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def run_page(page: str, folder: Path) -> None:
    """Run the blocks of a page in ``folder``, the working directory.

    Raises:
        AssertionError: a command prints something else than the page shows.
    """
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks(page):
        if block.reason:
            continue
        if block.language == "python":
            first, _, _ = block.text.partition("\n")
            if first.startswith("# file: "):
                (folder / first.removeprefix("# file: ")).write_text(block.text, encoding="utf-8")
            else:
                exec(block.text, names)
        elif block.language == "console":
            for command, shown in commands(block.text):
                run_command(command, shown)


def run_command(command: str, shown: str) -> None:
    """Run ``irc ..`` in this process and hold what it prints against what is shown."""
    program, *arguments = shlex.split(command)
    assert program == "irc", f"a page runs irc alone, not: {command}"
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main(arguments)
    assert re.fullmatch(pattern(shown), said.getvalue().rstrip() + "\n"), (
        f"$ {command}\nprints:\n{said.getvalue()}\nthe page shows:\n{shown}"
    )

"""Pages of the guide: their blocks, run in the order in which they stand, in one folder a page.

That folder is the working directory, and is on ``PYTHONPATH``.

* A ``python`` block is executed, or written to a file where its first line is ``# file: NAME``; so
  is any block behind a comment ``<!-- file: NAME -->``.
* Of a ``console`` block each line ``$ COMMAND`` is run (``irc``, ``python`` or ``torchrun``), and
  what stands below it is what it prints: a number behind ``~`` is any number, with another unit of
  time where it has one, and a line ``...`` any lines. It ends with status 0, unless an error or a
  failure is shown.
* A comment ``<!-- slow: WHY -->`` before a block leaves it to the tests that are marked slow, and
  ``<!-- not run: WHY -->`` says why it is only read.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from irc.cli import main

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:<!-- (not run|slow|file): ([^>]+) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
NUMBER = re.compile(r"( *)~\d[\d.,]*(?:e[-+]\d+)?(?:( )(?:ns|us|ms|s)\b)?( *)")
CODE = ("python", "console", "sh")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: as behind the fence.
        text: between the fences.
        mark: ``not run``, ``slow``, ``file`` or "".
        said: what the mark says: why, or the name of the file.
    """

    language: str
    text: str
    mark: str = ""
    said: str = ""

    @property
    def file(self) -> str:
        """The file that the block is written to, "" where it is none."""
        if self.mark == "file":
            return self.said
        first, _, _ = self.text.partition("\n")
        return first.removeprefix("# file: ") if first.startswith("# file: ") else ""


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    return [Block(m[3], m[4], m[1] or "", m[2] or "") for m in BLOCK.finditer(page)]


def counts(page: str) -> tuple[int, int, int]:
    """Return how many blocks of code are run by every test run, by slow ones only, and not."""
    code = [b for b in blocks(page) if b.language in CODE or b.file]
    slow, read = (sum(b.mark == mark for b in code) for mark in ("slow", "not run"))
    return len(code) - slow - read, slow, read


def pattern(shown: str) -> str:
    """Return the regular expression that what is shown stands for."""
    lines: list[str] = []
    for line in shown.rstrip().splitlines():
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        text, place = "", 0
        for match in NUMBER.finditer(line.rstrip()):
            before, unit, behind = (bool(match[i]) for i in (1, 2, 3))
            text += re.escape(line[place : match.start()])
            text += " +" * before + r"-?[\d.,]+(?:e[-+]\d+)?" + " (?:ns|us|ms|s)" * unit
            text += " *" * behind
            place = match.end()
        lines.append(text + re.escape(line[place:].rstrip()) + r" *\n")
    return "".join(lines)


def commands(text: str) -> list[tuple[str, str]]:
    """Return each command of a console block, and what is shown below it."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def run_page(page: str, folder: Path, slow: bool = False) -> None:
    """Run the blocks of a page in ``folder``, the working directory; slow ones only if asked to.

    Raises:
        AssertionError: a command prints something else than the page shows.
    """
    names: dict[str, object] = {"__name__": "guide"}
    for number, block in enumerate(blocks(page)):
        if block.mark == "not run" or (block.mark == "slow" and not slow):
            continue
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # In a file, since what is compiled asks for its source lines.
            path = folder / f"block_{number}.py"
            path.write_text(block.text, encoding="utf-8")
            exec(compile(block.text, path, "exec"), names)
        elif block.language == "console":
            for command, shown in commands(block.text):
                run_command(command, shown)
        else:
            assert block.language not in CODE, f"nothing runs {block.language}: say why not"


def run_command(command: str, shown: str) -> None:
    """Run a command, and hold what it prints and its status against what is shown."""
    program, *arguments = shlex.split(command)
    if program == "irc":
        status, said = run_irc(arguments)
    else:
        status, said = run_python(program, arguments)
    assert re.fullmatch(pattern(shown), said.rstrip() + "\n" if said.rstrip() else ""), (
        f"$ {command}\nprints:\n{said}\nthe page shows:\n{shown}"
    )
    fails = re.search(r"^(error\[|FAIL)", shown, re.MULTILINE) is not None
    assert bool(status) == fails, f"$ {command}\nends with status {status}:\n{said}"


def run_irc(arguments: list[str]) -> tuple[int, str]:
    """Run ``irc ..`` in this process, which spares the start of another."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(arguments)
    return status, said.getvalue()


def run_python(program: str, arguments: list[str]) -> tuple[int, str]:
    """Run ``python ..`` or ``torchrun ..`` in processes of their own, one thread each.

    Of what they print as errors only that of a failure is returned: torchrun says there on which
    machine it is.
    """
    launchers = {"python": [], "torchrun": ["-m", "torch.distributed.run", "--standalone"]}
    assert program in launchers, f"a page runs irc, python and torchrun, not {program}"
    path = os.pathsep.join(filter(None, [str(ROOT), str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *launchers[program], *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")

"""What a long command is doing: on a terminal a line for each step that is begun.

Nothing is said in the first two seconds. How long the rest takes is told by the last time that the
same command came to its end here: a file in irc's cache has when each of its steps began. The first
time, of steps that are equal, such as those of training, it is told by those that are done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from irc.errors import IrcError
from irc.logs import PROGRESS, SHARE

QUIET_S = 2.0
"""What ends within it says nothing."""
GAP_S = 0.5
"""Between two lines."""
KEPT = 64
"""Commands whose last run is remembered."""
MOST_STEPS = 500
"""Of a run, that are remembered."""


@dataclass
class _Timeline:
    """When the steps of a command began.

    Attributes:
        seconds: since the command began, by the text of a step: of its first of that text.
        total: what the whole took; 0 while it is not known.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    total: float = 0.0

    def left(self, step: str) -> float | None:
        """Return the seconds from the beginning of a step to the end; None where not known."""
        began = self.seconds.get(step)
        return None if began is None else self.total - began


class Progress(logging.Handler):
    """Prints the steps that :data:`irc.logs.PROGRESS` is told.

    Args:
        last: the last run of the same command; an empty one where there was none.
    """

    def __init__(self, last: _Timeline) -> None:
        super().__init__()
        self.seen = _Timeline()
        self._last, self._began, self._said = last, time.monotonic(), 0.0
        self._first: tuple[int, int, float] = (0, 0, 0.0)
        # A child process that plans ahead has a copy of this, and is silent.
        self._process = os.getpid()

    @property
    def seconds(self) -> float:
        """Since the command began."""
        return time.monotonic() - self._began

    def emit(self, record: logging.LogRecord) -> None:
        """Note a step, and say it where the command takes long."""
        if os.getpid() != self._process:
            return
        step, seconds = record.getMessage(), self.seconds
        is_new = step not in self.seen.seconds
        if len(self.seen.seconds) < MOST_STEPS:
            self.seen.seconds.setdefault(step, seconds)
        share: tuple[int, int] | None = getattr(record, SHARE, None)
        if share is not None and (share[1] != self._first[1] or share[0] <= self._first[0]):
            self._first = (*share, seconds)
        if seconds < QUIET_S or seconds - self._said < GAP_S:
            return
        self._said = seconds
        left = self._last.left(step) if is_new else None
        rest = "" if left is None else f", about {left:.0f} s left if it goes as last time"
        if left is None and share is not None and share[0] > self._first[0]:
            of_one = (seconds - self._first[2]) / (share[0] - self._first[0])
            rest = f", about {of_one * (share[1] - share[0] + 1):.0f} s for it and the others"
        print(f"{seconds:6.1f} s  {step}{rest}", file=sys.stderr, flush=True)


ASIDE = ("output", "outputs", "force", "json", "traceback", "parser")
"""Arguments of commands that change nothing of how long they take."""


def asked(args: argparse.Namespace) -> list[tuple[str, object]]:
    """Return what makes a command the same another time."""
    return sorted((k, v) for k, v in vars(args).items() if k not in ASIDE and not callable(v))


@contextmanager
def progress(command: Sequence[tuple[str, object]]) -> Generator[None]:
    """Say on the standard error, where that is a terminal, what is done inside.

    Args:
        command: names and values of what makes it the same command another time.
    """
    if not sys.stderr.isatty():
        yield
        return
    words = repr([(name, str(value)) for name, value in command])
    key = hashlib.sha256(words.encode()).hexdigest()[:16]
    shown, level = Progress(_remembered().get(key, _Timeline())), PROGRESS.level
    PROGRESS.addHandler(shown)
    PROGRESS.setLevel(logging.INFO)
    try:
        yield
        if shown.seconds >= QUIET_S:
            shown.seen.total = shown.seconds
            _remember(key, shown.seen)
    finally:
        PROGRESS.removeHandler(shown)
        PROGRESS.setLevel(level)


def _file() -> Path:
    from irc.cluster.cache import private_folder

    return private_folder("progress") / "last.json"


def _remembered() -> dict[str, _Timeline]:
    """Return the last runs; none where the file is not there, or is no such file."""
    try:
        data: dict[str, Any] = json.loads(_file().read_text())
        return {
            key: _Timeline({str(s): float(t) for s, t in each["steps"].items()}, each["total"])
            for key, each in data.items()
        }
    except (IrcError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _remember(key: str, seen: _Timeline) -> None:
    runs = {k: run for k, run in _remembered().items() if k != key}
    runs[key] = seen
    newest = list(runs.items())[-KEPT:]
    text = json.dumps({k: {"steps": run.seconds, "total": run.total} for k, run in newest})
    # Where there is no place for it, the next run says no time.
    with suppress(IrcError, OSError):
        path = _file()
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(text)
        beside.replace(path)

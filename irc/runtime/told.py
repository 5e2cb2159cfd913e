"""What the first rank of a run says of its steps, told by the process that started the run.

The process of the rank appends a line for each step to a file in the run's folder, and the one that
waits for the ranks reads them there.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from irc.logs import PROGRESS, SHARE

FILE = "steps.jsonl"
EVERY_S = 0.2


class _ToFile(logging.Handler):
    """Appends what it is told to a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        line = json.dumps([record.getMessage(), getattr(record, SHARE, None)])
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def tell_parent(folder: Path) -> None:
    """Let the process that waits for this one know of its steps, where it listens.

    Args:
        folder: of the run.
    """
    if (path := folder / FILE).exists():
        PROGRESS.addHandler(_ToFile(path))
        PROGRESS.setLevel(logging.INFO)


@contextmanager
def forwarding(folder: Path) -> Generator[None]:
    """Tell :data:`irc.logs.PROGRESS` inside what the first rank says, if anybody listens.

    Args:
        folder: of the run.
    """
    if not PROGRESS.isEnabledFor(logging.INFO):
        yield
        return
    path, ended = folder / FILE, threading.Event()
    path.touch()
    thread = threading.Thread(target=_forward, args=(path, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _forward(path: Path, ended: threading.Event) -> None:
    with path.open(encoding="utf-8") as file:
        text = ""
        while not ended.wait(EVERY_S):
            text += file.read()
            *lines, text = text.split("\n")  # the last may not be whole yet
            for line in lines:
                said: tuple[str, Any] = json.loads(line)
                PROGRESS.info("%s", said[0], extra={SHARE: said[1]})

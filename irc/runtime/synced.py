"""Files that last when the machine stops: they are on the disk before they get their names."""

from __future__ import annotations

import os
from pathlib import Path


def write_synced(path: Path, text: str) -> None:
    """Write a text in UTF-8, and wait until it is on the disk.

    Raises:
        OSError: where it cannot be written.
    """
    path.write_text(text, encoding="utf-8")
    sync(path)


def sync(path: Path) -> None:
    """Wait until what is in a file, or the names that are in a folder, are on the disk.

    Raises:
        OSError: where the disk does not take them.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

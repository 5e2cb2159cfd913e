"""Files of Chrome trace events, whoever wrote them: what is read of them, and no more."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from irc.errors import IrcError

Object: TypeAlias = Mapping[str, Any]

TIMES = ("ts", "dur")
LATEST_US = 1e18
"""Numbers beyond, and what is no number, are no times."""
WRITES = "irc simulate PLAN --trace FILE and irc run PLAN --trace FILE write traces"


@dataclass(frozen=True)
class ChromeFile:
    """The content of a file.

    Attributes:
        path: of the file.
        data: the object around the events.
        rows: all events that are objects.
        bars: those that last; their times, in microseconds, are numbers, their names texts.
    """

    path: str
    data: Object
    rows: tuple[Object, ...]
    bars: tuple[Object, ...]


def read_chrome(path: str | Path) -> ChromeFile:
    """Read a file, packed or not.

    Raises:
        IrcError: ``trace-unreadable``.
    """
    try:
        raw = Path(path).read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise unreadable(path, said) from None
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"it is no JSON: {error}", WRITES) from None
    data: Object = {"traceEvents": content} if isinstance(content, list) else as_object(content)
    events: Any = data.get("traceEvents")
    if not isinstance(events, list):
        raise unreadable(path, "it has no list 'traceEvents'", WRITES)
    rows = tuple(row for row in map(as_object, cast("list[object]", events)) if row)
    bars = tuple(filter(_is_bar, rows))
    if not bars:
        raise unreadable(path, "it has no events that last", WRITES)
    return ChromeFile(str(path), data, rows, bars)


def as_object(value: object) -> Object:
    """Return a value of JSON that is an object; of any other, an empty one."""
    return cast("Object", value) if isinstance(value, dict) else {}


def unreadable(path: str | Path, because: str, advice: str = "") -> IrcError:
    """Return the error for a file that is no trace."""
    return IrcError("trace-unreadable", f"'{path}' is no trace", because=because, help=advice)


def _is_bar(row: Object) -> bool:
    times = [row.get(key) for key in TIMES]
    return (
        row.get("ph") == "X"
        and isinstance(row.get("name"), str)
        and all(isinstance(time, int | float) and abs(time) < LATEST_US for time in times)
    )

"""Measured times of kernels and library ops on this machine, by what was run.

`irc tune` writes the table, one file for each kind of machine in the user's cache folder. A kernel
is known by the digest of its generated text, so a change of the compiler forgets what it made
before; a library op by its name, attributes and shapes. Both depend on the number of threads.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeAlias, cast

from irc.cluster.cache import read_text, write_text
from irc.cluster.host import fingerprint

FORMAT = 1
Typed: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def kernel_key(text: str, name: str, threads: int) -> str:
    """Return what a kernel is known by: its text but for its name, which counts up in a program.

    >>> kernel_key("define void @k0()", "k0", 1) == kernel_key("define void @k7()", "k7", 1)
    True
    """
    plain = re.sub(rf"\b{re.escape(name)}\b", "kernel", text)
    return _digest("kernel", plain, threads)


def library_key(
    op: str,
    attrs: Mapping[str, Any],
    inputs: Iterable[Typed],
    outputs: Iterable[Typed],
    threads: int,
) -> str:
    """Return what a library op is known by."""
    # Where it came from is no part of what it does.
    told = {key: value for key, value in attrs.items() if key not in ("id", "loc", "sbp")}
    text = json.dumps([op, told, [*inputs], [*outputs]], sort_keys=True, default=str)
    return _digest("library", text, threads)


def _digest(kind: str, text: str, threads: int) -> str:
    return hashlib.sha256(f"{kind} {threads}\n{text}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Times:
    """Seconds by key; empty where nothing was measured."""

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])

    def with_(self, measured: Mapping[str, float]) -> Times:
        """Return the table with newer times."""
        return Times({**self.seconds, **measured})


def load_times() -> Times:
    """Return the table of this machine; empty where there is none, or an older irc wrote it.

    Raises:
        IrcError: ``cache-unsafe``.
    """
    text = read_text(_file())
    if text is None:
        return Times()
    # A damaged table is no table: times are measured again.
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return Times()
    if not isinstance(data, dict):
        return Times()
    table = cast("dict[str, Any]", data)
    entries: Any = table.get("seconds")
    if table.get("format") != FORMAT or not isinstance(entries, dict):
        return Times()
    seconds = cast("dict[str, Any]", entries)
    return Times({key: float(v) for key, v in seconds.items() if _is_time(v)})


def save_times(times: Times) -> str:
    """Write the table of this machine, and return the path of its file.

    Raises:
        IrcError: ``cache-unsafe``.
    """
    text = json.dumps({"format": FORMAT, "seconds": dict(times.seconds)}, indent=0, sort_keys=True)
    return str(write_text(_file(), text + "\n"))


def _file() -> str:
    return f"times-{fingerprint()}.json"


def _is_time(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and isfinite(cast("float", value)) and 0 <= cast("float", value) < 1e6

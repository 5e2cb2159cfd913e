"""Comparing what the ranks of a run are about to compile, before one of them compiles it for all.

Rank 0's program is what every rank runs. A rank whose model or options are others would be left out
without a word, so each captures its own and compares digests of it with the others'.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.text import dump
from irc.errors import IrcError
from irc.runtime.agreement import gathered, ranks_named

LOCATION = re.compile(r'loc = "(?:[^"\\]|\\.)*"')
"""Hosts may have the same files in other places."""

Marks = Mapping[str, bytes]
"""By what it is of, a SHA-256; the same names, in one order, on all ranks."""


def marks_of(module: ModuleOp, *options: object) -> Marks:
    """Return what ranks compare.

    Args:
        module: the program as captured: its ops, sizes, and the names and types of its weights.
        options: what was chosen; equal ones print equally.
    """
    from irc import __version__

    texts = {
        "the model": LOCATION.sub("", dump(module)),
        "the options": repr(options),
        "the version of irc or torch": f"{__version__} {torch.__version__}",
    }
    return {name: hashlib.sha256(text.encode()).digest() for name, text in texts.items()}


def agree_on_program(own: Marks) -> None:
    """Compare marks; every rank calls it.

    Raises:
        IrcError: ``ranks-differ`` on every rank, naming the ranks that differ from most.
    """
    rows = gathered(b"".join(own.values()))
    if len(set(rows)) == 1:
        return
    usual = max(rows, key=lambda row: (rows.count(row), -rows.index(row)))
    size = hashlib.sha256().digest_size
    notes: list[str] = []
    for place, name in enumerate(own):
        part = slice(place * size, (place + 1) * size)
        others = [rank for rank, row in enumerate(rows) if row[part] != usual[part]]
        if others:
            notes.append(f"{name} of {ranks_named(others)} is not that of the others")
    different = [rank for rank, row in enumerate(rows) if row != usual]
    raise IrcError(
        "ranks-differ",
        f"{ranks_named(different)} would compile another program than rank {rows.index(usual)}",
        because=notes,
        help="build the same model, with the same options, on every rank",
    )

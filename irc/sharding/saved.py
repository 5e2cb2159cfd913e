"""What passes save that cut a program into pieces, as it says: `irc.chunks` and `irc.slices`."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.attributes import to_python
from irc.sharding.batch_slices import SLICES
from irc.sharding.chunks import CHUNKS


def saved_by_cuts(module: ModuleOp) -> float:
    """Return the seconds that cuts chosen by price save in a call of a program, by that price."""
    chunks, slices = (module.attributes.get(name) for name in (CHUNKS, SLICES))
    rows: list[dict[str, Any]] = [] if chunks is None else [*to_python(chunks)]
    if slices is not None:
        rows.append(to_python(slices))
    return sum(row.get("saved_s", 0.0) * row.get("runs", 1) for row in rows)

"""The files of a folder that name all its code: what is trusted when a plan is."""

from __future__ import annotations

import hashlib
from pathlib import Path

from irc.errors import IrcError
from irc.plan import built
from irc.plan.files import MANIFEST, read_file
from irc.plan.host import HOST
from irc.plan.native import FOLDER
from irc.plan.parts import PARTS
from irc.plan.shared import entry_names
from irc.plan.trust import is_trusted


def trust_folder(folder: str, *, note: bool) -> str:
    """Say of a folder's programs what names them and whether they are trusted; note that they are.

    Args:
        folder: of a plan, a host program, several plans, or a native program.
        note: put them on the list of what is trusted here.

    Returns:
        A line for each.

    Raises:
        IrcError: ``plan-missing``.
    """
    place = Path(folder)
    found = [*_roots(place)]
    for name in entry_names(place):
        found += _roots(place / name)
    if not found:
        raise IrcError("plan-missing", f"no plan in '{folder}'")
    lines: list[str] = []
    for path in found:
        digest = hashlib.sha256(read_file(path.parent, path.name)).hexdigest()
        if note:
            built.note(digest)
        known = is_trusted(path.parent, path.name, digest)
        lines.append(f"{digest}  {path}  {'trusted' if known else 'not trusted'}")
    return "\n".join(lines)


def _roots(place: Path) -> list[Path]:
    """Return the root of a plan, and that of its native program."""
    own = next((name for name in (MANIFEST, HOST) if (place / name).is_file()), PARTS)
    return [path for path in (place / own, place / FOLDER / MANIFEST) if path.is_file()]

"""The files of a folder that name all its code: what is trusted when a plan is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from irc.errors import IrcError
from irc.plan import built
from irc.plan.files import MANIFEST, read_file
from irc.plan.host import HOST
from irc.plan.native import FOLDER
from irc.plan.parts import PARTS
from irc.plan.shared import entry_names
from irc.plan.trust import is_trusted


@dataclass(frozen=True)
class Root:
    """A file that names all code of a program.

    Attributes:
        file: where it is.
        sha256: its digest, in hex.
        trusted: whether the program may run here.
    """

    file: str
    sha256: str
    trusted: bool

    def __str__(self) -> str:
        return f"{self.sha256}  {self.file}  {'trusted' if self.trusted else 'not trusted'}"


def trust_folder(folder: str, *, note: bool) -> tuple[Root, ...]:
    """Return what names a folder's programs and whether they are trusted; note that they are.

    Args:
        folder: of a plan, a host program, several plans, or a native program.
        note: put them on the list of what is trusted here.

    Returns:
        One for each program.

    Raises:
        IrcError: ``plan-missing``.
    """
    place = Path(folder)
    paths = [*_roots(place)]
    for name in entry_names(place):
        paths += _roots(place / name)
    if not paths:
        raise IrcError("plan-missing", f"no plan in '{folder}'")
    roots: list[Root] = []
    for path in paths:
        digest = hashlib.sha256(read_file(path.parent, path.name)).hexdigest()
        if note:
            built.note(digest)
        roots.append(Root(f"{path}", digest, is_trusted(path.parent, path.name, digest)))
    return tuple(roots)


def _roots(place: Path) -> list[Path]:
    """Return the root of a plan, and that of its native program."""
    own = next((name for name in (MANIFEST, HOST) if (place / name).is_file()), PARTS)
    return [path for path in (place / own, place / FOLDER / MANIFEST) if path.is_file()]

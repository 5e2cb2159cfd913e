"""What this user's irc has written or verified on this machine: a list of digests.

A digest of the list names content, not a place: a plan that is copied or moved is still the plan
that was written here, and one of whose files a byte was changed is another one. The list is a
folder ``built`` in the cache (:mod:`irc.cluster.cache`), with a file for each digest; only the user
can write it. Where it cannot be written, the process still knows what it wrote itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import warnings
from pathlib import Path

from irc.cluster.cache import cache_root, check_private, private_folder
from irc.errors import IrcError

FOLDER = "built"
MOST = 20_000
"""Digests that are kept; the oldest go first. A file of the list is empty."""

_here: set[str] = set()
_warned = False


def note(digest: str) -> None:
    """Put a digest on the list."""
    _here.add(digest)
    try:
        folder = private_folder(FOLDER)
        os.close(os.open(folder / digest, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        if digest.startswith("00"):  # one time of 256: a look through the list takes a while
            _bound(folder)
    except (IrcError, OSError) as error:
        _warn(error)


def is_noted(digest: str) -> bool:
    """True where a digest is on the list."""
    if digest in _here:
        return True
    try:
        root = cache_root()
        path = root / FOLDER / digest
        status = path.lstat()
        check_private(root)
        check_private(root / FOLDER)
    except (IrcError, OSError):
        return False
    own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return own and stat.S_ISREG(status.st_mode)


def stamp(path: Path, digest: str) -> str:
    """Return a digest of a file as it lies here: what it should hold, and that nobody wrote to it.

    Args:
        path: of the file.
        digest: of what it should hold.
    """
    status = path.stat()
    facts = (
        digest,
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
    return hashlib.sha256(" ".join(map(str, facts)).encode()).hexdigest()


def _bound(folder: Path) -> None:
    entries: list[tuple[float, str]] = []
    with os.scandir(folder) as listing:
        for entry in listing:
            with contextlib.suppress(OSError):
                entries.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
    for _, path in sorted(entries)[: max(len(entries) - MOST, 0)]:
        with contextlib.suppress(OSError):
            Path(path).unlink()


def _warn(error: Exception) -> None:
    """Say once why later processes will not know what was written here."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "the list of plans that were written here cannot be kept, so that other processes ask "
            f"for trust=True before they run machine code: {error}",
            stacklevel=3,
        )

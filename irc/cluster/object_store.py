"""Machine code of earlier processes, on disk; one store for all backends.

A file holds the object code of a set of kernels. Its name is a digest of everything that the code
follows from (texts, instruction set, versions of compilers), so an entry is right or absent, never
stale. It is read only from a folder and a file that belong to the user and that nobody else can
write, and only if its own digest is right: what is cut short, damaged or foreign is compiled again.
Files are put in place whole, by renaming: any number of processes may read and write at once. The
least recently used ones go when all are too many.

``IRC_CACHE_DIR`` says where the cache is, ``IRC_CACHE=off`` switches it off, and
``IRC_CACHE_BYTES`` bounds it (512 MiB). That it cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import warnings
from pathlib import Path

from irc.cluster.cache import cache_root, check_private, private_folder
from irc.errors import IrcError
from irc.record import Cached, note_here

FOLDER = "kernels"
SUFFIX = ".o"
MAGIC = b"irc-object 1\n"
MOST_BYTES = 512 << 20
MOST_OBJECT_BYTES = 256 << 20

OTHERS = 4
"""The folder is looked through again when this part of the room has been written: other processes
write too."""

_warned = False
_room: dict[tuple[Path, int], int] = {}
"""Bytes that this process may still write before it looks, by folder and limit."""


def read(key: str) -> bytes | None:
    """Return an object, or None where there is none that may be used."""
    folder = _folder()
    if folder is None:
        return None
    path = folder / f"{key}{SUFFIX}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not _is_own(os.fstat(descriptor)):
            return None
        content = file.read(MOST_OBJECT_BYTES)
    payload = _verified(content, key)
    with contextlib.suppress(OSError):
        if payload is None:
            path.unlink()
        else:
            os.utime(path)  # it was used
    if payload is not None:
        note_here(Cached(str(path), is_read=True))
    return payload


def write(key: str, data: bytes) -> None:
    """Keep an object, all of it or nothing; where that cannot be, nothing."""
    folder = _folder(make=True)
    if folder is None or len(data) > MOST_OBJECT_BYTES // 2:
        return
    part = ""
    try:
        descriptor, part = tempfile.mkstemp(dir=folder, prefix=".part.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(_header(key, data) + data)
        Path(part).replace(folder / f"{key}{SUFFIX}")
    except OSError:
        with contextlib.suppress(OSError):
            Path(part).unlink()
        return
    note_here(Cached(str(folder / f"{key}{SUFFIX}"), is_read=False))
    _bound(folder, limit(), len(data))


def discard(key: str) -> None:
    """Drop an object that turned out to be of no use."""
    folder = _folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            (folder / f"{key}{SUFFIX}").unlink()


def limit() -> int:
    """Return how many bytes the cache may have."""
    try:
        return int(os.environ.get("IRC_CACHE_BYTES", MOST_BYTES))
    except ValueError:
        return MOST_BYTES


def _bound(folder: Path, most: int, written: int) -> None:
    """Prune where there may be too much; to look through thousands of files takes 50 ms."""
    left = _room.get((folder, most), 0) - written
    _room[folder, most] = left if left >= 0 else (most - prune(folder, most)) // OTHERS


def prune(folder: Path, most: int) -> int:
    """Delete what was not used for longest until a tenth of the room is free again.

    Returns:
        the bytes that are left.
    """
    entries: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for entry in listing:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                entries.append((status.st_mtime, status.st_size, entry.path))
    total = sum(size for _, size, _ in entries)
    if total <= most:
        return total
    for _, size, path in sorted(entries):
        with contextlib.suppress(OSError):
            Path(path).unlink()
        total -= size
        if total <= most * 0.9:
            break
    return total


def _folder(*, make: bool = False) -> Path | None:
    """Return the private folder of objects, None where there is none to be used."""
    if os.environ.get("IRC_CACHE", "").lower() in ("off", "0", "no", "false"):
        return None
    try:
        if make:
            return private_folder(FOLDER)
        root = cache_root()
        folder = root / FOLDER
        if not folder.is_dir():
            return None
        check_private(root)
        check_private(folder)
    except IrcError as error:
        _warn(error)
        return None
    except OSError:
        return None
    return folder


def _warn(error: IrcError) -> None:
    """Say once why nothing is kept."""
    global _warned
    if not _warned:
        _warned = True
        text = str(error).replace("error[", "warning[", 1)
        warnings.warn(f"compiled kernels are not kept: {text}", stacklevel=2)


def _is_own(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o022:
        return False
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _header(key: str, data: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + data).hexdigest()
    return MAGIC + digest.encode() + b"\n"


def _verified(content: bytes, key: str) -> bytes | None:
    size = len(MAGIC) + 65
    data = content[size:]
    return data if data and content[:size] == _header(key, data) else None

"""The user's private folder for measured times: who may write it, and where it is.

Its content prices plans, so nobody else may be able to change it: a folder of the user's own, mode
0700, no link. It holds text only (TOML and JSON).
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from irc.errors import IrcError

ROOT_VARIABLE = "IRC_CACHE_DIR"
CALIBRATED = "this-host.toml"
"""What `irc cluster calibrate` measured here."""


def cache_root() -> Path:
    """Return the folder: ``$IRC_CACHE_DIR``, else ``irc`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        IrcError: ``cache-unsafe`` where there is no home to have it in.
    """
    if named := os.environ.get(ROOT_VARIABLE):
        return Path(named)
    # A relative one is to be ignored, says the XDG specification.
    if (shared := os.environ.get("XDG_CACHE_HOME", "")).startswith("/"):
        return Path(shared) / "irc"
    try:
        return Path.home() / ".cache" / "irc"
    except RuntimeError as error:
        raise IrcError(
            "cache-unsafe", "there is no home folder", help=f"set {ROOT_VARIABLE}"
        ) from error


def private_folder(name: str) -> Path:
    """Return a folder of the cache, made where it is not there.

    The root is looked at first: nothing is made inside a link to somebody else's folder. It is made
    by itself, since parents that :meth:`Path.mkdir` makes are as open as the umask lets them be.

    Raises:
        IrcError: ``cache-unsafe``.
        OSError: one cannot be made.
    """
    root = cache_root()
    root.parent.mkdir(parents=True, exist_ok=True)
    for folder in (root, root / name):
        if not folder.is_symlink():
            folder.mkdir(mode=0o700, exist_ok=True)
        check_private(folder)
    return root / name


def check_private(folder: Path) -> None:
    """Refuse a folder that others can change.

    Raises:
        IrcError: ``cache-unsafe``.
    """
    status = folder.lstat()
    problem = ""
    if not stat.S_ISDIR(status.st_mode):
        problem = "it is a link, or no folder"
    elif hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        problem = f"it belongs to user {status.st_uid}"
    elif status.st_mode & 0o022:
        problem = f"others may write it (mode {stat.S_IMODE(status.st_mode):o})"
    if problem:
        raise IrcError(
            "cache-unsafe",
            f"the cache folder '{folder}' is not private",
            because=problem,
            help=f"chmod 700 '{folder}', or set {ROOT_VARIABLE} to a folder of your own",
        )


def read_text(name: str) -> str | None:
    """Return a file of the cache, or None where there is none.

    Raises:
        IrcError: ``cache-unsafe``.
    """
    root = cache_root()
    try:
        text = (root / name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    check_private(root)
    return text


def write_text(name: str, text: str) -> Path:
    """Write a file of the cache, all of it or nothing, and return its path.

    Raises:
        IrcError: ``cache-unsafe``, also where it cannot be written.
    """
    root = cache_root()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(root)
        descriptor, part = tempfile.mkstemp(dir=root, prefix=f".{name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(part).replace(root / name)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise IrcError(
            "cache-unsafe",
            f"cannot write the cache folder '{root}': {error.strerror}",
            help=f"set {ROOT_VARIABLE} to a folder of your own",
        ) from error
    return root / name

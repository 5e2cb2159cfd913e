"""Text without what is the user's own: names, paths, addresses, people, machines."""

from __future__ import annotations

import builtins
import getpass
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("irc", "xdsl", "torch", "onnx", "numpy", "networkx", "highspy", "llvmlite")
"""Whose lines a traceback keeps, and whose exceptions are named."""
FRAME = re.compile(r'  File "([^"]+)", line (\d+), in (\S+)\n((?:    .*\n)*)')
RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?=:|$)", re.MULTILINE)
SUFFIXES = (
    "bin|ckpt|csv|gz|ipynb|json|mlir|npy|npz|onnx|pb|pkl|pt|pth|py|rules|safetensors|sbp|toml|txt"
    "|yaml|yml|zip"
)
PRIVATE = re.compile(
    r"""(?<!\w)(?P<quote>['"])[^'"\n]*[\\/][^'"\n]*(?P=quote)"""  # quoted: blanks in it too
    r"|\w+://[^\s'\"]+"
    r"|(?<![\w.])(?:~\w*|[A-Za-z]:)?[\\/][\w.@+=,-][^\n'\"]*[\\/][\w.@+=,-]+"  # to the last folder
    rf"|[\w.@+=~:\\/-]*[\w@+=-]\.(?:{SUFFIXES})\b"
    r"|~\w*[\\/][\w.-]+"
    r"|(?<![\w.])[\\/][A-Za-z_][\w.-]*\b"
    r"|\b\w+:\w[\w.-]*/\w[\w.-]*"
    r"|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
)
"""Paths, names of files, addresses of the net and of people."""
WORD = 3
"""Names of fewer letters say nothing, and are parts of words of irc's."""
PATH = "<path>"


def without_names(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return a text without names that are known, and without paths, addresses, user and host.

    >>> without_names("cannot read /home/ada/secret/net.py: layer.w has 3 rows", {"layer.w": "x0"})
    'cannot read <path>: x0 has 3 rows'
    """
    text = replaced(text, names or {})
    text = PRIVATE.sub(lambda m: f"{m['quote'] or ''}{PATH}{m['quote'] or ''}", text)
    return replaced(text, dict.fromkeys(_people(), "<user>"))


def replaced(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other names for those of three letters or more, where they are words."""
    for own in sorted(names, key=len, reverse=True):
        if len(own) >= WORD:
            text = re.sub(rf"(?<!\w){re.escape(own)}(?!\w)", lambda _, n=names[own]: n, text)
    return text


def exception_name(kind: str) -> str:
    """Return the class of an exception, unless it is of a package of the user's.

    >>> exception_name("KeyError"), exception_name("acme.errors.AcmeError")
    ('KeyError', 'Error')
    """
    root = kind.partition(".")[0]
    is_known = root in PACKAGES or hasattr(builtins, kind) or kind in KINDS
    return kind if is_known or "-" in kind else "Error"


KINDS = frozenset({
    "DifferentError", "IndexOutsideError", "InternalError", "IrcError", "ParseError",
    "VerifyException", "crash", "differs", "internal", "timeout",
})  # fmt: skip
"""Exceptions of irc and xDSL, and failures that have no exception."""


def of_packages(traceback: str, names: Mapping[str, str]) -> str:
    """Return a traceback with the frames of packages that irc is built on alone.

    Their lines are public; of what the exception says :func:`without_names` is left.
    """
    parts, place, dropped = list[str](), 0, False
    for match in FRAME.finditer(traceback):
        parts.append(_said(traceback[place : match.start()], names))
        place = match.end()
        known = _in_package(match[1])
        if known:
            parts.append(f'  File "{known}", line {match[2]}, in {match[3]}\n{match[4]}')
        elif not dropped:
            parts.append("  (frames of other code)\n")
        dropped = not known
    return "".join([*parts, _said(traceback[place:], names)])


def _said(text: str, names: Mapping[str, str]) -> str:
    text = RAISED.sub(
        lambda m: exception_name(m[1]) if "Error" in m[1] or "." in m[1] else m[1], text
    )
    return without_names(text, names)


def _in_package(file: str) -> str:
    """Return a file of a package that irc is built on by its place there; "" of other files."""
    for package, root in _roots():
        with suppress(ValueError):
            return f"{package}/{Path(file).relative_to(root).as_posix()}"
    return ""


def _roots() -> Iterable[tuple[str, Path]]:
    for package in PACKAGES:
        with suppress(ImportError, ValueError):
            spec = find_spec(package)
            for root in (spec.submodule_search_locations or ()) if spec else ():
                yield package, Path(root)
    for package in ("irc.passes", "irc.backends"):  # beside irc in a checkout
        with suppress(ImportError, ValueError):
            spec = find_spec(package)
            for root in (spec.submodule_search_locations or ()) if spec else ():
                yield package.replace(".", "/"), Path(root)


def _people() -> Iterable[str]:
    with suppress(Exception):  # there may be no such user, or no host name
        yield getpass.getuser()
    with suppress(Exception):
        yield socket.gethostname()
    with suppress(RuntimeError):
        yield Path.home().name

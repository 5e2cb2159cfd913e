"""``irc docs``: the reference of irc's public names as pages of HTML, written by pdoc.

The pages are of the modules that users and writers of plug-ins import, and hold what their
docstrings say. They load nothing from elsewhere: the search is a script beside them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

from irc.errors import IrcError

MODULES = (
    "irc",
    "irc.onnx",
    "irc.errors",
    "irc.plugin",
    "irc.dialects.flow",
    "irc.dialects.searches",
    "irc.dialects.builder",
    "irc.backends",
    "irc.ops.custom",
    "irc.schedule.named",
    "irc.schedule.actions",
)
"""What users import, and after ``irc.errors`` what passes, backends, ops and schedules of others
are written with."""

INDEX, FIRST, SEARCH = "index.html", "irc.html", "search.js"
"""The index leads to the first page, which lists the others."""
MARK = '<meta name="generator" content="pdoc '
"""In every page that pdoc has written."""
HOST = "127.0.0.1"


def write_pages(folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write a page for each of `MODULES`, an index, and a search that works without a network.

    Args:
        folder: where to; it is made.
        force: write also into a folder that holds something, and replace pages of before.

    Returns:
        The pages, the index first.

    Raises:
        IrcError: ``package-missing`` without pdoc; ``output-exists``, ``output-write``.
    """
    pdoc = _pdoc()
    names = {INDEX, SEARCH, *(f"{name.replace('.', '/')}.html" for name in MODULES)}
    check_place(folder, names, force=force)
    first, *others = MODULES
    below = {name: _documented(pdoc, name, ()) for name in others}
    modules = {first: _documented(pdoc, first, tuple(below.values())), **below}
    pdoc.render.configure(docformat="google", footer_text=f"irc {_version()}")
    with warnings.catch_warnings():
        # An annotation that only a type checker can resolve is shown as it is written.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"pdoc(\..*)?")
        texts = {INDEX: pdoc.render.html_index(modules)}
        for name, module in modules.items():
            texts[f"{name.replace('.', '/')}.html"] = pdoc.render.html_module(module, modules)
        search = pdoc.render.search_index(modules)
    try:
        for name, text in {**texts, SEARCH: search}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # What is renamed takes the place of a link that has come meanwhile.
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_text(text, encoding="utf-8", newline="")
            part.replace(path)
    except OSError as error:
        raise IrcError(
            "output-write", f"cannot write '{folder}'", because=error.strerror or str(error)
        ) from None
    return tuple(folder / name for name in texts)


def _pdoc() -> Any:
    try:
        for name in ("pdoc.doc", "pdoc.render"):
            import_module(name)
        return import_module("pdoc")
    except ImportError:
        raise IrcError(
            "package-missing",
            "the reference is written by the package pdoc",
            help="pip install 'irc-compiler[docs]'",
        ) from None


def _version() -> str:
    return import_module("irc").__version__


def _documented(pdoc: Any, name: str, below: tuple[Any, ...]) -> Any:
    """Return what pdoc shows of a module, which lists the modules of ``below``."""
    module = import_module(name)
    for public in getattr(module, "__all__", ()):
        # pdoc reads the module's own dictionary, where a name stands once it has been used.
        setattr(module, public, getattr(module, public))
    # pdoc would import all that lies below a module, to list it.
    page = type("Page", (pdoc.doc.Module,), {"submodules": below})
    return page(module)


def check_place(folder: Path, names: Iterable[str] = (), *, force: bool) -> None:
    """Refuse, before any work, a place that pages are not to be written to.

    Args:
        folder: where to.
        names: of the files, below it.
        force: allow a folder that holds something.

    Raises:
        IrcError: ``output-write`` for a file, and for a link at or below the folder, which would
            lead elsewhere; ``output-exists``.
    """
    if folder.exists() and not folder.is_dir():
        raise IrcError("output-write", f"'{folder}' is a file", help="-o names a folder")
    below = {path for name in names for path in (folder / name, (folder / name).parent)}
    for path in sorted({folder, *below}):
        if path.is_symlink():
            raise IrcError(
                "output-write",
                f"'{path}' is a link, and pages are not written through one",
                because=f"it leads to '{path.readlink()}'",
                help="remove it, or choose another folder",
            )
    if force or not folder.is_dir() or not any(folder.iterdir()):
        return
    page = folder / FIRST
    is_own = page.is_file() and MARK in page.read_text(encoding="utf-8", errors="replace")
    raise IrcError(
        "output-exists",
        f"'{folder}' holds pages already"
        if is_own
        else f"'{folder}' holds something that irc docs has not written",
        help="choose another folder, or --force "
        + ("replaces them" if is_own else "writes into it"),
    )


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the class's name
        """Say nothing of each page that is read."""


@contextmanager
def serving(folder: Path, port: int = 0) -> Generator[ThreadingHTTPServer]:
    """Open a server of a folder's files to this machine alone, and close it again.

    Args:
        folder: of pages.
        port: to listen at; 0 takes a free one.

    Yields:
        The server, which answers while its ``serve_forever`` runs.

    Raises:
        IrcError: ``option-value`` for a port that cannot be had.
    """

    def handler(*args: Any) -> _Quiet:
        return _Quiet(*args, directory=str(folder))

    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        raise IrcError(
            "option-value",
            f"--port {port} cannot be had: {getattr(error, 'strerror', None) or error}",
            help="leave out --port, and a free one is taken",
        ) from None
    with server:
        yield server

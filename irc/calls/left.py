"""What irc leaves to torch, and the warning that says so: never silently, never the user's end.

An error of capture or translation is about one call, which torch can run. Any other exception while
a program is compiled is a bug of irc: the user's program runs through torch all the same.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from torch._dynamo.exc import RestartAnalysis

from irc.errors import IrcError
from irc.pipeline import Options
from irc.pipeline.reproducer import notes_of
from irc.record import FallBack

CODES = frozenset({"capture-failed", "op-unsupported"})
"""Errors of what a graph holds; all others are about what the user chose or gave."""


class LeftToTorchWarning(UserWarning):
    """Part of a call, or all of it, runs through torch and Python, not through irc."""


def is_bug(error: Exception) -> bool:
    """True for what no input should be able to cause."""
    return not isinstance(error, IrcError)


def can_be_left(error: Exception, options: Options) -> bool:
    """True for what torch can run in irc's place: what irc does not take, and what it fails on.

    By some exceptions Dynamo asks itself for another trace: those are its own.

    With ``fullgraph`` or ``verify_each`` a bug is not passed over: whoever asks for them wants to
    see it.
    """
    if isinstance(error, IrcError):
        return CODES.issuperset(error.codes)
    if isinstance(error, RestartAnalysis):
        return False
    return not options.fullgraph and options.verify_each is None


def leave(what: str, error: Exception, options: Options) -> None:
    """Warn that torch runs something, or raise where that is not to be.

    Args:
        what: is left to torch, such as ``a backward pass``.
        error: why.
        options: with ``fullgraph`` nothing is left to torch.

    Raises:
        Exception: the error.
    """
    if options.fullgraph or options.strict or not can_be_left(error, options):
        raise error
    if options.record is not None:
        options.record.note(fall_back_of(what, error))
    text = left_text(what, error)
    if (gathered := getattr(_here, "gathered", None)) is not None:
        gathered.append(text)
    else:
        warnings.warn(text, LeftToTorchWarning, stacklevel=3)


def fall_back_of(what: str, error: Exception) -> FallBack:
    """Return what is noted of a part that torch runs."""
    kind = KINDS.get(what, "graph")
    if isinstance(error, IrcError):
        first: IrcError = getattr(error, "errors", (error,))[0]
        line = "" if first.where == "unknown" else first.where
        return FallBack(kind, what, first.message, line)
    return FallBack(kind, what, f"irc fails: {type(error).__name__}: {error}", "")


KINDS = {"a backward pass": "backward", "a part of a graph": "region"}
"""What of a call is left, by its words; others are whole graphs."""

_here = threading.local()


@contextmanager
def gathering() -> Generator[list[str]]:
    """Gather the warnings of this thread for a caller that gives them itself."""
    before = getattr(_here, "gathered", None)
    _here.gathered = list[str]()
    try:
        yield _here.gathered
    finally:
        _here.gathered = before


def left_text(what: str, error: Exception) -> str:
    """Return the warning that torch runs something."""
    if isinstance(error, IrcError):
        first: IrcError = getattr(error, "errors", (error,))[0]
        return as_warning(
            "left-to-torch",
            f"torch runs {what}, which irc does not compile: {first.message}",
            first.where,
            first.because,
            first.help,
        )
    return as_warning(
        "internal",
        f"torch runs {what}, on which irc fails: {type(error).__name__}: {error}",
        because="this is a bug in irc, not in your program; its results are torch's",
        remedy="\n".join(
            [
                "report it with the traceback that options={'fullgraph': True}, or"
                " irc.compile(..., fullgraph=True), raises",
                *notes_of(error),
            ]
        ),
    )


def as_warning(
    code: str, message: str, where: str = "", because: str | tuple[str, ...] = (), remedy: str = ""
) -> str:
    """Return the text of a warning, which has a page as errors have."""
    text = str(IrcError(code, message, where, because, remedy))
    return text.replace("error[", "warning[", 1)

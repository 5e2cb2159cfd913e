"""Numbers of bytes on the command line, as in ``--memory 40GB``: as options and as they print."""

from __future__ import annotations

import argparse
import re
from collections.abc import Generator
from contextlib import contextmanager

from irc.errors import IrcError, IrcErrors

UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def add_memory_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Declare ``--memory``, with what holds where it is not named."""
    parser.add_argument(
        "--memory",
        metavar="BYTES",
        help=f"the most that a device may hold, as 40GB (default: {default})",
    )


def split_unit(text: str) -> tuple[str, int]:
    """Return the number of a text, as it stands there, and how many bytes its unit is.

    >>> split_unit("1.5 GB"), split_unit("7")
    (('1.5', 1000000000), ('7', 1))
    """
    words = text.strip()
    unit = next(u for u in sorted(UNITS, key=len, reverse=True) if words.endswith(u))
    return words.removesuffix(unit).strip(), UNITS[unit]


def bytes_option(option: str, text: str | None) -> int | None:
    """Return what an option says, in bytes; None where it says nothing.

    Args:
        option: its name, as users write it.
        text: a number with a unit or without, as in ``40GB``.

    Raises:
        IrcError: ``option-value`` for what is no number of bytes, or less than one.
    """
    if text is None:
        return None
    digits, unit = split_unit(text)
    try:
        num_bytes = float(digits) * unit
    except ValueError:
        num_bytes = 0.0
    if not 1.0 <= num_bytes < float("inf"):
        raise IrcError(
            "option-value",
            f"{option} {text} cannot be",
            because="it is a number, and one of "
            f"{', '.join(filter(None, UNITS))} or nothing for bytes: one byte or more",
        )
    return int(num_bytes)


def shown_bytes(size: float) -> str:
    """Return bytes in the unit that suits them.

    >>> shown_bytes(1.5e9)
    '1.5 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 * UNITS[unit]:
            return f"{size / UNITS[unit]:.4g} {unit}"
    return f"{size / UNITS['TB']:.4g} TB"


@contextmanager
def in_words_of_options() -> Generator[None]:
    """Let errors name budgets as the command line does: ``--memory N`` for ``memory_bytes=N``.

    Raises:
        IrcError: the same that is raised within, in other words.
    """
    try:
        yield
    except IrcErrors:
        raise
    except IrcError as error:
        error.message, error.help = _as_options(error.message), _as_options(error.help)
        error.because = tuple(map(_as_options, error.because))
        error.args = (error.code, error.message, error.where, error.because, error.help)
        raise


def _as_options(text: str) -> str:
    text = re.sub(r"\bmemory_bytes=(?=\d)", "--memory ", text)
    return re.sub(r"\bstored_bytes=(?=\d)", "--stored-bytes ", text)

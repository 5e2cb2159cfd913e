"""What irc tells a user who gave it something that it cannot compile.

An `IrcError` is about the user's program, files or options: it says what was wrong in their
terms, and what to change. Its code has a page in `irc.error_pages`, which `irc explain error CODE`
prints. An `InternalError` is a bug of ours, and says so.
"""

import difflib
from collections.abc import Iterable
from enum import IntEnum

from irc.error_pages import REGISTRY

__all__ = [
    "ErrorCollector",
    "ExitCode",
    "IndexOutsideError",
    "InternalError",
    "IrcError",
    "IrcErrors",
    "did_you_mean",
    "printable",
    "suggest",
]


class ExitCode(IntEnum):
    """What the exit status of `irc` means."""

    OK = 0
    CHECK_FAILED = 1
    USER = 2
    UNSUPPORTED = 3
    INFEASIBLE = 4
    INTERNAL = 70
    INTERRUPTED = 130


class InternalError(Exception):
    """A bug of irc: something that no input should be able to cause."""


class IrcError(Exception):
    """An error that the user can mend.

    All five parts are positional to the base class, so that an error survives pickling on its way
    back from another process.

    Args:
        code: The code of a page in `irc.error_pages`, such as ``mesh-syntax``.
        message: What is wrong, with the names and numbers of the user's own program.
        where: The place in the user's source: a file and line, a node, an argument.
        because: Why irc insists: one note, or several.
        help: What to change.
    """

    def __init__(
        self,
        code: str,
        message: str,
        where: str = "",
        because: str | Iterable[str] = (),
        help: str = "",  # noqa: A002 - the word that the user reads
    ) -> None:
        if code not in REGISTRY:
            raise InternalError(f"error code {code!r} has no page in irc/error_pages: {message}")
        notes = (because,) if isinstance(because, str) else tuple(because)
        super().__init__(code, message, where, notes, help)
        self.code = code
        self.message = message
        self.where = where
        self.because = notes
        self.help = help

    @property
    def exit_code(self) -> int:
        """The exit status of a command that ends with this error."""
        return REGISTRY[self.code].exit_code

    @property
    def codes(self) -> tuple[str, ...]:
        """The distinct codes to explain, in the order of the message."""
        return (self.code,)

    def noted(self, note: str) -> "IrcError":
        """The same error with one more reason."""
        because = (*self.because, note)
        return type(self)(self.code, self.message, self.where, because, self.help)

    def render(self) -> str:
        """The whole message, several lines, without a final newline."""
        lines = [f"error[{self.code}]: {_indented(self.message)}"]
        if self.where:
            lines.append(f"  --> {_indented(self.where)}")
        lines += [f"  because: {_indented(note)}" for note in self.because]
        if self.help:
            lines.append(f"  help: {_indented(self.help)}")
        return "\n".join(lines)

    def brief(self) -> str:
        """The message and where, in one line."""
        where = f" ({_first_line(self.where)})" if self.where else ""
        return f"error[{self.code}]: {_first_line(self.message)}{where}"

    def __str__(self) -> str:
        return self.render()


class IndexOutsideError(IrcError, IndexError, RuntimeError):
    """An index selects an element that does not exist: eager raises one or the other, by the op."""


class IrcErrors(IrcError):  # noqa: N818 - several of them
    """Several errors that one look at the input found; `code` is that of the first."""

    def __init__(self, errors: Iterable[IrcError]) -> None:
        self.errors = tuple(errors)
        if not self.errors:
            raise InternalError("a group of no errors")
        super().__init__(self.errors[0].code, f"{len(self.errors)} errors")
        self.args = (self.errors,)

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(code for error in self.errors for code in error.codes))

    def noted(self, note: str) -> "IrcErrors":
        """The same errors, each with one more reason."""
        return IrcErrors(error.noted(note) for error in self.errors)

    def render(self) -> str:
        """The first few whole, of more the first lines: they mostly have one reason."""
        shown = [error.render() for error in self.errors[:SHOWN]]
        brief = [error.brief() for error in self.errors[SHOWN : SHOWN + LISTED]]
        if (left := len(self.errors) - SHOWN - LISTED) > 0:
            brief.append(f"and {left} more errors")
        return "\n\n".join([*shown, *(["\n".join(brief)] if brief else [])])


class ErrorCollector:
    """Gathers errors, so that all unsupported things are reported at once.

    >>> errors = ErrorCollector()
    >>> errors.add(IrcError("op-unsupported", "no rule for 'Foo'"))
    >>> errors.check()
    Traceback (most recent call last):
        ...
    irc.errors.IrcError: error[op-unsupported]: no rule for 'Foo'
    """

    def __init__(self) -> None:
        self._errors: dict[str, IrcError] = {}

    def add(self, error: IrcError) -> None:
        """Note an error; one that reads the same as an earlier one is dropped."""
        self._errors.setdefault(error.render(), error)

    def move_to(self, other: "ErrorCollector") -> None:
        """Give what was collected to another collector."""
        for error in self._errors.values():
            other.add(error)
        self._errors.clear()

    def __bool__(self) -> bool:
        return bool(self._errors)

    def has(self, code: str) -> bool:
        """True where an error of this code was collected."""
        return any(error.code == code for error in self._errors.values())

    def check(self) -> None:
        """Raise what was collected: nothing, the one error, or an `IrcErrors`."""
        errors = tuple(self._errors.values())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise IrcErrors(errors)


def suggest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that a mistyped name most likely means, if any is close.

    >>> suggest("merge-reshard", ["merge-reshards", "fuse"])
    'merge-reshards'
    >>> suggest("zzz", ["merge-reshards", "fuse"]) is None
    True
    """
    return next(iter(difflib.get_close_matches(name, sorted(candidates), n=1)), None)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """The help line for an unknown name: the closest one, or all of them if they are few.

    >>> did_you_mean("cpo", ["cpu", "cuda"])
    "did you mean 'cpu'?"
    >>> did_you_mean("tpu-v9", ["cuda", "triton"])
    'use one of: cuda, triton'
    """
    known = sorted(candidates)
    if close := suggest(name, known):
        return f"did you mean '{close}'?"
    if 0 < len(known) <= 12:
        return f"use one of: {', '.join(known)}"
    return ""


MOST_SHOWN = 1000
"""Characters of a part of a message that are shown: a name from outside can have any length."""
SHOWN, LISTED = 3, 8
"""Of several errors so many are shown whole, and so many more with a line each."""


def printable(text: str) -> str:
    r"""The text with control characters escaped, since names from a file can hold any.

    >>> printable("conv\x1b[2J")
    'conv\\x1b[2J'
    """
    return "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text
    )


def _first_line(text: str) -> str:
    return _indented(text).partition("\n")[0]


def _indented(text: str) -> str:
    if len(text) > MOST_SHOWN:
        half = MOST_SHOWN // 2
        left_out = f" ... ({len(text) - 2 * half} characters) ... "
        text = text[:half] + left_out + text[-half:]
    # Only our own first lines begin at column 0, so no name in a file can forge one.
    return printable(text).replace("\n", "\n    ")

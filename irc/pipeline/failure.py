"""How a pass or a backend failed, and whether another failure is the same one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from traceback import walk_tb

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.dialects.task import KernelOp
from irc.errors import IrcError
from irc.pipeline.apply import apply_passes
from irc.plugin import find_backend, parse_passes

OF_PASSES = frozenset({"pass-failed", "check-failed"})
"""Errors that are about a pass, not about what the user wrote."""


@dataclass(frozen=True)
class Failure:
    """How something failed.

    Attributes:
        kind: the class of the exception, or the code of an :class:`irc.errors.IrcError`.
        place: the innermost function that the exception went through, ``module:function``; empty
            of a registered error, whose words say as much.
        message: what it says, which may name values of the program.
    """

    kind: str
    place: str
    message: str

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Describe an exception that was caught; of a plug-in's, what it raised itself."""
        if isinstance(error, IrcError):
            if error.code == "pass-failed" and error.__cause__ is not None:
                return Failure.of(error.__cause__)
            return Failure(error.code, "", error.message)
        place = ""
        for frame, _ in walk_tb(error.__traceback__):
            place = f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_name}"
        return Failure(type(error).__name__, place, str(error))

    def is_like(self, other: Failure) -> bool:
        """True for the same kind from the same place: a smaller program has other names."""
        if self.place and other.place:
            return (self.kind, self.place) == (other.kind, other.place)
        return (self.kind, _words(self.message)) == (other.kind, _words(other.message))

    def __str__(self) -> str:
        place = f" in {self.place}" if ":" in self.place else ""
        return f"{self.kind}{place}: {self.message}"


@dataclass(frozen=True)
class Stage:
    """What fails on a program: passes one after the other, or a backend that writes its kernels.

    Attributes:
        passes: as ``irc opt -p`` takes them.
        backend: whose sources are written behind the passes; empty for none.
        compares: run the program before and after each pass, and compare (float64).
    """

    passes: str = ""
    backend: str = ""
    compares: bool = False

    def __str__(self) -> str:
        of_backend = f"the sources of kernels for {self.backend}" if self.backend else ""
        return " and ".join(filter(None, (self.passes, of_backend)))

    def parsed(self) -> tuple[ModulePass, ...]:
        """Return the passes.

        Raises:
            IrcError: as :func:`irc.plugin.parse_passes`.
        """
        return parse_passes(self.passes) if self.passes else ()

    def run(self, module: ModuleOp) -> None:
        """Run it on a program, which is changed; whatever it raises is the failure."""
        apply_passes(module, self.parsed(), verify_each="exec" if self.compares else "ir")
        if self.backend:
            find_backend(self.backend).emit_plan_sources(kernels_of(module))

    def failure(self, module: ModuleOp) -> Failure | None:
        """Return how it fails on a program, which is changed; None where it does not."""
        try:
            self.run(module)
        except Exception as error:  # whichever it is, is what was asked for
            return Failure.of(error)
        return None


def _words(message: str) -> str:
    """Return a message without the names and numbers of a program.

    >>> _words("pass fuse changed output 0: relative error 1.2e-01")
    'pass fuse changed output _: relative error _'
    """
    return re.sub(r"'[^']*'|\d[\w.+-]*", "_", message)


def kernels_of(module: ModuleOp) -> Sequence[KernelOp]:
    """Return the kernels of a module of level task."""
    return [op for op in module.body.block.ops if isinstance(op, KernelOp)]

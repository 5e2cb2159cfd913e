"""What came of a job that was computed before it was asked for: its result, error and warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from irc.errors import IrcError

Job = Callable[[], Any]


@dataclass(frozen=True)
class Warned:
    """A warning, and where it was warned of."""

    message: Warning
    category: type[Warning]
    path: str
    line: int
    module: str

    @classmethod
    def of(cls, caught: warnings.WarningMessage) -> Warned:
        message, path = caught.message, caught.filename
        assert isinstance(message, Warning)
        # As Python calls what belongs to no module.
        name = next(filter(partial(_is_at, path), [*sys.modules]), path.removesuffix(".py"))
        return cls(message, caught.category, path, caught.lineno, name)

    @property
    def place(self) -> Hashable:
        """What Python says once, unless the user wants it more often."""
        return str(self.message), self.category, self.path, self.line

    def say(self) -> None:
        """Warn as if this process had come to the place: by its module's filters and registry."""
        own: dict[str, Any] = vars(sys.modules[self.module]) if self.module in sys.modules else {}
        known = own.setdefault("__warningregistry__", {})
        where = self.path, self.line, self.module, known
        warnings.warn_explicit(self.message, self.category, *where)


def _is_at(path: str, module: str) -> bool:
    """Whether a module was read from a file."""
    return getattr(sys.modules.get(module), "__dict__", {}).get("__file__") == path


@dataclass(frozen=True)
class Outcome:
    """What came of a job, and what it warned of, which is said when the result is asked for."""

    value: object
    error: Exception | None = None
    warned: tuple[Warned, ...] = ()

    @classmethod
    def of(cls, job: Job) -> Outcome:
        try:
            return cls(job())
        except IrcError as error:
            return cls(None, error)

    @classmethod
    def recorded(cls, job: Job) -> Outcome:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            own = cls.of(job)
        warned = {each.place: each for each in map(Warned.of, caught)}
        return replace(own, warned=tuple(warned.values()))

    def result(self) -> object:
        if self.error is not None:
            raise self.error
        return self.value

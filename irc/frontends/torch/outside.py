"""What traced code read that is neither an argument nor held by a module, checked before calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

from irc.frontends.torch.contents import Container, items_of, restore, same

Field = tuple[Any, str]
"""An object and the name of an attribute of it, a variable of an enclosing function for one."""

Question = Callable[[], Any]
"""A function of torch's that tells how the process is set."""


@dataclass(frozen=True)
class Outside:
    """Values that have to be what they were at capture: the same objects, or equal numbers.

    Attributes:
        fields: attributes of objects, of classes and of Python modules, variables.
        contents: what they were.
        containers: lists, dictionaries, arrays and the like.
        items: what was in each of them.
        questions: settings of the process.
        answers: what they were.
    """

    fields: tuple[Field, ...] = ()
    contents: tuple[Any, ...] = ()
    containers: tuple[Container, ...] = ()
    items: tuple[list[Any], ...] = ()
    questions: tuple[Question, ...] = ()
    answers: tuple[Any, ...] = ()

    @staticmethod
    def of(
        fields: Sequence[Field], containers: Sequence[Container], questions: Sequence[Question]
    ) -> Outside:
        """Note what is read now."""
        now = tuple(starmap(read, fields))
        items = tuple(map(items_of, containers))
        return Outside(tuple(fields), now, tuple(containers), items).asking(questions)

    def asking(self, questions: Sequence[Question]) -> Outside:
        """Return the same check and that of some settings, as they are now."""
        more = [each for each in questions if each not in self.questions]
        answers = (*self.answers, *(each() for each in more))
        return replace(self, questions=(*self.questions, *more), answers=answers)

    def __bool__(self) -> bool:
        """True where there is something to check."""
        return bool(self.fields or self.containers or self.questions)

    def holds(self) -> bool:
        """Return whether all is as it was."""
        return (
            (not self.fields or same(self.contents, [*starmap(read, self.fields)]))
            and all(map(same, self.items, map(items_of, self.containers)))
            and all(ask() == was for ask, was in zip(self.questions, self.answers, strict=True))
        )

    def restore(self) -> None:
        """Give attributes, variables and collections what they held."""
        for (owner, name), then in zip(self.fields, self.contents, strict=True):
            if not same((then,), (read(owner, name),)):
                put_back(owner, name, then)
        for container, items in zip(self.containers, self.items, strict=True):
            if not same(items, items_of(container)):
                restore(container, items)

    def change(self) -> str | None:
        """Return what is another than at capture, None where nothing is."""
        for (_, name), then, now in zip(
            self.fields, self.contents, starmap(read, self.fields), strict=True
        ):
            if not same((then,), (now,)):
                named = "a variable of an enclosing function" if name == CELL else f"'{name}'"
                return f"{named} is another than at compile time"
        for ask, was in zip(self.questions, self.answers, strict=True):
            if ask() != was:
                return f"torch.{ask.__name__}() is {ask()}, compiled with {was}"
        if not self.holds():
            return "a list, dictionary, set or array holds other items than at compile time"
        return None


CELL = "cell_contents"


class _Missing:
    """What is read of an attribute or a variable that there is not."""


MISSING = _Missing()


def put_back(owner: Any, name: str, value: Any) -> None:
    """Give an attribute or a variable what it held; nothing where there was none."""
    own: Mapping[str, Any] | None = getattr(owner, "__dict__", None)
    if isinstance(own, dict) and (name in own or value is MISSING):
        if value is MISSING:
            own.pop(name, None)
        else:
            own[name] = value
    elif value is MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def read(owner: Any, name: str) -> Any:
    """Return an attribute, or the content of a cell; :data:`MISSING` where there is none."""
    try:
        return getattr(owner, name, MISSING)
    except ValueError:  # a variable that has no value yet
        return MISSING

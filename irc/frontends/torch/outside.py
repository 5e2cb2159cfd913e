"""What traced code read that is neither an argument nor held by a module, checked before calls."""

# pyright: basic
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap
from operator import is_
from typing import Any

Field = tuple[Any, str]
"""An object and the name of an attribute of it, a variable of an enclosing function for one."""

Container = list[Any] | dict[Any, Any] | set[Any]


@dataclass(frozen=True)
class Outside:
    """Values that have to be what they were at capture: the same objects, or equal numbers.

    Attributes:
        fields: attributes of objects, of classes and of Python modules, variables.
        contents: what they were.
        containers: lists, dictionaries and sets.
        items: what was in each of them.
    """

    fields: tuple[Field, ...] = ()
    contents: tuple[Any, ...] = ()
    containers: tuple[Container, ...] = ()
    items: tuple[list[Any], ...] = ()

    @staticmethod
    def of(fields: Sequence[Field], containers: Sequence[Container]) -> Outside:
        """Note what is read now."""
        now = tuple(starmap(_read, fields))
        return Outside(tuple(fields), now, tuple(containers), tuple(map(_items, containers)))

    def __bool__(self) -> bool:
        """True where there is something to check."""
        return bool(self.fields or self.containers)

    def holds(self) -> bool:
        """Return whether all is as it was."""
        return _same(self.contents, [*starmap(_read, self.fields)]) and all(
            map(_same, self.items, map(_items, self.containers))
        )

    def change(self) -> str | None:
        """Return what is another than at capture, None where nothing is."""
        for (_, name), then, now in zip(
            self.fields, self.contents, starmap(_read, self.fields), strict=True
        ):
            if not _same((then,), (now,)):
                named = "a variable of an enclosing function" if name == CELL else f"'{name}'"
                return f"{named} is another than at compile time"
        if not self.holds():
            return "a list, dictionary or set holds other items than at compile time"
        return None


CELL = "cell_contents"


def _read(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except ValueError:  # a variable that has no value yet
        return None


def _items(container: Container) -> list[Any]:
    if isinstance(container, dict):
        return [*container, *container.values()]
    return [*container]


def _same(then: Sequence[Any], now: Sequence[Any]) -> bool:
    return len(then) == len(now) and (
        all(map(is_, then, now))
        or all(
            a is b or (type(a) is type(b) and isinstance(a, int | float | str) and a == b)
            for a, b in zip(then, now, strict=True)
        )
    )

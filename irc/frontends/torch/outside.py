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
        return same(self.contents, [*starmap(_read, self.fields)]) and all(
            map(same, self.items, map(_items, self.containers))
        )

    def restore(self) -> None:
        """Give lists, dictionaries and sets the items that they had."""
        for container, items in zip(self.containers, self.items, strict=True):
            if same(items, _items(container)):
                continue
            if isinstance(container, list):
                container[:] = items
                continue
            container.clear()
            half = len(items) // 2
            container.update(
                zip(items[:half], items[half:], strict=True)
                if isinstance(container, dict)
                else items
            )

    def change(self) -> str | None:
        """Return what is another than at capture, None where nothing is."""
        for (_, name), then, now in zip(
            self.fields, self.contents, starmap(_read, self.fields), strict=True
        ):
            if not same((then,), (now,)):
                named = "a variable of an enclosing function" if name == CELL else f"'{name}'"
                return f"{named} is another than at compile time"
        if not self.holds():
            return "a list, dictionary or set holds other items than at compile time"
        return None


CELL = "cell_contents"

PLAIN = (int, float, complex, str, bytes)
"""Values that are compared as such."""


def _read(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, None)
    except ValueError:  # a variable that has no value yet
        return None


def _items(container: Container) -> list[Any]:
    if isinstance(container, dict):
        return [*container, *container.values()]
    return [*container]


def same(then: Sequence[Any], now: Sequence[Any]) -> bool:
    """Return whether values are the same objects, or equal numbers, strings and tuples of them."""
    return len(then) == len(now) and (
        all(map(is_, then, now))
        or all(
            a is b
            or (
                type(a) is type(b)
                and (same(a, b) if isinstance(a, tuple) else isinstance(a, PLAIN) and a == b)
            )
            for a, b in zip(then, now, strict=True)
        )
    )

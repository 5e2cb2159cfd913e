"""The keys of a TOML table, read strictly: each reader says which key is wrong, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias, cast

from irc.errors import IrcError, did_you_mean

Table: TypeAlias = Mapping[str, Any]


def invalid(where: str, problem: str) -> IrcError:
    """Return the error of a cluster file."""
    return IrcError("cluster-invalid", "cannot read the cluster", where, problem)


@dataclass(frozen=True)
class Fields:
    """A table, and what its keys are called in messages. Readers raise ValueError.

    >>> Fields({"gb_per_s": -1}, "link.").number("gb_per_s")
    Traceback (most recent call last):
        ...
    ValueError: link.gb_per_s is -1; it must be positive
    """

    content: Table
    prefix: str

    def __contains__(self, key: str) -> bool:
        return key in self.content

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def only(self, *keys: str) -> None:
        """Refuse other keys."""
        if unknown := sorted(set(self.content) - set(keys)):
            raise ValueError(f"unknown key '{unknown[0]}'; {did_you_mean(unknown[0], keys)}")

    def number(self, key: str, default: float | None = None, *, zero: bool = False) -> float:
        """Return a finite positive number; ``zero`` allows 0 as well."""
        value = self._get(key, default)
        # A bool is an int to Python; a size of 10**400 is no float.
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{self.prefix}{key} is {value!r}; it must be a number")
        if key not in self.content:
            return float(value)
        if not (0 <= value < 1e18 and value < inf) or (value == 0 and not zero and default != 0):
            raise ValueError(f"{self.prefix}{key} is {value}; it must be positive")
        return float(value)

    def whole(self, key: str, default: int | None, most: int) -> int:
        """Return a whole number from 1 to ``most``, or the default."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{self.prefix}{key} is {value!r}; it must be a whole number")
        if key in self.content and not 1 <= value <= most:
            raise ValueError(f"{self.prefix}{key} is {value}; it must be from 1 to {most}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text of one line."""
        value = self._get(key, default)
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200:
            raise ValueError(f"{self.prefix}{key} must be a text of one line")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.prefix}{key} must be true or false")
        return value

    def tables(self, key: str) -> Sequence[Table]:
        """Return an array of tables; a lone table is an array of one, and nothing is empty."""
        value = self.content.get(key, [])
        if isinstance(value, dict):
            return [cast("Table", value)]
        if not isinstance(value, list) or not all(
            isinstance(table, dict) for table in cast("list[Any]", value)
        ):
            raise ValueError(f"{self.prefix}{key} must be a table, or an array of tables")
        return cast("list[Table]", value)

    def table(self, key: str, default: Table | None = None) -> Table:
        """Return a table."""
        value = self._get(key, default)
        if not isinstance(value, dict):
            raise ValueError(f"{self.prefix}{key} must be a table")
        return cast("Table", value)

    def array(self, key: str) -> Sequence[Any]:
        """Return an array; nothing is empty."""
        value = self.content.get(key, [])
        if not isinstance(value, list):
            raise ValueError(f"{self.prefix}{key} must be an array")
        return cast("list[Any]", value)

    def _get(self, key: str, default: Any) -> Any:
        value = self.content.get(key, default)
        if value is None:
            raise ValueError(f"key '{self.prefix}{key}' is missing")
        return value

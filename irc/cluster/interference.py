"""How much what runs at a time on a device slows each other down.

Compute, copies over links and over the network, and copies to and from the host run beside each
other, but not for nothing: they share memory, processors of the device, and its port to the host.
What is known of a device is a table by the set of what runs: how many times as long each of the set
takes as alone. That is neither the longest (nobody is slowed) nor the sum (one at a time); either
is a table of its own.

The form is that of Mist (Zhu et al. 2025, section 4.3): of what is left of each, the shortest ends
first, all at their rates, then the same with the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal["compute", "link", "nic", "d2h", "h2d"]
"""What a device does: kernels, transfers to devices of its node and of others, copies to the host
and from it."""

KINDS: tuple[Kind, ...] = get_args(Kind)

MOST = 100.0
"""A factor above this is no measurement."""


@dataclass(frozen=True)
class Interference:
    """Factors by what runs at a time.

    Attributes:
        slower: by the set of kinds that run, how many times as long each of them takes as alone; at
            least 1. Of a set that has no row, each kind is as slow as in the worst row of a part of
            the set; where there is none, they run as alone.

    >>> table = Interference.of([{"compute": 1.25, "link": 2.0}])
    >>> table.rates({"compute", "link"}) == {"compute": 0.8, "link": 0.5}
    True
    >>> table.rates({"compute", "link", "d2h"})["d2h"], table.rates({"link"})["link"]
    (1.0, 1.0)
    """

    slower: Mapping[frozenset[str], Mapping[str, float]] = field(
        default_factory=dict[frozenset[str], Mapping[str, float]]
    )

    @staticmethod
    def of(rows: Iterable[Mapping[str, float]]) -> Interference:
        """Return the table of some rows: the keys of each are what runs.

        Raises:
            ValueError: a row that is no set of two kinds or more, a factor below 1, two rows of one
                set.
        """
        slower: dict[frozenset[str], Mapping[str, float]] = {}
        for row in rows:
            _checked(row)
            if frozenset(row) in slower:
                raise ValueError(f"two rows of interference for {_set(row)}")
            slower[frozenset(row)] = dict(row)
        return Interference(slower)

    def __bool__(self) -> bool:
        return bool(self.slower)

    def rates(self, running: Collection[str]) -> Mapping[str, float]:
        """Return how fast each of some kinds runs beside the others, relative to alone."""
        row = self.slower.get(frozenset(running))
        if row is not None:
            return {kind: 1.0 / row[kind] for kind in running}
        parts = [own for kinds, own in self.slower.items() if kinds < frozenset(running)]
        return {
            kind: 1.0 / max((own[kind] for own in parts if kind in own), default=1.0)
            for kind in running
        }

    def seconds(self, alone: Mapping[str, float]) -> float:
        """Return when the last of some kinds ends that begin together.

        Args:
            alone: seconds that each takes alone.

        >>> Interference.of([{"compute": 1.5, "link": 2.0}]).seconds({"compute": 4, "link": 1})
        4.666666666666667
        """
        left = {kind: seconds for kind, seconds in alone.items() if seconds > 0}
        now = 0.0
        while left:
            rates = self.rates(left)
            first = min(left, key=lambda kind: left[kind] / rates[kind])
            step = left[first] / rates[first]
            now += step
            left = {k: s - step * rates[k] for k, s in left.items() if k != first}
            left = {k: s for k, s in left.items() if s > 1e-12 * now}
        return now


NO_INTERFERENCE = Interference()


def slowest_of(tables: Collection[Interference]) -> Interference:
    """Return the worst of each factor of some tables: what an even split over devices meets."""
    slower: dict[frozenset[str], Mapping[str, float]] = {}
    for kinds in dict.fromkeys(kinds for table in tables for kinds in table.slower):
        rows = [table.slower[kinds] for table in tables if kinds in table.slower]
        slower[kinds] = {kind: max(row[kind] for row in rows) for kind in rows[0]}
    return Interference.of(slower.values())


def _checked(row: Mapping[str, float]) -> None:
    if unknown := [kind for kind in row if kind not in KINDS]:
        raise ValueError(f"a row of interference names '{unknown[0]}'; it may: {', '.join(KINDS)}")
    if len(row) < 2:
        raise ValueError(f"a row of interference is of two kinds at least, not of {_set(row)}")
    for kind, factor in row.items():
        if not 1.0 <= factor <= MOST:
            raise ValueError(
                f"interference of {_set(row)}: {kind} = {factor} is not from 1 to {MOST:.0f}"
            )


def _set(row: Iterable[str]) -> str:
    return " + ".join(row) or "nothing"

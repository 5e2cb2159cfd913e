"""Classes of ranks: which of the ranks beside each other in a pipeline behave alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from irc.dialects.placement import Mesh
from irc.simulate.costs import Way


@dataclass(frozen=True)
class Column:
    """Ranks that pass the same part of each micro-batch on: one group for each rank of a schedule.

    The ranks of a group run in lock step (tensor, context and expert axes: their collectives are
    inside the functions), so that one stands for it; columns (a data axis) meet only where
    gradients are added up. Columns that are alike are simulated once.

    Attributes:
        count: how many columns there are like this.
        slow: by rank of the schedule, how many times as long its functions take.
        slow_links: by ranks of the schedule, how many times as long transfers between them take.
    """

    count: int = 1
    slow: Mapping[int, float] = field(default_factory=dict[int, float])
    slow_links: Mapping[Way, float] = field(default_factory=dict[Way, float])

    @property
    def _key(self) -> tuple[frozenset[tuple[int, float]], frozenset[tuple[Way, float]]]:
        return frozenset(self.slow.items()), frozenset(self.slow_links.items())


def folded(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return columns with those that are alike as one, in the order in which they first appear."""
    first: dict[object, Column] = {}
    counts = Counter[object]()
    for column in columns:
        key = column._key  # pyright: ignore[reportPrivateUsage]
        first.setdefault(key, column)
        counts[key] += column.count
    return tuple(
        Column(counts[key], column.slow, column.slow_links) for key, column in first.items()
    )


def columns_of(
    mesh: Mesh, slow: Mapping[Way, float], apart: Collection[str] = ("data",)
) -> tuple[Column, ...]:
    """Return the columns of a pipeline whose ranks each have a mesh inside.

    Only ranks that are slow are looked at: a lock-step group is as slow as its slowest rank.

    Args:
        mesh: of each rank of the schedule.
        slow: by rank of the schedule and rank of its mesh, how many times as long it takes.
        apart: the axes along which ranks meet only where gradients are added up.

    >>> columns_of(Mesh.parse("data=64,tensor=16"), {(3, 17): 1.5})
    (Column(count=63, slow={}, slow_links={}), Column(count=1, slow={3: 1.5}, slow_links={}))
    """
    sizes = {axis: size for axis, size in mesh.axes if axis in apart}
    by_column: dict[tuple[int, ...], dict[int, float]] = {}
    for (rank, inside), factor in slow.items():
        place = mesh.coordinates(inside)
        own = by_column.setdefault(tuple(place[axis] for axis in sizes), {})
        own[rank] = max(own.get(rank, 0.0), factor)
    total = Mesh.of(sizes).num_ranks
    rest = [Column(total - len(by_column))] if total > len(by_column) else []
    return folded([*rest, *(Column(1, each) for each in by_column.values())])

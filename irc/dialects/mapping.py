"""Task mappings (Hidet, arXiv:2210.09603): which worker does which tasks, in which order.

A mapping is ``(num_workers, task_shape, worker -> ordered tasks)``. ``spatial(d...)`` gives each of
``prod(d)`` workers one task; ``repeat(d...)`` gives one worker all tasks, last dim fastest;
``replicate(d...)`` lets ``prod(d)`` workers do the same task (Tilus, arXiv:2504.12984: an operand
that is broadcast, a sum that several workers hold parts of). The composition ``f1 * f2`` (f1
outside) refines each task of f1 by f2:

    phi(w) = [t1 * d2 + t2  for t1 in phi1(w // n2)  for t2 in phi2(w % n2)]

>>> m = spatial(2, 1) * repeat(2, 2)
>>> m.task_shape, m.num_workers, m.tasks(1)
((4, 2), 2, [(2, 0), (2, 1), (3, 0), (3, 1)])
>>> str(m.project(1)), str(spatial(4, 8).project(1))
('spatial(2, 1) * repeat(2, 1)', 'spatial(4, 1) * replicate(1, 8)')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product as cartesian
from math import gcd, prod
from typing import Literal, TypeAlias

from xdsl.utils.exceptions import VerifyException

Task: TypeAlias = tuple[int, ...]
AtomKind: TypeAlias = Literal["spatial", "repeat", "replicate"]


@dataclass(frozen=True)
class Atom:
    """``spatial(extents)``, ``repeat(extents)`` or ``replicate(extents)``.

    Attributes:
        kind: who does the tasks: a worker each, one worker all, all workers one.
        extents: sizes by dim; of ``replicate``, the workers of each dim, whose task extent is 1.
        ranks: the place of each dim in the order, slowest first; empty for row-major.
    """

    kind: AtomKind
    extents: tuple[int, ...]
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.ranks == tuple(range(len(self.extents))):
            object.__setattr__(self, "ranks", ())

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.extents))
        if not self.ranks:
            return f"{self.kind}({sizes})"
        if self.ranks == tuple(reversed(range(len(self.extents)))) and self.kind != "replicate":
            return f"column_{self.kind}({sizes})"
        return f"{self.kind}({sizes}, ranks=[{', '.join(map(str, self.ranks))}])"

    @property
    def num_workers(self) -> int:
        """One worker per task of a spatial atom, one in all for a repeat."""
        return 1 if self.kind == "repeat" else prod(self.extents)

    @property
    def task_shape(self) -> tuple[int, ...]:
        """The extents of the tasks."""
        return (1,) * len(self.extents) if self.kind == "replicate" else self.extents

    @property
    def order(self) -> tuple[int, ...]:
        """The dims, slowest first."""
        if not self.ranks:
            return tuple(range(len(self.extents)))
        return tuple(self.ranks.index(rank) for rank in range(len(self.ranks)))

    def tasks(self, worker: int) -> list[Task]:
        """Return the tasks of a worker, in execution order."""
        if self.kind == "replicate":
            return [(0,) * len(self.extents)]
        if self.kind == "repeat":
            points = cartesian(*(range(self.extents[dim]) for dim in self.order))
            return [_by_dim(point, self.order) for point in points]
        digits: list[int] = []
        for dim in reversed(self.order):
            worker, index = divmod(worker, self.extents[dim])
            digits.insert(0, index)
        return [_by_dim(digits, self.order)]


def _by_dim(point: Sequence[int], order: Sequence[int]) -> Task:
    return tuple(value for _, value in sorted(zip(order, point, strict=True)))


@dataclass(frozen=True)
class TaskMapping:
    """A composition of atoms, outermost first, all of the same number of dims.

    Attributes:
        atoms: the factors.
        written: how the user wrote it; not part of what it is.
    """

    atoms: tuple[Atom, ...]
    written: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.written or " * ".join(map(str, self.atoms))

    def __mul__(self, inner: TaskMapping) -> TaskMapping:
        """Compose: each task of this one is refined by ``inner``."""
        return TaskMapping((*self.atoms, *inner.atoms))

    def spatial(self, *extents: int, ranks: Sequence[int] = ()) -> TaskMapping:
        """Refine each task by workers: the chain form."""
        return self * spatial(*extents, ranks=ranks)

    def repeat(self, *extents: int, ranks: Sequence[int] = ()) -> TaskMapping:
        """Refine each task by a loop: the chain form."""
        return self * repeat(*extents, ranks=ranks)

    @property
    def ndim(self) -> int:
        """The number of task dimensions."""
        return len(self.atoms[0].extents)

    @property
    def num_workers(self) -> int:
        """The product over the atoms."""
        return prod(atom.num_workers for atom in self.atoms)

    @property
    def replication(self) -> int:
        """How many workers do each task."""
        return prod(atom.num_workers for atom in self.atoms if atom.kind == "replicate")

    @property
    def task_shape(self) -> tuple[int, ...]:
        """The extent of the task space in each dim."""
        shapes = [atom.task_shape for atom in self.atoms]
        return tuple(prod(shape[d] for shape in shapes) for d in range(self.ndim))

    def tasks(self, worker: int) -> list[Task]:
        """Return the tasks of a worker in execution order, enumerated (tests, interpreters)."""
        later = prod(atom.num_workers for atom in self.atoms[1:])
        outer = self.atoms[0].tasks(worker // later)
        if len(self.atoms) == 1:
            return outer
        inner = TaskMapping(self.atoms[1:])
        d2, tail = inner.task_shape, inner.tasks(worker % later)
        return [
            tuple(a * d + b for a, d, b in zip(t1, d2, t2, strict=True))
            for t1 in outer
            for t2 in tail
        ]

    def project(self, *dims: int) -> TaskMapping:
        """Return the mapping of an operand that lacks some dims: there its index is 0.

        Workers that differ in such a dim only share the task; one worker does it once.
        """
        atoms = [part for atom in self.atoms for part in _projected(atom, frozenset(dims))]
        kept = [atom for atom in atoms if prod(atom.extents) != 1] or atoms[:1]
        return TaskMapping(tuple(kept))

    def split(self) -> tuple[TaskMapping | None, TaskMapping | None]:
        """Split into the leading spatial atoms (the grid) and the rest (what one worker does)."""
        count = next((i for i, a in enumerate(self.atoms) if a.kind != "spatial"), len(self.atoms))
        grid = TaskMapping(self.atoms[:count]) if count else None
        rest = TaskMapping(self.atoms[count:]) if count < len(self.atoms) else None
        return grid, rest


def _projected(atom: Atom, gone: frozenset[int]) -> list[Atom]:
    """Part an atom into runs of its order that keep their dims, and runs that lose them."""
    if not gone & {d for d, extent in enumerate(atom.extents) if extent != 1}:
        return [atom]
    if atom.kind != "spatial":
        sizes = tuple(1 if d in gone else n for d, n in enumerate(atom.extents))
        return [atom if atom.kind == "replicate" else Atom("repeat", sizes, atom.ranks)]
    parts: list[Atom] = []
    for dim in atom.order:
        sizes = [1] * len(atom.extents)
        sizes[dim] = atom.extents[dim]
        parts.append(Atom("replicate" if dim in gone else "spatial", tuple(sizes)))
    return parts


MAX_ENUMERATED = 1 << 16


def verify_form(mapping: TaskMapping) -> None:
    """Check that atoms agree in their dims and have sizes and ranks that mean something.

    Raises:
        VerifyException: naming the atom.
    """
    if not mapping.atoms:
        raise VerifyException("a task mapping has at least one atom")
    for atom in mapping.atoms:
        if len(atom.extents) != mapping.ndim:
            raise VerifyException(
                f"{atom} has {len(atom.extents)} dims, the mapping {mapping.ndim}"
            )
        if any(extent < 1 for extent in atom.extents):
            raise VerifyException(f"{atom} has an extent below 1")
        if atom.ranks and sorted(atom.ranks) != list(range(mapping.ndim)):
            raise VerifyException(f"{atom}: ranks are each of 0 to {mapping.ndim - 1} once")


def spatial(*extents: int, ranks: Sequence[int] = ()) -> TaskMapping:
    """Return the mapping that gives each worker one task."""
    return TaskMapping((Atom("spatial", extents, tuple(ranks)),))


def repeat(*extents: int, ranks: Sequence[int] = ()) -> TaskMapping:
    """Return the mapping that gives one worker all tasks."""
    return TaskMapping((Atom("repeat", extents, tuple(ranks)),))


def column_spatial(*extents: int) -> TaskMapping:
    """Return :func:`spatial` whose first dim varies fastest."""
    return spatial(*extents, ranks=tuple(reversed(range(len(extents)))))


def column_repeat(*extents: int) -> TaskMapping:
    """Return :func:`repeat` whose first dim varies fastest."""
    return repeat(*extents, ranks=tuple(reversed(range(len(extents)))))


def replicate(*extents: int) -> TaskMapping:
    """Return the mapping whose ``prod(extents)`` workers all do the one task."""
    return TaskMapping((Atom("replicate", extents),))


def auto_map(*extents: int, workers: int, ranks: Sequence[int] = ()) -> TaskMapping:
    """Spread tasks over workers so that neighbours in the fastest dim are neighbours (Hidet).

    >>> str(auto_map(128, 8, workers=256))
    'repeat(4, 1) * spatial(32, 8)'

    Raises:
        ValueError: where the workers do not divide the tasks.
    """
    order = Atom("spatial", extents, tuple(ranks)).order
    inner, left = [1] * len(extents), workers
    for dim in reversed(order):
        inner[dim] = gcd(left, extents[dim])
        left //= inner[dim]
    if left != 1:
        raise ValueError(f"{workers} workers do not divide {prod(extents)} tasks of {extents}")
    outer = [size // part for size, part in zip(extents, inner, strict=True)]
    return repeat(*outer, ranks=ranks) * spatial(*inner, ranks=ranks)


def compose(*mappings: TaskMapping) -> TaskMapping:
    """Compose mappings, outermost first; atoms whose extents are all 1 drop."""
    atoms = [atom for mapping in mappings for atom in mapping.atoms]
    kept = [atom for atom in atoms if prod(atom.extents) != 1] or atoms[:1]
    return TaskMapping(tuple(kept))

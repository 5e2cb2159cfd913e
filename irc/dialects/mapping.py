"""Task mappings (Hidet, arXiv:2210.09603): which worker does which tasks, in which order.

A mapping is ``(num_workers, task_shape, worker -> ordered tasks)``. ``spatial(d...)`` gives each of
``prod(d)`` workers one task; ``repeat(d...)`` gives one worker all tasks, last dim fastest; the
composition ``f1 * f2`` (f1 outside) refines each task of f1 by f2:

    phi(w) = [t1 * d2 + t2  for t1 in phi1(w // n2)  for t2 in phi2(w % n2)]

>>> m = parse_mapping("spatial(2, 1) * repeat(2, 2)")
>>> m.task_shape, m.num_workers, m.tasks(1)
((4, 2), 2, [(2, 0), (2, 1), (3, 0), (3, 1)])
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product as cartesian
from math import prod
from typing import Literal, TypeAlias

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

Task: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Atom:
    """``spatial(extents)`` or ``repeat(extents)``, row-major (last dim fastest)."""

    kind: Literal["spatial", "repeat"]
    extents: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.extents))})"

    @property
    def num_workers(self) -> int:
        """One worker per task of a spatial atom, one in all for a repeat."""
        return prod(self.extents) if self.kind == "spatial" else 1

    def tasks(self, worker: int) -> list[Task]:
        """Return the tasks of a worker, in execution order."""
        if self.kind == "repeat":
            return list(cartesian(*map(range, self.extents)))
        task: list[int] = []
        for extent in reversed(self.extents):
            worker, index = divmod(worker, extent)
            task.insert(0, index)
        return [tuple(task)]


@dataclass(frozen=True)
class TaskMapping:
    """A composition of atoms, outermost first, all of the same number of dims."""

    atoms: tuple[Atom, ...]

    def __str__(self) -> str:
        return " * ".join(map(str, self.atoms))

    @property
    def ndim(self) -> int:
        """The number of task dimensions."""
        return len(self.atoms[0].extents)

    @property
    def num_workers(self) -> int:
        """The product over the atoms."""
        return prod(atom.num_workers for atom in self.atoms)

    @property
    def task_shape(self) -> tuple[int, ...]:
        """The extent of the task space in each dim."""
        return tuple(prod(atom.extents[d] for atom in self.atoms) for d in range(self.ndim))

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

    def split(self) -> tuple[TaskMapping | None, TaskMapping | None]:
        """Split into the leading spatial atoms (the grid) and the rest (what one worker does)."""
        count = next((i for i, a in enumerate(self.atoms) if a.kind != "spatial"), len(self.atoms))
        grid = TaskMapping(self.atoms[:count]) if count else None
        rest = TaskMapping(self.atoms[count:]) if count < len(self.atoms) else None
        return grid, rest


MAX_ENUMERATED = 1 << 16


def verify_coverage(mapping: TaskMapping) -> None:
    """Prove that every task is done exactly once.

    By enumeration up to 65,536 tasks. Above, by the mixed-radix argument: each atom is a bijection
    (workers x slots) -> its extents, and ``t1 * d2 + t2`` is a bijection of the pair where
    ``t2 < d2``; so a composition of well-formed atoms is one too, and the small cases test the
    code.

    Raises:
        VerifyException: with the first task that is missed or done twice.
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
    if prod(mapping.task_shape) > MAX_ENUMERATED:
        return
    seen: set[Task] = set()
    for worker in range(mapping.num_workers):
        for task in mapping.tasks(worker):
            if task in seen:
                raise VerifyException(
                    f"{mapping} does task {task} twice (again by worker {worker})"
                )
            seen.add(task)
    for task in cartesian(*map(range, mapping.task_shape)):
        if task not in seen:
            raise VerifyException(f"{mapping} misses task {task}")


def spatial(*extents: int) -> TaskMapping:
    """Return the mapping that gives each worker one task."""
    return TaskMapping((Atom("spatial", extents),))


def repeat(*extents: int) -> TaskMapping:
    """Return the mapping that gives one worker all tasks."""
    return TaskMapping((Atom("repeat", extents),))


def compose(*mappings: TaskMapping) -> TaskMapping:
    """Compose mappings, outermost first; atoms whose extents are all 1 drop."""
    atoms = [atom for mapping in mappings for atom in mapping.atoms]
    kept = [atom for atom in atoms if prod(atom.extents) != 1] or atoms[:1]
    return TaskMapping(tuple(kept))


_ATOM = re.compile(r"\s*(spatial|repeat)\s*\(([0-9,\s]*)\)\s*")


def parse_mapping(text: str) -> TaskMapping:
    """Parse ``spatial(4, 2) * repeat(2, 2)``.

    Raises:
        ValueError: naming the part that is wrong.
    """
    atoms: list[Atom] = []
    for part in text.split("*"):
        match = _ATOM.fullmatch(part)
        if match is None:
            raise ValueError(f"{part.strip()!r} is not spatial(...) or repeat(...)")
        extents = tuple(int(e) for e in match[2].split(",") if e.strip())
        atoms.append(Atom("spatial" if match[1] == "spatial" else "repeat", extents))
    return TaskMapping(tuple(atoms))


@irdl_attr_definition
class MappingAttr(Data[TaskMapping]):
    """A task mapping, ``#task.map<spatial(4, 2) * repeat(2, 2)>``; covers each task once."""

    name = "task.map"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TaskMapping:
        atoms: list[Atom] = []
        with parser.in_angle_brackets():
            while True:
                kind = parser.parse_identifier()
                if kind not in ("spatial", "repeat"):
                    parser.raise_error(
                        f"a task mapping is made of spatial and repeat, not '{kind}'"
                    )
                extents = parser.parse_comma_separated_list(
                    parser.Delimiter.PAREN, lambda: parser.parse_integer(allow_boolean=False)
                )
                atoms.append(Atom("spatial" if kind == "spatial" else "repeat", tuple(extents)))
                if parser.parse_optional_punctuation("*") is None:
                    break
        return TaskMapping(tuple(atoms))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")

    def verify(self) -> None:
        verify_coverage(self.data)

"""Task mappings as strided digits: their canonical form, equality, and coverage without counting.

Number the workers of a mapping, and the slots of one worker, in mixed radix: each digit moves the
task along one dim by a fixed stride (a digit of ``replicate`` moves nothing). These *modes* (Tilus'
word, arXiv:2504.12984) say all that a mapping is: ``task[d] = sum(stride * digit)``. Modes of
extent 1 drop, and neighbours that count on (the outer stride is the inner one times its extent)
join. What remains is unique: the innermost mode ends where the task first stops moving evenly, so
two mappings are the same function exactly where their modes are equal.

>>> from irc.dialects.mapping_attr import parse_mapping
>>> str(simplify(parse_mapping("spatial(2, 1) * repeat(1, 3) * spatial(2, 1) * repeat(1, 2)")))
'spatial(4, 1) * repeat(1, 6)'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as cartesian
from math import prod

from xdsl.utils.exceptions import VerifyException

from irc.dialects.mapping import MAX_ENUMERATED, Atom, AtomKind, Task, TaskMapping
from irc.errors import InternalError

NOWHERE = -1
"""The dim of a digit that moves no task."""


@dataclass(frozen=True)
class Mode:
    """One digit: ``extent`` values, each of which moves the task by ``stride`` along ``dim``."""

    extent: int
    dim: int
    stride: int


@dataclass(frozen=True)
class Modes:
    """A mapping by its digits, outermost first.

    Attributes:
        workers: digits of the number of a worker.
        slots: digits of the place in a worker's list.
        shape: the task space.
    """

    workers: tuple[Mode, ...]
    slots: tuple[Mode, ...]
    shape: tuple[int, ...]

    @property
    def replication(self) -> int:
        """How many workers do each task of a mapping that covers its space."""
        return prod(mode.extent for mode in self.workers if mode.dim == NOWHERE)

    def task(self, worker: int, slot: int) -> Task:
        """Return one task."""
        task = [0] * len(self.shape)
        for modes, number in ((self.workers, worker), (self.slots, slot)):
            for mode in reversed(modes):
                number, digit = divmod(number, mode.extent)
                if mode.dim != NOWHERE:
                    task[mode.dim] += digit * mode.stride
        return tuple(task)


def modes_of(mapping: TaskMapping) -> Modes:
    """Return the canonical modes of a mapping."""
    workers: list[Mode] = []
    slots: list[Mode] = []
    weights = [1] * mapping.ndim
    for atom in reversed(mapping.atoms):
        digits = workers if atom.kind != "repeat" else slots
        for dim in reversed(atom.order):
            if atom.kind == "replicate":
                digits.append(Mode(atom.extents[dim], NOWHERE, 0))
            else:
                digits.append(Mode(atom.extents[dim], dim, weights[dim]))
        weights = [w * n for w, n in zip(weights, atom.task_shape, strict=True)]
    return Modes(_joined(workers), _joined(slots), tuple(weights))


def _joined(digits: Sequence[Mode]) -> tuple[Mode, ...]:
    """Join digits that count on; takes them innermost first, gives them outermost first."""
    modes: list[Mode] = []
    for mode in digits:
        if mode.extent == 1:
            continue
        if modes and modes[-1].dim == mode.dim:
            inner = modes[-1]
            if mode.stride == inner.stride * inner.extent:
                modes[-1] = Mode(inner.extent * mode.extent, inner.dim, inner.stride)
                continue
        modes.append(mode)
    return tuple(reversed(modes))


def same_function(one: TaskMapping, other: TaskMapping) -> bool:
    """Say exactly, without enumeration, whether two mappings give every worker the same list."""
    return modes_of(one) == modes_of(other)


def simplify(mapping: TaskMapping) -> TaskMapping:
    """Return the shortest product of atoms that is the same function, a canonical one.

    Raises:
        InternalError: where the result is another function (the verifier of this rewriting).
    """
    modes = modes_of(mapping)
    simplified = TaskMapping(tuple(_atoms(modes)))
    if not same_function(mapping, simplified):
        raise InternalError(f"{mapping} simplified to {simplified}, which is another mapping")
    return simplified


def _atoms(modes: Modes) -> list[Atom]:
    """Write modes as atoms: a digit may come when its stride is what the later ones leave."""
    left = list(modes.shape)
    queues = {"workers": list(modes.workers), "slots": list(modes.slots)}
    taken: list[tuple[AtomKind, Mode]] = []
    while any(queues.values()):
        ready = {name: q[0] for name, q in queues.items() if q and _is_next(q[0], left)}
        last = "slots" if taken and taken[-1][0] == "repeat" else "workers"
        name = last if last in ready else next(iter(ready))
        mode = queues[name].pop(0)
        if mode.dim != NOWHERE:
            left[mode.dim] = mode.stride
        kind = "repeat" if name == "slots" else "replicate" if mode.dim == NOWHERE else "spatial"
        taken.append((kind, mode))
    return _grouped(taken, len(modes.shape)) or [Atom("repeat", (1,) * len(modes.shape))]


def _is_next(mode: Mode, left: Sequence[int]) -> bool:
    return mode.dim == NOWHERE or mode.extent * mode.stride == left[mode.dim]


def _grouped(taken: Sequence[tuple[AtomKind, Mode]], ndim: int) -> list[Atom]:
    """Put neighbours of one kind into one atom while their dims come in row-major order."""
    atoms: list[Atom] = []
    last = ndim
    for kind, mode in taken:
        dim = max(mode.dim, 0)
        if atoms and atoms[-1].kind == kind and kind != "replicate" and dim > last:
            sizes = list(atoms.pop().extents)
        else:
            sizes = [1] * ndim
        sizes[dim if kind != "replicate" else ndim - 1] = mode.extent
        atoms.append(Atom(kind, tuple(sizes)))
        last = dim
    return atoms


def verify_modes(modes: Modes, name: str = "the mapping") -> None:
    """Prove that modes do every task of their shape exactly ``replication`` times.

    In each dim, sorted by stride, the digits must be a mixed-radix number: the first stride 1, each
    next one the product of the extents before, all together the size. That is exact: when the
    digits so far reach 0 to r - 1 once each, the next stride can be no less than r (something
    would be done twice) and no more (r itself would be missed).

    Raises:
        VerifyException: with a task that is missed or done too often.
    """
    for dim, size in enumerate(modes.shape):
        digits = [m for m in (*modes.workers, *modes.slots) if m.dim == dim and m.extent > 1]
        digits.sort(key=lambda mode: mode.stride)
        reached = 1
        for mode in digits:
            if mode.stride != reached:
                break
            reached *= mode.extent
        else:
            if reached == size:
                continue
        raise VerifyException(f"{name} {_wrong(digits, dim, modes.shape)}")
    if any(mode.dim == NOWHERE for mode in modes.slots):
        raise VerifyException(f"{name} lets one worker do a task again")


def _wrong(digits: Sequence[Mode], dim: int, shape: Sequence[int]) -> str:
    """Name the first index along a dim that is not reached once."""
    size = shape[dim]
    points = prod(mode.extent for mode in digits)
    if max(points, size) > MAX_ENUMERATED:
        return f"reaches index {size - 1} of dim {dim} by {points} combinations of its digits"
    counts = dict.fromkeys(range(size), 0)
    for point in cartesian(*(range(mode.extent) for mode in digits)):
        at = sum(value * mode.stride for value, mode in zip(point, digits, strict=True))
        counts[at] = counts.get(at, 0) + 1
    index = next(i for i in sorted(counts) if i >= size or counts[i] != 1)
    task = tuple(index if d == dim else 0 for d in range(len(shape)))
    if index >= size:
        return f"does task {task}, which is outside {tuple(shape)}"
    return f"misses task {task}" if not counts[index] else f"does task {task} twice"

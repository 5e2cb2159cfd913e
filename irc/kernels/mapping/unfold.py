"""A task mapping as code: digits of the worker once, then loops. Nothing is enumerated.

The modes of a mapping (:mod:`irc.dialects.mapping_modes`) say which digits the number of a worker
has and which loops it runs. A digit costs a division and a remainder, once for all tasks of the
worker; inside the loops only multiples of loop counters are added:

    task[d] = start[d] + sum(stride * counter)

>>> from irc.dialects.mapping_attr import parse_mapping
>>> m = parse_mapping("spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)")
>>> for text in starts(m, "t", C()): print(text)
t / 64 * 32 + t / 8 % 4 * 4
t / 32 % 2 * 64 + t % 8 * 4
>>> [(loop.extent, loop.dim, loop.stride) for loop in loops(m)]
[(2, 0, 16), (2, 1, 32), (4, 0, 1), (4, 1, 1)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from irc.dialects.mapping import TaskMapping
from irc.dialects.mapping_modes import NOWHERE, Mode, modes_of

T = TypeVar("T")


class Arithmetic(Protocol[T]):
    """What an emitter can do with non-negative integers; constants are Python's."""

    def constant(self, value: int) -> T: ...
    def divide(self, x: T, by: int) -> T: ...
    def modulo(self, x: T, by: int) -> T: ...
    def times(self, x: T, by: int) -> T: ...
    def plus(self, x: T, y: T) -> T: ...


@dataclass(frozen=True)
class Digit:
    """``worker / divisor % extent``, which moves the task by ``stride`` along ``dim``.

    Attributes:
        bounded: whether the remainder is needed: not for the leading digit, as workers are fewer.
    """

    divisor: int
    extent: int
    bounded: bool
    dim: int
    stride: int


def digits(mapping: TaskMapping) -> tuple[Digit, ...]:
    """Return the digits of a worker that move a task, outermost first."""
    moving: list[Digit] = []
    divisor, modes = 1, modes_of(mapping).workers
    for place in range(len(modes) - 1, -1, -1):
        mode = modes[place]
        if mode.dim != NOWHERE:
            moving.append(Digit(divisor, mode.extent, place > 0, mode.dim, mode.stride))
        divisor *= mode.extent
    return tuple(reversed(moving))


def loops(mapping: TaskMapping) -> tuple[Mode, ...]:
    """Return the loops of a worker, outermost first: each counter moves the task by a stride."""
    return modes_of(mapping).slots


def starts(mapping: TaskMapping, worker: T, code: Arithmetic[T]) -> list[T]:
    """Write the first task of a worker, by dim.

    Args:
        mapping: any; its replicas start alike.
        worker: the number of the worker, below ``mapping.num_workers`` (the caller guards it).
        code: the emitter.
    """
    coordinates: list[T | None] = [None] * mapping.ndim
    for digit in digits(mapping):
        value = worker if digit.divisor == 1 else code.divide(worker, digit.divisor)
        value = code.modulo(value, digit.extent) if digit.bounded else value
        value = value if digit.stride == 1 else code.times(value, digit.stride)
        before = coordinates[digit.dim]
        coordinates[digit.dim] = value if before is None else code.plus(before, value)
    return [code.constant(0) if value is None else value for value in coordinates]


class C:
    """C expressions: products and quotients from left to right, so that no brackets are needed.

    A worker that is no plain name is put into brackets by the caller.
    """

    def constant(self, value: int) -> str:
        return str(value)

    def divide(self, x: str, by: int) -> str:
        return f"{x} / {by}"

    def modulo(self, x: str, by: int) -> str:
        return f"{x} % {by}"

    def times(self, x: str, by: int) -> str:
        return f"{x} * {by}"

    def plus(self, x: str, y: str) -> str:
        return f"{x} + {y}"


class Numbers:
    """Plain numbers: the lowering as an interpreter, for tests."""

    def constant(self, value: int) -> int:
        return value

    def divide(self, x: int, by: int) -> int:
        return x // by

    def modulo(self, x: int, by: int) -> int:
        return x % by

    def times(self, x: int, by: int) -> int:
        return x * by

    def plus(self, x: int, y: int) -> int:
        return x + y

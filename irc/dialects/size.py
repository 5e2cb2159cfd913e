"""Sizes of tensor dimensions: integers, or polynomials over named symbols.

A dimension is a plain ``int`` where it is known and a :class:`Size` where it depends on a name
(``B``, ``4*S``, ``B*S + 1``). Polynomials with integer coefficients are closed under everything
that shape rules need, compare by normal form, and cannot execute code (sympy's parser can).
Quotients appear only where they are exact; otherwise the caller binds the names first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol, TypeAlias

Monomial: TypeAlias = tuple[tuple[str, int], ...]
"""Sorted ``(name, power)`` pairs; the empty tuple is the constant term."""


Relation: TypeAlias = Literal["<", "<=", "=="]
"""How a size compares with 0."""


class UnboundSizeError(TypeError):
    """A decision needs the number behind a size that is still a name.

    Attributes:
        names: of the size.
    """

    def __init__(self, message: str, names: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.names = names


class Deciding(Protocol):
    """What answers, while a program is traced, where polynomials alone do not tell.

    As torch's ShapeEnv: an answer is that of the numbers at hand, and noted as a condition under
    which the trace holds.
    """

    def decide(self, relation: Relation, difference: Size) -> bool | None:
        """Say whether a size compares so with 0; None where nothing is known of it."""
        ...

    def quotient(self, dim: Size, by: int) -> Dim | None:
        """Return ``floor(dim / by)``, perhaps as a new name; None where nothing is known of it."""
        ...


_DECIDING: ContextVar[Deciding | None] = ContextVar("_DECIDING", default=None)
_LOWEST: ContextVar[Mapping[str, int] | None] = ContextVar("_LOWEST", default=None)


@contextmanager
def deciding(by: Deciding) -> Generator[None]:
    """Let comparisons and quotients of sizes be answered inside."""
    token = _DECIDING.set(by)
    try:
        yield
    finally:
        _DECIDING.reset(token)


@contextmanager
def lowest(numbers: Mapping[str, int]) -> Generator[None]:
    """Let :func:`least` know the least number of some names inside."""
    token = _LOWEST.set(numbers)
    try:
        yield
    finally:
        _LOWEST.reset(token)


def decided(relation: Relation, difference: Dim) -> bool | None:
    """Say whether a difference compares so with 0; None where it depends on a name, outside traces.

    >>> decided("<", -1), decided("==", symbol("S"))
    (True, None)
    """
    if isinstance(difference, int):
        if relation == "==":
            return difference == 0
        return difference < 0 if relation == "<" else difference <= 0
    tracer = _DECIDING.get()
    return None if tracer is None else tracer.decide(relation, difference)


def is_traced() -> bool:
    """True where a program is being traced: sizes can be compared and divided."""
    return _DECIDING.get() is not None


def _compared(relation: Relation, size: Size, other: Any) -> bool:
    holds = None
    if isinstance(other, int | Size):
        holds = decided(relation, size - other)
    if holds is None:
        raise _unbound(size, other)
    return holds


def _unbound(size: Size, other: object) -> UnboundSizeError:
    return UnboundSizeError(
        f"'{size}' is compared with or divided by {other}: it needs a number", size.names()
    )


@dataclass(frozen=True)
class Size:
    """A polynomial that is not a constant; build it with :func:`symbol` and arithmetic.

    >>> str(symbol("S") * 4 + 1)
    '4*S + 1'
    >>> symbol("B") * symbol("S") == symbol("S") * symbol("B")
    True
    """

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _sum((*self.terms, *terms_of(other)))

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Dim:
        return _sum(
            (_times(left, right), a * b) for left, a in self.terms for right, b in terms_of(other)
        )

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return self * -1 + other

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            factors = [name for name, power in monomial for _ in range(power)]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            text += (
                f" {sign} {'*'.join(factors)}"
                if text
                else f"{'-' * (sign == '-')}{'*'.join(factors)}"
            )
        return text

    def __lt__(self, other: Any) -> bool:
        return _compared("<", self, other)

    def __le__(self, other: Any) -> bool:
        return _compared("<=", self, other)

    def __gt__(self, other: Any) -> bool:
        return not _compared("<=", self, other)

    def __ge__(self, other: Any) -> bool:
        return not _compared("<", self, other)

    def __floordiv__(self, other: Any) -> Dim:
        tracer = _DECIDING.get()
        quotient = None
        if tracer is not None and isinstance(other, int) and other > 0:
            quotient = tracer.quotient(self, other)
        if quotient is None:
            raise _unbound(self, other)
        return quotient

    def __mod__(self, other: Any) -> Dim:
        return self - (self // other) * other

    def __rfloordiv__(self, other: object) -> int:
        raise _unbound(self, other)

    __rmod__ = __rfloordiv__

    def __index__(self) -> int:
        raise UnboundSizeError(f"'{self}' stands where a number is needed", self.names())

    def names(self) -> frozenset[str]:
        """Return the symbols that the size depends on."""
        return frozenset(name for monomial, _ in self.terms for name, _ in monomial)


Dim: TypeAlias = int | Size
"""One tensor dimension."""


def symbol(name: str) -> Size:
    """Return the size that is just ``name``.

    Raises:
        ValueError: if the name is not a plain ASCII identifier.
    """
    if not (name.isascii() and name.isidentifier()):
        raise ValueError(f"size name {name!r} is not an ASCII identifier")
    return Size(((((name, 1),), 1),))


def terms_of(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    """Return the terms of a size; an integer has the constant term alone."""
    return dim.terms if isinstance(dim, Size) else (((), dim),)


def bind(dim: Dim, values: Mapping[str, int]) -> Dim:
    """Replace the names that ``values`` gives.

    >>> bind(symbol("S") * 4, {"S": 8})
    32
    """
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for name, power in monomial:
            for _ in range(power):
                product = product * values.get(name, symbol(name))
        total = total + product
    return total


def product(dims: Iterable[Dim]) -> Dim:
    """Multiply sizes; the empty product is 1."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def divide(dim: Dim, by: Dim) -> Dim | None:
    """Return ``dim / by`` where the quotient is exact, else None.

    >>> str(divide(symbol("B") * 12, 4)), divide(7, 2)
    ('3*B', None)
    """
    if by == 0:
        return None
    if dim == 0:
        return 0
    if dim == by:
        return 1
    if isinstance(by, int):
        if any(coefficient % by for _, coefficient in terms_of(dim)):
            return None
        return _sum((monomial, coefficient // by) for monomial, coefficient in terms_of(dim))
    if len(by.terms) != 1:
        return None
    divisor, scale = by.terms[0]
    quotient: list[tuple[Monomial, int]] = []
    for monomial, coefficient in terms_of(dim):
        powers = dict(monomial)
        if coefficient % scale or any(powers.get(n, 0) < p for n, p in divisor):
            return None
        for name, power in divisor:
            powers[name] -= power
        kept = tuple(sorted((n, p) for n, p in powers.items() if p))
        quotient.append((kept, coefficient // scale))
    return _sum(quotient)


def floor_quotient(dim: Size, by: int, named: Callable[[Size, int], Dim | None]) -> Dim | None:
    """Return ``floor(dim / by)``: a polynomial where only the constant is no multiple, else a name.

    >>> H = symbol("H")
    >>> str(floor_quotient(4 * H + 7, 2, lambda dim, by: None))
    '2*H + 3'

    Args:
        dim: what is divided.
        by: positive.
        named: gives a quotient a name; it stands for numbers that are not negative.
    """
    if dim.terms[0][1] < 0:
        # floor(-n / d) = -floor((n + d - 1) / d)
        turned = -dim + (by - 1)
        assert isinstance(turned, Size)
        quotient = floor_quotient(turned, by, named)
        return None if quotient is None else -quotient
    constant = dict(dim.terms).get((), 0)
    if all(coefficient % by == 0 for monomial, coefficient in dim.terms if monomial):
        return _sum((m, c // by) for m, c in dim.terms if m) + constant // by
    # One name for all that differ by whole steps.
    rest = dim - constant + constant % by
    assert isinstance(rest, Size)
    quotient = named(rest, by)
    return None if quotient is None else quotient + constant // by


def _times(left: Monomial, right: Monomial) -> Monomial:
    powers: dict[str, int] = dict(left)
    for name, power in right:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted(powers.items()))


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    collected: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        collected[monomial] = collected.get(monomial, 0) + coefficient
    # Highest degree first, so that `B*S + 1` prints as people write it.
    kept = sorted(
        ((m, c) for m, c in collected.items() if c),
        key=lambda term: (-sum(power for _, power in term[0]), term[0]),
    )
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    return Size(tuple(kept))


def names_of(dims: Iterable[Dim]) -> tuple[str, ...]:
    """Return the symbols of some sizes, in order.

    >>> names_of((symbol("S") * symbol("B"), 4))
    ('B', 'S')
    """
    return tuple(sorted({n for dim in dims if isinstance(dim, Size) for n in dim.names()}))


def value_of(dim: Dim, values: Mapping[str, int]) -> int:
    """Return the number of a size, all of whose names ``values`` gives.

    Raises:
        UnboundSizeError: naming the size that has another name too.
    """
    bound = bind(dim, values)
    if isinstance(bound, Size):
        raise UnboundSizeError(
            f"'{dim}' needs a value of {', '.join(sorted(bound.names()))}", bound.names()
        )
    return bound


def least(dim: Dim, start: int = 2, most: Mapping[str, int] | None = None) -> int | None:
    """Return a value that is never passed below where every name is at least ``start``, or None.

    Written in what each name exceeds ``start`` by, a polynomial without negative coefficients is
    least where all of them are ``start``: its constant term. A term with a negative one is least
    where its names are greatest, if ``most`` says how great. Inside :func:`lowest`, names that it
    says more of start there.

    >>> S = symbol("S")
    >>> least(S * S - S), least(3 - S), least(3 - S, most={"S": 8})
    (2, None, -5)
    """
    if isinstance(dim, int):
        return dim
    moved: Dim = 0
    low = _LOWEST.get() or {}
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for name, power in monomial:
            for _ in range(power):
                term = term * (symbol(name) + low.get(name, start))
        moved = moved + term
    terms = dict(terms_of(moved))
    total = terms.get((), 0)
    for monomial, coefficient in terms.items():
        if monomial and coefficient < 0:
            if most is None or any(name not in most for name, _ in monomial):
                return None
            total += coefficient * prod(
                (most[name] - low.get(name, start)) ** power for name, power in monomial
            )
    return total


def is_negative(stride: Dim) -> bool:
    """True for a stride below zero, whatever the sizes.

    Raises:
        UnboundSizeError: where that depends on a size.
    """
    if isinstance(stride, int):
        return stride < 0
    for number, negative in ((stride, False), (-stride, True)):
        minimum = least(number)
        if minimum is not None and minimum >= 0:
            return negative
    raise UnboundSizeError(f"the sign of stride '{stride}' depends on its sizes")

"""Sizes of tensor dimensions: integers, or polynomials over named symbols.

A dimension is a plain ``int`` where it is known and a :class:`Size` where it depends on a name
(``B``, ``4*S``, ``B*S + 1``). Polynomials with integer coefficients are closed under everything
that shape rules need, compare by normal form, and cannot execute code (sympy's parser can).
Quotients appear only where they are exact; otherwise the caller binds the names first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import NoReturn, TypeAlias

Monomial: TypeAlias = tuple[tuple[str, int], ...]
"""Sorted ``(name, power)`` pairs; the empty tuple is the constant term."""


class UnboundSizeError(TypeError):
    """A decision needs the number behind a size that is still a name."""


def _unbound(size: Size, other: object) -> NoReturn:
    raise UnboundSizeError(f"'{size}' is compared with or divided by {other}: it needs a number")


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

    def __lt__(self, other: object) -> bool:
        return _unbound(self, other)

    __le__ = __gt__ = __ge__ = __lt__

    def __floordiv__(self, other: object) -> int:
        return _unbound(self, other)

    __mod__ = __rfloordiv__ = __rmod__ = __floordiv__

    def __index__(self) -> int:
        raise UnboundSizeError(f"'{self}' stands where a number is needed")

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
        raise UnboundSizeError(f"'{dim}' needs a value of {', '.join(sorted(bound.names()))}")
    return bound


def least(dim: Dim, start: int = 2, most: Mapping[str, int] | None = None) -> int | None:
    """Return a value that is never passed below where every name is at least ``start``, or None.

    Written in what each name exceeds ``start`` by, a polynomial without negative coefficients is
    least where all of them are ``start``: its constant term. A term with a negative one is least
    where its names are greatest, if ``most`` says how great.

    >>> S = symbol("S")
    >>> least(S * S - S), least(3 - S), least(3 - S, most={"S": 8})
    (2, None, -5)
    """
    if isinstance(dim, int):
        return dim
    moved: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for name, power in monomial:
            for _ in range(power):
                term = term * (symbol(name) + start)
        moved = moved + term
    found = dict(terms_of(moved))
    total = found.get((), 0)
    for monomial, coefficient in found.items():
        if monomial and coefficient < 0:
            if most is None or any(name not in most for name, _ in monomial):
                return None
            total += coefficient * prod((most[name] - start) ** power for name, power in monomial)
    return total

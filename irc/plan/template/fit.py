"""Which polynomial of the sizes a number of a plan is, read off a few plans for known sizes.

Numbers of plans are sums of few products: ``768*B*S`` elements, ``S*S`` scores, ``S - 1`` as a
last position. So the search is for few terms with integer coefficients, the fewest first; every
witness that the coefficients do not need is a check. Sizes of witnesses are primes, of which no two
products of low degree are in small ratios (Schwartz, J. ACM 27(4), 1980, bounds how often a
polynomial that is not zero vanishes on such points).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, combinations_with_replacement
from math import prod

from irc.dialects.size import Dim, Monomial, symbol
from irc.dialects.size import product as product_of

MAX_DEGREE = 4
"""Batch, heads, and a product of two sequence lengths."""

MAX_TRIPLES = 24
"""So many products are tried three at a time; with more, terms are at most two."""


MAX_FACTORS = 3
"""Sums in one product: three dims of an image with a border."""

SHIFTS = (-1, 1, -2, 2, 3, 4, 5, 6, -3, -4)
"""What is added to a size at a border."""

STEPS = {1: SHIFTS, 2: (1, -1, 3, 5, -3), 4: (3, 1, -1, -3)}
"""What is added by how far windows are apart: those of 3 at each second place reach ``2*Q + 1``."""


class Fitter:
    """Finds polynomials that take given values at the witnesses.

    >>> fitter = Fitter([{"B": 3, "S": 17}, {"B": 5, "S": 23}, {"B": 7, "S": 13}])
    >>> str(fitter.fit((3 * 17 * 64, 5 * 23 * 64, 7 * 13 * 64))), fitter.fit((1, 5, 2))
    ('64*B*S', None)

    Args:
        witnesses: a number for each symbol, in each plan.
    """

    def __init__(self, witnesses: Sequence[Mapping[str, int]]) -> None:
        self._columns = _columns(witnesses)
        self._factors = [
            (symbol(name) * step + shift, tuple(w[name] * step + shift for w in witnesses))
            for name in witnesses[0]
            for step, shifts in STEPS.items()
            for shift in shifts
        ]
        self._known: dict[tuple[int, ...], Dim | None] = {}

    def fit(self, values: tuple[int, ...]) -> Dim | None:
        """Return the polynomial with these values, None where none of few terms has them."""
        if len(set(values)) == 1:
            return values[0]
        if values not in self._known:
            self._known[values] = self._search(values)
        return self._known[values]

    def _search(self, values: tuple[int, ...]) -> Dim | None:
        most = 3 if len(self._columns) <= MAX_TRIPLES else 2
        # With as many terms as witnesses everything fits.
        counts = range(1, min(most, len(values) - 2) + 1)
        for count in counts[:2]:
            if (dim := self._terms(values, count)) is not None:
                return dim
        if (dim := self._product(values, 0, MAX_FACTORS)) is not None:
            return dim
        return self._terms(values, counts[2]) if len(counts) > 2 else None

    def _terms(self, values: tuple[int, ...], count: int) -> Dim | None:
        """Return a sum of so many terms with these values."""
        for chosen in combinations(self._columns, count):
            columns = [column for _, column in chosen]
            coefficients = _solved(columns, values)
            if coefficients is not None:
                return _polynomial([monomial for monomial, _ in chosen], coefficients)
        return None

    def _product(self, values: tuple[int, ...], start: int, depth: int) -> Dim | None:
        """Return a product of linear factors: a padded image has ``B*(H + 2)*(W + 2)`` places."""
        if (dim := self._terms(values, 1)) is not None:
            return dim
        for position in range(start, len(self._factors) if depth else 0):
            factor, column = self._factors[position]
            if any(not n or v % n for v, n in zip(values, column, strict=True)):
                continue
            rest = tuple(v // n for v, n in zip(values, column, strict=True))
            inner = rest[0] if len(set(rest)) == 1 else self._product(rest, position, depth - 1)
            if inner is not None:
                return factor * inner
        return None


def _columns(witnesses: Sequence[Mapping[str, int]]) -> list[tuple[Monomial, tuple[int, ...]]]:
    """Return the products of symbols up to a degree, each with its values, the lowest first."""
    names = list(witnesses[0])
    values = {name: tuple(w[name] for w in witnesses) for name in names}
    monomials: dict[tuple[int, ...], Monomial] = {}
    for degree in range(MAX_DEGREE + 1 if len(names) <= 3 else MAX_DEGREE):
        for chosen in combinations_with_replacement(sorted(names), degree):
            column = tuple(prod(values[name][i] for name in chosen) for i in range(len(witnesses)))
            powers = {name: chosen.count(name) for name in chosen}
            # What two products of symbols have in common at all witnesses, they have: aliases.
            monomials.setdefault(column, tuple(sorted(powers.items())))
    return [(monomial, column) for column, monomial in monomials.items()]


def _solved(columns: Sequence[Sequence[int]], values: Sequence[int]) -> tuple[int, ...] | None:
    """Return integers, none of them 0, that combine columns to values, or None."""
    for rows in combinations(range(len(values)), len(columns)):
        head = [[column[i] for column in columns] for i in rows]
        # Quotients of witnesses may be equal at some: those say the same.
        if whole := _determinant(head):
            return _combined(columns, values, rows, head, whole)
    return None


def _combined(
    columns: Sequence[Sequence[int]],
    values: Sequence[int],
    rows: Sequence[int],
    head: Sequence[Sequence[int]],
    whole: int,
) -> tuple[int, ...] | None:
    """Return what these rows say of the integers, if all rows do (Cramer)."""
    coefficients: list[int] = []
    for place in range(len(columns)):
        changed = [
            [*row[:place], values[i], *row[place + 1 :]] for i, row in zip(rows, head, strict=True)
        ]
        quotient, rest = divmod(_determinant(changed), whole)
        if rest or not quotient:
            return None
        coefficients.append(quotient)
    for i in set(range(len(values))) - {*rows}:
        if sum(c * column[i] for c, column in zip(coefficients, columns, strict=True)) != values[i]:
            return None
    return tuple(coefficients)


def _determinant(rows: Sequence[Sequence[int]]) -> int:
    if len(rows) == 1:
        return rows[0][0]
    first, *rest = rows
    return sum(
        (-1) ** place * entry * _determinant([[*row[:place], *row[place + 1 :]] for row in rest])
        for place, entry in enumerate(first)
        if entry
    )


def _polynomial(monomials: Sequence[Monomial], coefficients: Sequence[int]) -> Dim:
    total: Dim = 0
    for monomial, coefficient in zip(monomials, coefficients, strict=True):
        names = [symbol(name) for name, power in monomial for _ in range(power)]
        total = total + product_of(names) * coefficient
    return total

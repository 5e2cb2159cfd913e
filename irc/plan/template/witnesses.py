"""At which sizes plans are made to find what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from math import isqrt

COUNT = 4
"""Plans that the polynomials are found from: three terms would need one more for a check."""

MAX_TRIES = 2000
"""Assignments that are looked at."""

MAX_CANDIDATES = 4096
"""Numbers that are tried for a size, about."""

ENOUGH = 24
"""Choices for a size that lead to different quotients."""

FEWEST = 12
"""Rows and the like below which plans are made otherwise: witnesses lie above, where they may."""


def witnesses(
    first: Mapping[str, int],
    admitted: Callable[[Mapping[str, int]], bool],
    count: int = COUNT + 1,
    *,
    extended: Callable[[Mapping[str, int]], Mapping[str, int]] = dict,
) -> list[dict[str, int]]:
    """Return assignments near the first call's, different in every symbol, primes where possible.

    >>> witnesses({"B": 2, "S": 128}, lambda values: values["S"] <= 128, 3)
    [{'B': 13, 'S': 127}, {'B': 17, 'S': 113}, {'B': 19, 'S': 109}]

    Args:
        first: numbers of the first call.
        admitted: says whether a trace is good for an assignment.
        count: how many.
        extended: adds quotients of the sizes, which have to differ too.

    Returns:
        Fewer, where not so many are admitted.
    """
    choices = {name: _choices(name, first, admitted, extended) for name in first}
    pairs = _loose_pairs(first, choices, extended)
    assignments: list[dict[str, int]] = []
    taken: set[int] = set()
    used: dict[str, set[int]] = {name: set() for name in first}

    def apart(values: Mapping[str, int]) -> bool:
        return admitted(values) and _are_apart([extended(v) for v in (*assignments, values)], pairs)

    def apart_and_alike(values: Mapping[str, int]) -> bool:
        return _is_alike(values, first) and apart(values)

    for _ in range(count):
        wishes = (apart_and_alike, apart, admitted)
        values = next(filter(None, (_next(choices, used, taken, wish) for wish in wishes)), None)
        if values is None:
            break
        assignments.append(values)
        for name, value in values.items():
            used[name].add(value)
        taken.update(values.values())
    return assignments


def _loose_pairs(
    first: Mapping[str, int],
    choices: Mapping[str, Sequence[int]],
    extended: Callable[[Mapping[str, int]], Mapping[str, int]],
) -> list[tuple[str, str]]:
    """Return the pairs of sizes of which neither follows from the other by a line at all choices.

    Where a trace admits multiples of 32 alone, a half of a size is always twice its quarter.
    """
    seen = {n: [extended({**first, n: i}) for i in choices[n][:ENOUGH]] for n in first}
    keys = list(extended(first))
    roots = {k: {n for n in first if len({full[k] for full in seen[n]}) > 1} for k in keys}

    def is_loose(a: str, b: str) -> bool:
        if not roots[a] or not roots[b]:
            return False
        if roots[a] != roots[b] or len(roots[a]) > 1:
            return True
        (name,) = roots[a]
        (x, y), *others = ((full[a], full[b]) for full in seen[name])
        steps = [(i - x, j - y) for i, j in others if (i, j) != (x, y)]
        return any(i * steps[0][1] != j * steps[0][0] for i, j in steps)

    return [pair for pair in combinations(keys, 2) if is_loose(*pair)]


def _are_apart(assignments: Sequence[Mapping[str, int]], pairs: Sequence[tuple[str, str]]) -> bool:
    """True where no size follows from another by a line through all assignments.

    A number of a plan that is one of them would be read as the other: primes that rise beside
    primes that fall have equal sums for a while (13 + 47 = 17 + 43 = 19 + 41 = 23 + 37 = 29 + 31).
    """
    if len(assignments) < 3:
        return True
    first, second, *others = assignments
    return all(
        any(
            (other[a] - first[a]) * (second[b] - first[b])
            != (other[b] - first[b]) * (second[a] - first[a])
            for other in others
        )
        for a, b in pairs
    )


def _is_alike(values: Mapping[str, int], first: Mapping[str, int]) -> bool:
    """True where numbers have the first call's order: which dim is the longest decides on plans."""
    names = sorted(first, key=lambda name: first[name])
    pairs = pairwise(names)
    return all(first[a] == first[b] or values[a] < values[b] for a, b in pairs)


def _next(
    choices: Mapping[str, Sequence[int]],
    used: Mapping[str, set[int]],
    taken: set[int],
    admitted: Callable[[Mapping[str, int]], bool],
) -> dict[str, int] | None:
    """Return the first admitted assignment of numbers that no symbol has had; None for none."""
    fresh = {
        name: [n for n in numbers if n not in used[name]][:24] for name, numbers in choices.items()
    }
    # Numbers that no symbol at all has had come first: sizes that differ stay apart.
    ordered = {
        name: sorted(numbers, key=lambda n: (n < FEWEST, n in taken))
        for name, numbers in fresh.items()
    }
    for tries, values in enumerate(_combined(ordered)):
        if tries >= MAX_TRIES:
            return None
        if admitted(values):
            return values
    return None


def _combined(choices: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Yield assignments of different numbers, then of any, the early choices first."""
    names = list(choices)

    def extend(values: dict[str, int], rest: list[str], *, apart: bool) -> Iterator[dict[str, int]]:
        if not rest:
            yield dict(values)
            return
        for number in choices[rest[0]]:
            if apart and number in values.values():
                continue
            yield from extend({**values, rest[0]: number}, rest[1:], apart=apart)

    yield from extend({}, names, apart=True)
    yield from extend({}, names, apart=False)


def _choices(
    name: str,
    first: Mapping[str, int],
    admitted: Callable[[Mapping[str, int]], bool],
    extended: Callable[[Mapping[str, int]], Mapping[str, int]],
) -> list[int]:
    """Return numbers for one symbol: primes near the first call's, then others."""
    own = first[name]
    near = sorted(_candidates(own), key=lambda n: (n < FEWEST, abs(n - own), -n))
    # Several symbols may have to move together; then none fits alone.
    pool = [n for n in near if admitted({**first, name: n})] or near
    if len(extended(first)) == len(first):
        primes = [n for n in pool if _is_prime(n)]
        return primes + [n for n in pool if not _is_prime(n)]
    # Halves and quarters of sizes count: all remainders have to come up.
    kinds = [[n for n in pool if n % step == 0 and _is_prime(n // step)] for step in (1, 2, 4)]
    mixed = [n for each in zip(*kinds, strict=False) for n in each]
    taken = set(mixed)
    mixed += [n for n in pool if n not in taken]
    # Frames of a signal: thousands of samples have one quotient.
    seen: dict[str, set[int]] = {}
    new: list[int] = []
    every = [extended({**first, name: n}) for n in mixed]
    # Those of other sizes stay as they are.
    own_keys = [k for k in every[0] if k not in first and len({full[k] for full in every}) > 1]
    for n, full in zip(mixed, every, strict=True):
        if own_keys and all(full[key] not in seen.get(key, ()) for key in own_keys):
            new.append(n)
            for key in own_keys:
                seen.setdefault(key, set()).add(full[key])
        if len(new) == ENOUGH:
            break
    chosen = set(new)
    return new + [n for n in mixed if n not in chosen]


def _candidates(own: int) -> set[int]:
    """Return numbers that are tried for a size: all up to its double, of millions only some.

    Those are near it, and those at distances that leave divisors that a trace may ask for.
    """
    span = max(own, FEWEST) * 2 + 64
    numbers = range(2, span)
    if len(numbers) > MAX_CANDIDATES:
        steps = {d for d in range(1, MAX_CANDIDATES) if own % d == 0}
        steps |= {own // d for d in steps} | {1 << i for i in range(own.bit_length())}
        far = {own + sign * i * step for step in steps for i in range(1, 7) for sign in (1, -1)}
        half = MAX_CANDIDATES // 4
        near = {*range(own - half, own + half), *far}
        return {n for n in near if 2 <= n < span} - {own}
    return {*numbers} - {own}


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, isqrt(number) + 1))

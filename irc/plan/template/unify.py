"""Anti-unification: plans for several sizes as one, with polynomials where they differ.

The plans are trees of dataclasses, tuples, mappings, texts and numbers. Where all agree the result
agrees with them; where integers differ it has the polynomial that they are values of; where
anything else differs there is no common plan, and the reason names the place (Plotkin, Machine
Intelligence 5, 1970, for terms; here the variables are polynomials).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from math import isfinite
from typing import Any, TypeVar, cast

from irc.dialects.size import Dim, Size
from irc.plan.template.fit import Fitter

T = TypeVar("T")


@dataclass(frozen=True)
class Real:
    """A float that is a size: what a mean divides by, or (``inverse``) multiplies by."""

    dim: Dim
    inverse: bool = False

    def value(self, number: int) -> float:
        """Return the float where the size is ``number``."""
        return 1 / number if self.inverse else float(number)


class DifferentError(Exception):
    """Plans that have no common form.

    Attributes:
        path: where they differ, outermost first.
        values: what stands there, of the first two that differ.
    """

    def __init__(self, path: Sequence[str], values: Sequence[object]) -> None:
        super().__init__(f"{'/'.join(path)}: {' against '.join(str(v)[:60] for v in values)}")
        self.path = tuple(path)
        self.values = tuple(values)


def unify(trees: Sequence[T], fitter: Fitter) -> T:
    """Return the common form of trees, one for each witness of the fitter.

    Raises:
        DifferentError: where they have none.
    """
    return cast("T", _unify(list(trees), fitter, []))


def _unify(trees: list[Any], fitter: Fitter, path: list[str]) -> Any:
    first = trees[0]
    if all(tree is first for tree in trees):
        return first
    if any(type(tree) is not type(first) for tree in trees):
        raise DifferentError(path, [type(tree).__name__ for tree in trees[:2]])
    if isinstance(first, bool | str | bytes) or first is None:
        return _same(trees, path)
    if isinstance(first, int):
        fitted = fitter.fit(tuple(trees))
        if fitted is None:
            raise DifferentError(path, trees)
        return fitted
    if isinstance(first, float):
        return first if _are_same(trees) else _real(trees, fitter, path)
    if isinstance(first, tuple | list):
        return _sequence(trees, fitter, path)
    if isinstance(first, Mapping):
        keys = [tuple(tree) for tree in trees]
        _same(keys, path)
        return {k: _unify([t[k] for t in trees], fitter, [*path, str(k)]) for k in keys[0]}
    if is_dataclass(first):
        return _dataclass(trees, fitter, path)
    return _same(trees, path)


def _same(trees: list[Any], path: list[str]) -> Any:
    for tree in trees[1:]:
        if not _are_same([trees[0], tree]):
            raise DifferentError(path, [trees[0], tree])
    return trees[0]


def _are_same(trees: Sequence[Any]) -> bool:
    """True where all are equal; NaN, which equals nothing, is the same as NaN here."""
    first = trees[0]
    return all(tree == first or (tree != tree and first != first) for tree in trees[1:])


def _real(trees: list[float], fitter: Fitter, path: list[str]) -> Real:
    if not all(map(isfinite, trees)):
        raise DifferentError(path, trees)
    for inverse in (False, True):
        numbers = [1 / tree if inverse and tree else tree for tree in trees]
        if all(abs(n - round(n)) <= 1e-12 * abs(n) for n in numbers):
            fitted = fitter.fit(tuple(round(n) for n in numbers))
            if fitted is not None:
                return Real(fitted, inverse)
    raise DifferentError(path, trees)


def _sequence(trees: list[Any], fitter: Fitter, path: list[str]) -> Any:
    if len({len(tree) for tree in trees}) != 1:
        raise DifferentError(path, [f"{len(tree)} entries" for tree in trees])
    unified = [
        _unify(list(entries), fitter, [*path, str(i)])
        for i, entries in enumerate(zip(*trees, strict=True))
    ]
    return tuple(unified) if isinstance(trees[0], tuple) else unified


def _dataclass(trees: list[Any], fitter: Fitter, path: list[str]) -> Any:
    changed: dict[str, Any] = {}
    for field in fields(trees[0]):
        values = [getattr(tree, field.name) for tree in trees]
        unified = _unify(values, fitter, [*path, field.name])
        if unified is not values[0]:
            changed[field.name] = unified
    return replace(trees[0], **changed) if changed else trees[0]


def evaluate(tree: T, number: Callable[[Size], int]) -> T:
    """Return a tree with numbers for its sizes; parts without sizes are shared, not copied."""
    return cast("T", _evaluate(tree, number))


def _evaluate(tree: Any, number: Callable[[Size], int]) -> Any:
    if isinstance(tree, Size):
        return number(tree)
    if isinstance(tree, Real):
        return tree.value(number(tree.dim) if isinstance(tree.dim, Size) else tree.dim)
    if isinstance(tree, tuple | list):
        entries = cast("Sequence[Any]", tree)
        evaluated = [_evaluate(entry, number) for entry in entries]
        if all(a is b for a, b in zip(evaluated, entries, strict=True)):
            return entries
        return tuple(evaluated) if isinstance(tree, tuple) else evaluated
    if isinstance(tree, Mapping):
        mapping = cast("Mapping[str, Any]", tree)
        named = {key: _evaluate(value, number) for key, value in mapping.items()}
        return named if any(named[key] is not mapping[key] for key in mapping) else mapping
    if is_dataclass(tree) and not isinstance(tree, type):
        values = {f.name: getattr(tree, f.name) for f in fields(tree)}
        bound = {name: _evaluate(value, number) for name, value in values.items()}
        changed = {name: value for name, value in bound.items() if value is not values[name]}
        return replace(tree, **changed) if changed else tree
    return tree


def sizes_in(tree: object) -> Iterator[Size | Real]:
    """Yield the sizes of a tree, those of floats as what they are."""
    if isinstance(tree, Size | Real):
        yield tree
    elif isinstance(tree, tuple | list):
        for entry in cast("Sequence[object]", tree):
            yield from sizes_in(entry)
    elif isinstance(tree, Mapping):
        for entry in cast("Mapping[str, object]", tree).values():
            yield from sizes_in(entry)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for field in fields(tree):
            yield from sizes_in(getattr(tree, field.name))

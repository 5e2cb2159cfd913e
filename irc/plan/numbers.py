"""The numbers of a file that are sizes: taken out of its tree by their paths, and put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, cast

from irc.dialects.size import Size
from irc.plan.open_sizes import Polynomial, dim_of, polynomial_of
from irc.plan.template.unify import Real


@dataclass(frozen=True)
class Number:
    """A number of plan.json or program.json, by its path (``buffers.3.shape.0``), and what it is.

    ``float`` and ``inverse`` are floats: a size, and one divided by it.
    """

    path: str
    value: Polynomial
    form: Literal["int", "float", "inverse"] = "int"


def numbers_of(tree: Any, path: str = "") -> list[Number]:
    """Return the numbers of a tree that are sizes, by their paths."""
    if isinstance(tree, Size):
        return [Number(path, polynomial_of(tree))]
    if isinstance(tree, Real):
        return [Number(path, polynomial_of(tree.dim), "inverse" if tree.inverse else "float")]
    numbers: list[Number] = []
    for key, value in _children(tree):
        numbers += numbers_of(value, f"{path}.{key}" if path else key)
    return numbers


def _children(tree: Any) -> list[tuple[str, Any]]:
    if isinstance(tree, tuple | list):
        return [(str(i), value) for i, value in enumerate(cast("Sequence[Any]", tree))]
    if isinstance(tree, Mapping):
        return list(cast("Mapping[str, Any]", tree).items())
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    return []


def with_numbers(tree: Any, numbers: Mapping[str, Number], path: str = "") -> Any:
    """Return a tree with sizes at the places that ``numbers`` names."""
    if path in numbers:
        number = numbers[path]
        dim = dim_of(number.value)
        return dim if number.form == "int" else Real(dim, number.form == "inverse")
    changed = {
        key: with_numbers(value, numbers, f"{path}.{key}" if path else key)
        for key, value in _children(tree)
    }
    if all(changed[key] is value for key, value in _children(tree)):
        return tree
    if isinstance(tree, tuple | list):
        return type(cast("Any", tree))(changed.values())
    return changed if isinstance(tree, Mapping) else replace(tree, **changed)

"""``sizes.json``: a plan for every size, as the numbers of plan.json that depend on sizes.

plan.json is the plan for one choice of sizes, the *example*, and can be run by itself. This file
says which of its numbers follow from the sizes of the inputs, each as a polynomial
(:mod:`irc.plan.open_sizes`), and for which sizes that holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast

from irc.dialects.size import Size, bind, value_of
from irc.errors import IrcError
from irc.plan import json_text
from irc.plan.json_text import corrupt
from irc.plan.open_sizes import (
    Polynomial,
    QuotientSize,
    SizeCondition,
    Symbol,
    dim_of,
    meets,
    polynomial_of,
    quotient_text,
    shown,
)
from irc.plan.schema import Plan, check_format
from irc.plan.template.stack import Stack
from irc.plan.template.unify import Real, evaluate
from irc.plan.verify import verify_plan

SIZES = "sizes.json"
CAPTURE = "sizes/capture.mlir"
KERNELS = "sizes/kernels.mlir"
LIKE = "sizes/like.mlir"
FORMAT = 1
"""The version of the file; a reader takes this one only."""


@dataclass(frozen=True)
class Number:
    """A number of plan.json, by its path (``buffers.3.shape.0``), and what it is.

    ``float`` and ``inverse`` are floats: a size, and one divided by it.
    """

    path: str
    value: Polynomial
    form: Literal["int", "float", "inverse"] = "int"


@dataclass(frozen=True)
class MadeKernel:
    """A kernel that is compiled for each size, why, and how its tasks are divided."""

    name: str
    reason: str
    division: Literal["same", "scheduled", "blocks", "chunks", "tiles"]


@dataclass(frozen=True)
class FixedSize:
    """A size of the model that is a number in the plan, and what needs it so."""

    name: str
    number: int
    reason: str


@dataclass(frozen=True)
class PlanSizes:
    """What a plan says of its sizes.

    Attributes:
        symbols: read from the inputs.
        shapes: of the inputs, in the order of the plan.
        quotients: in an order in which they can be computed.
        conditions: what else must hold of the sizes.
        numbers: of plan.json.
        arena: the buffers that are placed, as ``order`` and ``below`` count them.
        order, below: which buffer lies above which (:class:`irc.plan.template.stack.Stack`).
        kernels: those that are compiled for each size.
        fixed: sizes that are numbers.
    """

    symbols: tuple[Symbol, ...]
    shapes: tuple[tuple[Polynomial, ...], ...]
    numbers: tuple[Number, ...]
    arena: tuple[int, ...]
    order: tuple[int, ...]
    below: tuple[tuple[int, ...], ...]
    quotients: tuple[QuotientSize, ...] = ()
    conditions: tuple[SizeCondition, ...] = ()
    kernels: tuple[MadeKernel, ...] = ()
    fixed: tuple[FixedSize, ...] = ()
    format: int = FORMAT

    @cached_property
    def example(self) -> dict[str, int]:
        """The numbers of plan.json, of quotients too."""
        return self.extended({each.symbol: each.example for each in self.symbols})

    def extended(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of the symbols, and of the quotients."""
        full = dict(values)
        for each in self.quotients:
            full[each.symbol] = value_of(dim_of(each.dim), full) // value_of(dim_of(each.by), full)
        return full

    def values(self, shapes: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, int]:
        """Return the numbers of all symbols in a call's shapes, quotients included.

        Args:
            shapes: of the inputs, in the order of the plan.
            names: of the inputs.

        Raises:
            IrcError: ``input-mismatch``, naming the dim.
        """
        for name, shape, stated in zip(names, shapes, self.shapes, strict=True):
            if len(shape) != len(stated):
                raise _misfit(f"'{name}' has {len(shape)} dims, the plan takes {len(stated)}")
        given = {each.symbol: shapes[each.input][each.dim] for each in self.symbols}
        for name, shape, stated in zip(names, shapes, self.shapes, strict=True):
            for index, (number, polynomial) in enumerate(zip(shape, stated, strict=True)):
                wanted = bind(dim_of(polynomial), given)
                if wanted != number:
                    text = str(dim_of(polynomial))
                    said = text if text == str(wanted) else f"{text} = {wanted}"
                    raise _misfit(f"dim {index} of '{name}' is {number}, the plan takes {said}")
        full = self.extended(given)
        self.check(full, names)
        return full

    def check(self, full: Mapping[str, int], names: Sequence[str]) -> None:
        """Refuse sizes that the plan was not checked for.

        Raises:
            IrcError: ``size-outside``, naming the dim.
        """
        for each in self.symbols:
            if not each.low <= full[each.symbol] <= each.high:
                raise _outside(
                    f"size '{each.name}' (dim {each.dim} of '{names[each.input]}') is "
                    f"{full[each.symbol]}, the plan was checked for {each.low} to {each.high}"
                )
        for each in self.quotients:
            if not each.low <= full[each.symbol] <= each.high:
                raise _outside(
                    f"{quotient_text(each)} is {full[each.symbol]}, the plan was checked for "
                    f"{each.low} to {each.high}"
                )
        for condition in self.conditions:
            if not meets(condition, full):
                raise _outside(f"the plan is for sizes with {shown(condition)}", condition.where)


def _misfit(message: str) -> IrcError:
    return IrcError("input-mismatch", message)


def _outside(message: str, where: str = "") -> IrcError:
    return IrcError(
        "size-outside", message, where,
        help="compile the model for these sizes: irc compile ... --size NAME=N",
    )  # fmt: skip


def numbers_of(plan: Any, path: str = "") -> list[Number]:
    """Return the numbers of a plan's tree that are sizes, by their paths."""
    if isinstance(plan, Size):
        return [Number(path, polynomial_of(plan))]
    if isinstance(plan, Real):
        return [Number(path, polynomial_of(plan.dim), "inverse" if plan.inverse else "float")]
    found: list[Number] = []
    for key, value in _children(plan):
        found += numbers_of(value, f"{path}.{key}" if path else key)
    return found


def _children(tree: Any) -> list[tuple[str, Any]]:
    if isinstance(tree, tuple | list):
        return [(str(i), value) for i, value in enumerate(cast("Sequence[Any]", tree))]
    if isinstance(tree, Mapping):
        return list(cast("Mapping[str, Any]", tree).items())
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    return []


def with_numbers(tree: Any, numbers: Mapping[str, Number], path: str = "") -> Any:
    """Return a plan's tree with sizes at the places that ``numbers`` names."""
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


class SizedPlan:
    """A plan for any sizes that it was checked for.

    Args:
        plan: for the example.
        sizes: what of it depends on sizes.

    Raises:
        IrcError: ``plan-corrupt`` where the two do not fit together.
    """

    def __init__(self, plan: Plan, sizes: PlanSizes) -> None:
        self.sizes = sizes
        check_sizes(plan, sizes)
        self._form: Plan = with_numbers(plan, {each.path: each for each in sizes.numbers})
        self._stack = Stack(sizes.order, sizes.below)
        if self.at(sizes.example) != plan:
            raise corrupt("at the sizes of the example it gives another plan", SIZES)

    def at(self, full: Mapping[str, int]) -> Plan:
        """Return the plan for the numbers of all symbols.

        Raises:
            IrcError: ``plan-corrupt`` where it makes no sense.
        """
        try:
            made = evaluate(self._form, lambda size: value_of(size, full))
            sizes = [made.buffers[index].size_bytes for index in self.sizes.arena]
            offsets, arena = self._stack.place(sizes)
        except (TypeError, ValueError, IndexError) as error:
            raise corrupt(f"sizes cannot be put in: {error}", SIZES) from None
        buffers = list(made.buffers)
        for index, offset in zip(self.sizes.arena, offsets, strict=True):
            buffers[index] = replace(buffers[index], offset=offset)
        plan = replace(made, buffers=tuple(buffers), arena_bytes=arena)
        verify_plan(plan, SIZES)
        return plan


def check_sizes(plan: Plan, sizes: PlanSizes) -> None:
    """Refuse sizes that say of a plan what cannot be.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    known: set[str] = set()
    for each in sizes.symbols:
        shape = sizes.shapes[each.input] if each.input < len(sizes.shapes) else ()
        if each.input < 0 or not 0 <= each.dim < len(shape):
            raise corrupt(f"size '{each.symbol[:40]}' stands in no input", SIZES)
        known.add(each.symbol)
    for each in sizes.quotients:
        if not _names(each.dim) | _names(each.by) <= known:
            raise corrupt(f"quotient '{each.symbol[:40]}' follows from nothing known", SIZES)
        known.add(each.symbol)
    used = [p for shape in sizes.shapes for p in shape]
    used += [each.difference for each in sizes.conditions] + [each.value for each in sizes.numbers]
    for polynomial in used:
        if not _names(polynomial) <= known:
            raise corrupt(f"no size is called {min(_names(polynomial) - known)[:40]!r}", SIZES)
    if len(known) != len(sizes.symbols) + len(sizes.quotients):
        raise corrupt("two sizes have one name", SIZES)
    if len(sizes.shapes) != len(plan.inputs):
        raise corrupt(f"{len(sizes.shapes)} shapes for {len(plan.inputs)} inputs", SIZES)
    arena = tuple(i for i, buffer in enumerate(plan.buffers) if buffer.storage == "arena")
    if set(sizes.arena) != set(arena) or sorted(sizes.order) != list(range(len(arena))):
        raise corrupt("it places other buffers than the plan has", SIZES)
    if len(sizes.below) != len(arena):
        raise corrupt("it places other buffers than the plan has", SIZES)


def _names(polynomial: Polynomial) -> set[str]:
    for _, names in polynomial:
        for name in names:
            if not (name.isascii() and name.isidentifier()):
                raise corrupt(f"{name[:40]!r} is no name of a size", SIZES)
    return {name for _, names in polynomial for name in names}


def sizes_to_json(sizes: PlanSizes) -> str:
    """Print the file; equal sizes print equally."""
    return json_text.dump({"format": sizes.format, **json_text.encode(sizes)})


def sizes_from_json(text: str | bytes) -> PlanSizes:
    """Read the file, strictly.

    Raises:
        IrcError: ``plan-version`` or ``plan-corrupt``.
    """
    data = json_text.parse_object(text, SIZES)
    check_format(data.get("format"), SIZES)
    return json_text.decode(PlanSizes, data, SIZES)

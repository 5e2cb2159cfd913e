"""Which sizes the inputs of a plan may have: read off a call's shapes, and held against what holds.

Nothing but Python's own library is needed here: programs without torch bind sizes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from irc.dialects.size import bind
from irc.errors import IrcError
from irc.plan.json_text import corrupt
from irc.plan.open_sizes import (
    Polynomial,
    QuotientSize,
    SizeCondition,
    Symbol,
    dim_of,
    meets,
    number_of,
    quotient_text,
    shown,
)


@dataclass(frozen=True)
class InputSizes:
    """What a plan says of the sizes of its inputs.

    Attributes:
        symbols: read from the inputs.
        shapes: of the inputs, in the order of the plan.
        quotients: in an order in which they can be computed.
        conditions: what else must hold of the sizes.
    """

    symbols: tuple[Symbol, ...]
    shapes: tuple[tuple[Polynomial, ...], ...]
    quotients: tuple[QuotientSize, ...] = ()
    conditions: tuple[SizeCondition, ...] = ()

    @cached_property
    def example(self) -> dict[str, int]:
        """The numbers that the files of the plan have, those of quotients too."""
        return self.extended({each.symbol: each.example for each in self.symbols})

    def extended(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of the symbols, and of the quotients."""
        full = dict(values)
        for each in self.quotients:
            full[each.symbol] = number_of(each.dim, full) // number_of(each.by, full)
        return full

    def values(self, shapes: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, int]:
        """Return the numbers of all symbols in a call's shapes, quotients included.

        Args:
            shapes: of the inputs, in the order of the plan.
            names: of the inputs.

        Raises:
            IrcError: ``input-mismatch`` or ``size-outside``, naming the dim.
        """
        for name, shape, stated in zip(names, shapes, self.shapes, strict=True):
            if len(shape) != len(stated):
                raise _misfit(f"'{name}' has {len(shape)} dims, the plan takes {len(stated)}")
        numbers = {each.symbol: shapes[each.input][each.dim] for each in self.symbols}
        for name, shape, stated in zip(names, shapes, self.shapes, strict=True):
            for index, (number, polynomial) in enumerate(zip(shape, stated, strict=True)):
                wanted = bind(dim_of(polynomial), numbers)
                if wanted != number:
                    text = str(dim_of(polynomial))
                    said = text if text == str(wanted) else f"{text} = {wanted}"
                    raise _misfit(f"dim {index} of '{name}' is {number}, the plan takes {said}")
        full = self.extended(numbers)
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


def check_inputs(input_sizes: InputSizes, num_inputs: int, where: str) -> set[str]:
    """Refuse sizes of inputs that cannot be, and return all names that there are.

    Args:
        input_sizes: as a file says it.
        num_inputs: of the plan.
        where: the file.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    known: set[str] = set()
    for each in input_sizes.symbols:
        shape = input_sizes.shapes[each.input] if each.input < len(input_sizes.shapes) else ()
        if each.input < 0 or not 0 <= each.dim < len(shape):
            raise corrupt(f"size '{each.symbol[:40]}' stands in no input", where)
        known.add(each.symbol)
    for each in input_sizes.quotients:
        if not names_of(each.dim, where) | names_of(each.by, where) <= known:
            raise corrupt(f"quotient '{each.symbol[:40]}' follows from nothing known", where)
        known.add(each.symbol)
    used = [p for shape in input_sizes.shapes for p in shape]
    check_names(used + [each.difference for each in input_sizes.conditions], known, where)
    if len(known) != len(input_sizes.symbols) + len(input_sizes.quotients):
        raise corrupt("two sizes have one name", where)
    if len(input_sizes.shapes) != num_inputs:
        raise corrupt(f"{len(input_sizes.shapes)} shapes for {num_inputs} inputs", where)
    return known


def check_names(used: Sequence[Polynomial], known: set[str], where: str) -> None:
    """Refuse polynomials of names that nobody knows.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    for polynomial in used:
        if not (names := names_of(polynomial, where)) <= known:
            raise corrupt(f"no size is called {min(names - known)[:40]!r}", where)


def names_of(polynomial: Polynomial, where: str) -> set[str]:
    """Return the names in a polynomial from a file.

    Raises:
        IrcError: ``plan-corrupt`` where one is no identifier.
    """
    used = {name for _, names in polynomial for name in names}
    for name in used:
        if not (name.isascii() and name.isidentifier()):
            raise corrupt(f"{name[:40]!r} is no name of a size", where)
    return used

"""Open sizes as plans keep them: names, what follows from them, and what they have to meet.

A polynomial is a list of terms ``[coefficient, [name, ...]]``: ``4*B*S + 1`` is
``[[4, ["B", "S"]], [1, []]]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

from irc.dialects.size import Dim, product, symbol, terms_of, value_of
from irc.errors import IrcError, did_you_mean

Polynomial: TypeAlias = tuple[tuple[int, tuple[str, ...]], ...]
"""Terms: a coefficient, and names that it is multiplied by."""


@dataclass(frozen=True)
class Symbol:
    """A size that is read from the inputs.

    Attributes:
        symbol: its name in polynomials.
        name: the model's.
        input: position of the input among those of the plan.
        dim: of the input.
        low, high: the least and the greatest number that the plan was checked for.
        example: the number in plan.json.
    """

    symbol: str
    name: str
    input: int
    dim: int
    low: int
    high: int
    example: int


@dataclass(frozen=True)
class HostSize:
    """A size of the inputs that is open in a host program.

    Attributes:
        symbol: its name in the program.
        name: that of the model.
        input: position of the input in which it stands.
        dim: of that input.
        example: the number that trial runs take.
    """

    symbol: str
    name: str
    input: int
    dim: int
    example: int


@dataclass(frozen=True)
class QuotientSize:
    """A size that is ``floor(dim / by)``; numbers as in :class:`Symbol`."""

    symbol: str
    dim: Polynomial
    by: Polynomial
    low: int
    high: int


@dataclass(frozen=True)
class SizeCondition:
    """What the import took for granted: whether ``difference`` compares so with 0.

    Attributes:
        where: the source line that relies on it.
    """

    relation: Literal["<", "<=", "=="]
    difference: Polynomial
    holds: bool
    where: str = ""


@dataclass(frozen=True)
class MadeKernel:
    """A kernel that is compiled for each size, why, and how its tasks are divided."""

    name: str
    reason: str
    division: Literal["same", "scheduled", "blocks", "chunks", "tiles"]


def made_again(kernels: Sequence[MadeKernel]) -> str:
    """Say which kernels are compiled for each size, and why.

    >>> made_again([MadeKernel("k3", "template 'sort' is made for numbers", "same")])
    "k3 is compiled for each size: template 'sort' is made for numbers"
    """
    return "; ".join(f"{each.name} is compiled for each size: {each.reason}" for each in kernels)


def polynomial_of(dim: Dim) -> Polynomial:
    """Write a size as JSON has it."""
    return tuple(
        (coefficient, tuple(name for name, power in monomial for _ in range(power)))
        for monomial, coefficient in terms_of(dim)
    )


def dim_of(polynomial: Polynomial) -> Dim:
    """Read a size back.

    >>> str(dim_of(((4, ("B", "S")), (1, ()))))
    '4*B*S + 1'
    """
    total: Dim = 0
    for coefficient, names in polynomial:
        total = total + product(symbol(name) for name in names) * coefficient
    return total


def number_of(polynomial: Polynomial, values: Mapping[str, int]) -> int:
    """Return the number of a size, all of whose names ``values`` gives.

    >>> number_of(((4, ("B", "S")), (1, ())), {"B": 2, "S": 3})
    25
    """
    return sum(
        coefficient * prod(values[name] for name in names) for coefficient, names in polynomial
    )


def quotient_text(quotient: QuotientSize) -> str:
    """Return a quotient as a formula."""
    return f"floor(({dim_of(quotient.dim)}) / ({dim_of(quotient.by)}))"


def shown(condition: SizeCondition) -> str:
    """Return a condition as a formula.

    >>> shown(SizeCondition("<", ((1, ("S",)), (-4, ())), False))
    'S >= 4'
    """
    signs = {"<": ">=", "<=": ">", "==": "!="}
    sign = condition.relation if condition.holds else signs[condition.relation]
    difference = dim_of(condition.difference)
    constant = dict(terms_of(difference)).get((), 0)
    return f"{difference - constant} {sign} {-constant}"


def meets(condition: SizeCondition, full: Mapping[str, int]) -> bool:
    """True where the answer is the same for these numbers."""
    number = value_of(dim_of(condition.difference), full)
    answer = {"<": number < 0, "<=": number <= 0, "==": number == 0}[condition.relation]
    return answer == condition.holds


def example_or(symbols: Sequence[Symbol | HostSize], by_name: Mapping[str, int]) -> dict[str, int]:
    """Return numbers of open sizes by symbol: those given by the model's names, else the example's.

    Raises:
        IrcError: ``size-unknown``.
    """
    known = {each.name: each for each in symbols}
    for name in by_name:
        if name not in known:
            raise IrcError(
                "size-unknown",
                f"the plan has no open size named '{name}'",
                because=f"its open sizes are: {', '.join(known) or 'none'}",
                help=did_you_mean(name, known),
            )
    return {each.symbol: by_name.get(name, each.example) for name, each in known.items()}


def parse_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Read ``--size`` options.

    >>> parse_sizes(["batch=2", "past length=0"])
    {'batch': 2, 'past length': 0}

    Raises:
        IrcError: ``option-value``.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not (name and number.isascii() and number.isdigit()):
            raise IrcError(
                "option-value", f"cannot read --size '{text}'", help="write it as --size batch=1"
            )
        sizes[name] = int(number)
    return sizes

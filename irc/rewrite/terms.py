"""Rewrite rules as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias


@dataclass(frozen=True)
class Name:
    """Any value, the same wherever the name stands."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Literal:
    """A literal: all elements are one number, which the name stands for."""

    name: str

    def __str__(self) -> str:
        return f"${self.name}"


@dataclass(frozen=True)
class Number:
    """This number."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Text:
    """What an attribute says: the dims of a contraction or a transposition."""

    value: str

    def __str__(self) -> str:
        return f'"{self.value}"'


@dataclass(frozen=True)
class Let:
    """A value that has a name and a form; both must hold wherever the name stands."""

    name: str
    form: Term

    def __str__(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class Choice:
    """One of several forms, the first that fits."""

    options: tuple[Term, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.options))


@dataclass(frozen=True)
class Coalesce:
    """In a replacement: the first whose names are bound."""

    options: tuple[Term, ...]

    def __str__(self) -> str:
        return " ?? ".join(map(str, self.options))


@dataclass(frozen=True)
class Perhaps:
    """In a replacement: an operand that is left out where its names are not bound."""

    term: Term

    def __str__(self) -> str:
        return f"({self.term})?"


@dataclass(frozen=True)
class Apply:
    """An op of some operands: a pointwise function, a reduction, another flow op, or a test.

    ``attributes`` are (name, value); the name is empty where it is the op's main one.
    """

    op: str
    attributes: tuple[tuple[str, Term], ...]
    operands: tuple[Term, ...]

    def __str__(self) -> str:
        shown = ", ".join(
            f"{key} = {value}" if key else str(value) for key, value in self.attributes
        )
        operands = ", ".join(map(str, self.operands))
        return f"{self.op}{f'[{shown}]' if shown else ''}({operands})"


Term: TypeAlias = Name | Literal | Number | Text | Let | Choice | Coalesce | Perhaps | Apply


@dataclass(frozen=True)
class Rule:
    """What is found, on what condition, and what takes its place.

    Attributes:
        name: for messages and for switching it off.
        find: the form of the value that is replaced.
        test: a condition, as a term of ``and``, ``or``, ``not``, comparisons and functions.
        put: the replacement.
        where: file and line.
    """

    name: str
    find: Term
    test: Term | None
    put: Term
    where: str

    @cached_property
    def heads(self) -> frozenset[str]:
        """The ops that the value which is replaced may come from; empty where it may be any."""
        return frozenset(heads(self.find))


def heads(term: Term) -> Iterator[str]:
    """Yield the outermost ops of a form."""
    match term:
        case Apply():
            yield term.op
        case Let():
            yield from heads(term.form)
        case Choice():
            for option in term.options:
                yield from heads(option)
        case _:
            return


def walk(term: Term) -> Iterator[Term]:
    """Yield a term and those in it, each once: what is used twice is one object (``let``)."""
    seen: set[int] = set()
    waiting = [term]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += reversed(_parts(each))


def height(term: Term) -> int:
    """Return how many terms lie within one another, names of ``let`` among them."""
    known: dict[int, int] = {}
    waiting = [term]
    while waiting:
        parts = _parts(waiting[-1])
        unknown = [each for each in parts if id(each) not in known]
        if unknown:
            waiting += unknown
        else:
            known[id(waiting.pop())] = 1 + max((known[id(each)] for each in parts), default=0)
    return known[id(term)]


def _parts(term: Term) -> Sequence[Term]:
    match term:
        case Let():
            return (term.form,)
        case Perhaps():
            return (term.term,)
        case Choice() | Coalesce():
            return term.options
        case Apply():
            return (*(value for _, value in term.attributes), *term.operands)
        case _:
            return ()

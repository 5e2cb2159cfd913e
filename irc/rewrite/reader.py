"""Trees of ``grammar/rewrite.lark`` to terms; what means nothing where it stands is refused.

A form is what is found, a replacement what takes its place; conditions and attributes are about
values, numbers and texts. Each knows some of the notation only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any, TypeAlias
from typing import Literal as OneOf

from irc.errors import did_you_mean
from irc.rewrite.checks import MistakeError, check_found, check_put, kind_of
from irc.rewrite.conditions import ARITHMETIC, CONSTANTS, NAMED
from irc.rewrite.operators import OPERATORS
from irc.rewrite.terms import (
    Apply,
    Choice,
    Coalesce,
    Let,
    Literal,
    Name,
    Number,
    Perhaps,
    Term,
    Text,
    height,
)

Side: TypeAlias = OneOf["form", "replacement", "condition", "attribute"]

MAX_DEPTH = 64
"""Levels of a term: matching recurses some five calls deep for each."""
MAX_USES = 1000
"""Uses of patterns in a rule: patterns in patterns multiply."""


@dataclass(frozen=True)
class Pattern:
    """A form with parameters; its body is read again for each use."""

    name: str
    parameters: tuple[str, ...]
    lets: Sequence[Any]
    body: Any


def place_of(node: Any) -> tuple[int, int] | None:
    """Return line and column of a token or a tree, where it has any."""
    position = getattr(node, "meta", node)
    line, column = getattr(position, "line", None), getattr(position, "column", None)
    return None if line is None or column is None else (int(line), int(column))


def names_in(trees: Sequence[Any], kind: str) -> Iterator[str]:
    """Yield the first words of all trees of a kind within trees."""
    for tree in trees:
        for each in tree.iter_subtrees():
            if each.data == kind:
                yield str(each.children[0])


@dataclass
class Reader:
    """Reads one form, or what stands beside it.

    Attributes:
        patterns: that may be used.
        bound: of a replacement or a condition, what the form binds; None in the form itself.
        known: what names stand for: lets, and parameters of a pattern.
        uses: of patterns so far, in one rule.
    """

    patterns: Mapping[str, Pattern]
    bound: Mapping[str, Term] | None = None
    known: dict[str, Term] = field(default_factory=dict[str, Term])
    uses: list[int] = field(default_factory=lambda: [0])
    depth: int = 0

    def define(self, lets: Sequence[Any], prefix: str) -> None:
        """Note what names stand for, each in terms of those before it."""
        for tree in lets:
            name = str(tree.children[0])
            if name in self.known or name in (*CONSTANTS, "inf"):
                raise MistakeError(f"'{name}' has a meaning already", at=place_of(tree.children[0]))
            self.known[name] = Let(prefix + name, self.term(tree.children[1], "form"))

    def term(self, tree: Any, side: Side) -> Term:
        """Return the term of a tree.

        Raises:
            MistakeError: with the innermost place that is known.
        """
        self.depth += 1
        try:
            if self.depth > MAX_DEPTH:
                raise MistakeError(f"it is nested over {MAX_DEPTH} deep")
            term = self._term(tree, side)
            if side == "form" and self.depth == 1 and height(term) > MAX_DEPTH:
                raise MistakeError(f"what it is made of is nested over {MAX_DEPTH} deep")
            return term
        except MistakeError as error:
            error.at = error.at or place_of(tree)
            raise
        finally:
            self.depth -= 1

    def _term(self, tree: Any, side: Side) -> Term:
        parts, kind = tree.children, str(tree.data)
        match kind:
            case "name" | "perhaps_name" | "literal":
                named = self._name(kind, str(parts[0]), side)
                return Perhaps(named) if kind == "perhaps_name" else named
            case "perhaps":
                _only(side == "replacement", "(...)?", "a replacement leaves an operand out so")
                return Perhaps(self.term(parts[0], side))
            case "number":
                return _number(str(parts[0]))
            case "text":
                return Text(str(parts[0])[1:-1])
            case "choice":
                _only(side == "form", "|", "it chooses among forms that are found")
                return Choice(tuple(self.term(each, side) for each in parts))
            case "coalesced":
                _only(side != "form", "??", "it is for names that a form may have left unbound")
                return Coalesce(tuple(self.term(each, side) for each in parts))
            case "apply":
                return self._apply(parts, side)
            case "comparison" | "conjunct" | "test" | "negation":
                return self._test(kind, parts)
            case infix:
                return self._infix(infix, tuple(self.term(each, side) for each in parts), side)

    def _name(self, kind: str, word: str, side: Side) -> Term:
        if kind == "perhaps_name":
            _only(side == "replacement", f"{word}?", "a replacement leaves an operand out so")
        if kind != "literal":
            if word in self.known:
                return self.known[word]
            if word == "inf":
                return Number(float("inf"))
            if word in CONSTANTS:
                _only(side in ("condition", "attribute"), word, "it is no value of a program")
                return Name(word)
        shown = f"${word}" if kind == "literal" else word
        if self.bound is not None and shown not in self.bound:
            what = f"no literal is called '{shown}'" if kind == "literal" else (
                f"nothing is called '{shown}'"
            )  # fmt: skip
            alike = [each for each in self.bound if each.startswith("$") == (kind == "literal")]
            raise MistakeError(what, did_you_mean(shown, alike))
        return Literal(word) if kind == "literal" else Name(word)

    def _test(self, kind: str, parts: Sequence[Any]) -> Term:
        if kind != "comparison":
            name = {"conjunct": "and", "test": "or", "negation": "not"}[kind]
            return Apply(name, (), tuple(self.term(each, "condition") for each in parts))
        left, sign, right = (*parts, None, None)[:3]
        term = self.term(left, "condition")
        if sign is not None:
            term = Apply(str(sign), (), (term, self.term(right, "condition")))
        if (term_kind := kind_of(term)) != "truth":
            raise MistakeError(
                f"'{term}' is a {term_kind}, and a condition is true or false", "compare it: a == b"
            )
        return term

    def _apply(self, parts: Sequence[Any], side: Side) -> Term:
        word, attribute_list, *rest = parts
        name, of_value = str(word), side in ("form", "replacement")
        operands = tuple(self.term(each, side) for each in rest if each is not None)
        if side == "form" and name in self.patterns:
            if attribute_list is not None:
                raise MistakeError(f"'{name}' is a pattern, and has no attributes")
            return self._use(self.patterns[name], operands)
        known = OPERATORS if of_value else {**NAMED, **ARITHMETIC}
        if name not in known:
            raise MistakeError(*_unknown(name, side, self.patterns), at=place_of(word))
        attributes: list[tuple[str, Term]] = []
        for each in () if attribute_list is None else attribute_list.children:
            key, tree = ("", each) if each.data != "named" else each.children
            if key and str(key) in dict(attributes):
                raise MistakeError(f"the attribute '{key}' is given twice", at=place_of(key))
            attributes.append((str(key), self.term(tree, "attribute")))
        return self._checked(Apply(name, tuple(attributes), operands), side)

    def _infix(self, op: str, operands: tuple[Term, ...], side: Side) -> Term:
        assert op in ARITHMETIC, op
        if op == "neg" and isinstance(operands[0], Number):
            return Number(-operands[0].value)
        return self._checked(Apply(op, (), operands), side)

    def _checked(self, term: Apply, side: Side) -> Term:
        if side == "form":
            check_found(term)
        elif side == "replacement":
            lets = {n: t for n, t in (self.bound or {}).items() if isinstance(t, Let)}
            check_put(term, lets)
        else:
            kind_of(term)
        return term

    def _use(self, pattern: Pattern, operands: tuple[Term, ...]) -> Term:
        wanted = len(pattern.parameters)
        if len(operands) != wanted:
            raise MistakeError(
                f"pattern '{pattern.name}' takes {wanted} operands, not {len(operands)}"
            )
        self.uses[0] += 1
        if self.uses[0] > MAX_USES:
            raise MistakeError(f"it uses patterns over {MAX_USES} times, those in patterns counted")
        prefix = f"{pattern.name}.{self.uses[0]}."
        inner = Reader(self.patterns, uses=self.uses, depth=self.depth)
        for parameter, operand in zip(pattern.parameters, operands, strict=True):
            inner.known[parameter] = Let(prefix + parameter, operand)
        inner.define(pattern.lets, prefix)
        return inner.term(pattern.body, "form")


def _number(text: str) -> Number:
    value = float(text)
    if isinf(value):
        raise MistakeError(f"{text[:40]} is beyond float64", "the largest is 1.7e308; write inf")
    return Number(value)


def _only(here: bool, what: str, why: str) -> None:
    if not here:
        raise MistakeError(f"'{what}' means nothing here: {why}")


def _unknown(name: str, side: Side, patterns: Mapping[str, Pattern]) -> tuple[str, str]:
    if name in patterns:
        return (
            f"'{name}' is a pattern, which is found and never put",
            "write out what it stands for",
        )
    if side in ("form", "replacement"):
        known = [*OPERATORS, *(patterns if side == "form" else ())]
        help_ = did_you_mean(name, known)
        return f"no op is called '{name}'", help_ or "the ops are those of `irc list ops`"
    known = [*NAMED]
    if name in OPERATORS:
        return f"'{name}' is an op, and this is about numbers", f"functions: {', '.join(known)}"
    return f"no function is called '{name}'", did_you_mean(name, known)

"""The text of rewrite rules (``grammar/rewrite.lark``), read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from irc.errors import IrcError, did_you_mean
from irc.ops.pointwise import POINTWISE
from irc.rewrite.conditions import CONSTANTS, FUNCTIONS
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
    Rule,
    Term,
    Text,
    heads,
    walk,
)

INFIX = ("add", "sub", "mul", "div", "neg")


@dataclass(frozen=True)
class _Pattern:
    """A form with parameters; its body is read again for each use."""

    parameters: tuple[str, ...]
    lets: Sequence[Any]
    body: Any


class _MistakeError(Exception):
    """What is wrong with a rule that has the right form."""


def parse_rules(text: str, *, where: str = "rules") -> tuple[Rule, ...]:
    """Read rules.

    >>> [str(rule.find) for rule in parse_rules("rule twice x + x => 2 * x")]
    ['add(x, x)']

    Raises:
        IrcError: ``rewrite-syntax``, with file and line.
    """
    from lark.exceptions import UnexpectedInput

    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        line = getattr(error, "line", -1)
        place = f"{where}:{line}" if line > 0 else where
        wrong = f"it stops making sense at column {getattr(error, 'column', -1)}"
        raise _error(place, wrong if line > 0 else "it stops in the middle of a rule") from None
    patterns: dict[str, _Pattern] = {}
    rules: list[Rule] = []
    for item in tree.children:
        name = str(item.children[0])
        place = f"{where}:{item.children[0].line}"
        try:
            if item.data == "pattern":
                patterns[name] = _pattern(item.children[1:])
            else:
                rules.append(_rule(name, item.children[1:], patterns, place))
        except _MistakeError as error:
            raise _error(place, f"{item.data} '{name}': {error}") from None
    return tuple(rules)


def _error(where: str, because: str) -> IrcError:
    return IrcError(
        "rewrite-syntax", "cannot read a rewrite rule", where=where, because=because,
        help='write it as: rule twice x + x => 2 * x',
    )  # fmt: skip


@cache
def _parser() -> Any:
    from importlib.resources import files

    from lark import Lark

    grammar = files("irc.grammar").joinpath("rewrite.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=True)


def _pattern(children: Sequence[Any]) -> _Pattern:
    parameters = tuple(str(c) for c in children if not hasattr(c, "data"))
    trees = [c for c in children if hasattr(c, "data")]
    return _Pattern(parameters, trees[:-1], trees[-1])


def _rule(name: str, children: Sequence[Any], patterns: Mapping[str, _Pattern], where: str) -> Rule:
    trees = [child for child in children if child is not None]
    lets = [tree for tree in trees if tree.data == "let"]
    tests = [tree for tree in trees if tree.data == "where"]
    found, put = [tree for tree in trees if tree.data not in ("let", "where")]
    reader = _Reader(patterns)
    reader.define(lets, "")
    find = reader.term(found)
    if not list(heads(find)):
        raise _MistakeError(f"it must find an op, and '{find}' is none")
    known = {t.text for t in walk(find) if isinstance(t, Name)}
    known |= {t.name for t in walk(find) if isinstance(t, Let)}
    known |= {f"${t.name}" for t in walk(find) if isinstance(t, Literal)}
    free = _Reader({})
    test = free.term(tests[0].children[0]) if tests else None
    replacement = free.term(put)
    for term in (test, replacement):
        _check_names(term, known)
    _check_ops(find, OPERATORS)
    _check_ops(replacement, {**OPERATORS, **FUNCTIONS})
    _check_ops(test, FUNCTIONS)
    return Rule(name, find, test, replacement, where)


def _check_names(term: Term | None, known: set[str]) -> None:
    for each in walk(term) if term is not None else ():
        match each:
            case Name() if each.text not in known | set(CONSTANTS):
                raise _MistakeError(f"nothing is called '{each}'; {did_you_mean(each.text, known)}")
            case Literal() if str(each) not in known:
                raise _MistakeError(f"no literal is called '{each}'")
            case _:
                pass


def _check_ops(term: Term | None, known: Mapping[str, Any]) -> None:
    for each in walk(term) if term is not None else ():
        if isinstance(each, Apply) and each.op not in known:
            raise _MistakeError(f"no op or function '{each.op}'; {did_you_mean(each.op, known)}")
        if isinstance(each, Apply) and each.op in POINTWISE and each.op in known:
            arity = POINTWISE[each.op].arity
            if arity != len(each.operands):
                raise _MistakeError(f"'{each.op}' takes {arity} operands, not {len(each.operands)}")


class _Reader:
    """Trees to terms: names of ``let`` and uses of patterns are put in their places."""

    def __init__(self, patterns: Mapping[str, _Pattern]) -> None:
        self.patterns = patterns
        self.known: dict[str, Term] = {}
        self.uses = 0

    def define(self, lets: Sequence[Any], prefix: str) -> None:
        """Note what names stand for, each in terms of those before it."""
        for tree in lets:
            name = str(tree.children[0])
            self.known[name] = Let(prefix + name, self.term(tree.children[1]))

    def term(self, tree: Any) -> Term:
        """Return the term of a tree."""
        parts = tree.children
        match str(tree.data):
            case "name":
                return self.known.get(str(parts[0]), Name(str(parts[0])))
            case "perhaps_name":
                return Perhaps(Name(str(parts[0])))
            case "perhaps":
                return Perhaps(self.term(parts[0]))
            case "literal":
                return Literal(str(parts[0]))
            case "number":
                return Number(float(parts[0]))
            case "text":
                return Text(str(parts[0])[1:-1])
            case "choice":
                return Choice(tuple(map(self.term, parts)))
            case "coalesced":
                return Coalesce(tuple(map(self.term, parts)))
            case "apply":
                return self._apply(parts)
            case "comparison":
                left, sign, right = (*parts, None, None)[:3]
                if sign is None:
                    return self.term(left)
                return Apply(str(sign), (), (self.term(left), self.term(right)))
            case "conjunct" | "test" | "negation" as word:
                name = {"conjunct": "and", "test": "or", "negation": "not"}[word]
                return Apply(name, (), tuple(map(self.term, parts)))
            case infix:
                return self._infix(infix, tuple(map(self.term, parts)))

    def _infix(self, op: str, operands: tuple[Term, ...]) -> Term:
        assert op in INFIX, op
        if op == "neg" and isinstance(operands[0], Number):
            return Number(-operands[0].value)
        return Apply(op, (), operands)

    def _apply(self, parts: Sequence[Any]) -> Term:
        name, given, *rest = parts
        operands = tuple(self.term(each) for each in rest if each is not None)
        if str(name) in self.patterns:
            return self._use(str(name), operands)
        attributes: list[tuple[str, Term]] = []
        for each in () if given is None else given.children:
            key, tree = ("", each) if each.data != "named" else each.children
            attributes.append((str(key), self.term(tree)))
        return Apply(str(name), tuple(attributes), operands)

    def _use(self, name: str, operands: tuple[Term, ...]) -> Term:
        pattern = self.patterns[name]
        if len(operands) != len(pattern.parameters):
            wanted = len(pattern.parameters)
            raise _MistakeError(f"pattern '{name}' takes {wanted} operands, not {len(operands)}")
        self.uses += 1
        prefix = f"{name}.{self.uses}."
        inner = _Reader({key: p for key, p in self.patterns.items() if key != name})
        for parameter, operand in zip(pattern.parameters, operands, strict=True):
            inner.known[parameter] = Let(prefix + parameter, operand)
        inner.define(pattern.lets, prefix)
        return inner.term(pattern.body)

"""The text of rewrite rules (``grammar/rewrite.lark``), read and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from irc.errors import ErrorCollector, IrcError
from irc.rewrite.checks import MistakeError
from irc.rewrite.operators import OPERATORS
from irc.rewrite.reader import Pattern, Reader, names_in, place_of
from irc.rewrite.terms import Let, Literal, Name, Rule, Term, heads, walk

EXAMPLE = "write it as: rule twice x + x => 2 * x"


def parse_rules(text: str, *, where: str = "rules") -> tuple[Rule, ...]:
    """Read rules.

    >>> [str(rule.find) for rule in parse_rules("rule twice x + x => 2 * x")]
    ['add(x, x)']

    Raises:
        IrcError: ``rewrite-syntax``, with file, line and column; of several mistakes all.
    """
    from lark.exceptions import UnexpectedInput

    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _unexpected(error, text, where) from None
    errors = ErrorCollector()
    items = [(str(item.data), str(item.children[0]), item) for item in tree.children]
    patterns = {n: _pattern(n, item.children[1:]) for kind, n, item in items if kind == "pattern"}
    rules: list[Rule] = []
    try:
        _check_cycles(patterns, {n: item for kind, n, item in items if kind == "pattern"})
    except MistakeError as error:
        raise _error(where, "the patterns", error) from None
    lines: dict[tuple[str, str], int] = {}
    for kind, name, item in items:
        line = item.children[0].line
        try:
            if (kind, name) in lines:
                raise MistakeError(
                    f"another {kind} in line {lines[kind, name]} has this name",
                    "give each a name of its own",
                )
            lines[kind, name] = line
            if kind == "pattern":
                _check_pattern(patterns[name], patterns)
            else:
                rules.append(_rule(name, item.children[1:], patterns, f"{where}:{line}"))
        except MistakeError as error:
            error.at = error.at or place_of(item.children[0])
            errors.add(_error(where, f"{kind} '{name}'", error))
    errors.check()
    if not rules:
        raise IrcError("rewrite-syntax", "there is no rewrite rule", where=where, help=EXAMPLE)
    return tuple(rules)


def _error(where: str, what: str, mistake: MistakeError) -> IrcError:
    place = where if mistake.at is None else f"{where}:{mistake.at[0]}:{mistake.at[1]}"
    return IrcError(
        "rewrite-syntax", "cannot read a rewrite rule", where=place,
        because=f"{what}: {mistake.because}", help=mistake.advice,
    )  # fmt: skip


def _unexpected(error: Any, text: str, where: str) -> IrcError:
    """Say where reading stopped, and what could have been there."""
    line, column = int(getattr(error, "line", -1) or -1), int(getattr(error, "column", -1) or -1)
    allowed: Iterable[str] = (
        getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
    )
    expected = set(allowed)
    if getattr(getattr(error, "token", None), "type", "") == "$END" or line < 1:
        line = max(text.rstrip().count("\n") + 1, 1)
        return IrcError(
            "rewrite-syntax", "cannot read a rewrite rule", where=f"{where}:{line}",
            because="the text ends in the middle of a rule",
            help=_advice("", expected),
        )  # fmt: skip
    token = str(getattr(error, "token", "") or text.split("\n")[line - 1][column - 1 :][:1])[:40]
    return IrcError(
        "rewrite-syntax", "cannot read a rewrite rule", where=f"{where}:{line}:{column}",
        because=f"it stops making sense at '{token}', column {column}",
        help=_advice(token, expected),
    )  # fmt: skip


def _advice(token: str, expected: set[str]) -> str:
    if not expected - {"RULE", "PATTERN", "$END"}:
        return "begin it with its kind and name: rule twice x + x => 2 * x"
    if token == "=" and "ARROW" in expected:
        return "=> stands between what is found and what takes its place"
    if "RPAR" in expected and token in ("=>", "", "rule", "where", "let", "pattern"):
        return "a ')' is missing before it"
    if "ARROW" in expected and token in ("", "rule", "pattern"):
        return f"it has no replacement; {EXAMPLE}"
    return EXAMPLE


@cache
def _parser() -> Any:
    from importlib.resources import files

    from lark import Lark

    grammar = files("irc.grammar").joinpath("rewrite.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=True, propagate_positions=True)


def _pattern(name: str, children: Sequence[Any]) -> Pattern:
    parameters = tuple(str(c) for c in children if c is not None and not hasattr(c, "data"))
    trees = [c for c in children if hasattr(c, "data")]
    return Pattern(name, parameters, trees[:-1], trees[-1])


def _check_cycles(patterns: Mapping[str, Pattern], items: Mapping[str, Any]) -> None:
    uses = {
        name: {used for used in names_in([*each.lets, each.body], "apply") if used in patterns}
        for name, each in patterns.items()
    }
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        ring = [str(name) for name in error.args[1]][::-1]
        raise MistakeError(
            f"'{ring[0]}' uses itself: {' uses '.join(ring)}",
            "a pattern is a form of fixed size; it cannot be recursive",
            place_of(items[ring[0]].children[0]),
        ) from None


def _check_pattern(pattern: Pattern, patterns: Mapping[str, Pattern]) -> None:
    """Read a pattern once for itself, so that its mistakes are found where it is written."""
    if pattern.name in OPERATORS:
        raise MistakeError(f"'{pattern.name}' is an op", "give the pattern another name")
    if len(set(pattern.parameters)) < len(pattern.parameters):
        raise MistakeError("two parameters have one name")
    used = {*names_in([*pattern.lets, pattern.body], "name")}
    for parameter in pattern.parameters:
        if parameter not in used:
            raise MistakeError(f"its parameter '{parameter}' is never used", "leave it out")
    _check_lets(pattern.lets, pattern.body)
    reader = Reader(patterns)
    reader.known.update({each: Name(each) for each in pattern.parameters})
    reader.define(pattern.lets, "")
    reader.term(pattern.body, "form")


def _check_lets(lets: Sequence[Any], body: Any) -> None:
    for number, tree in enumerate(lets):
        name = tree.children[0]
        if str(name) not in {*names_in([*lets[number + 1 :], body], "name")}:
            raise MistakeError(
                f"'let {name}' is never used in what is found",
                "use the name in the form, or leave the let out", place_of(name),
            )  # fmt: skip


def _rule(name: str, children: Sequence[Any], patterns: Mapping[str, Pattern], where: str) -> Rule:
    trees = [child for child in children if child is not None]
    lets = [tree for tree in trees if tree.data == "let"]
    tests = [tree for tree in trees if tree.data == "where"]
    form, put = [tree for tree in trees if tree.data not in ("let", "where")]
    _check_lets(lets, form)
    reader = Reader(patterns)
    reader.define(lets, "")
    find = reader.term(form, "form")
    if not list(heads(find)):
        raise MistakeError(
            f"it must find an op, and '{find}' is any value", EXAMPLE, place_of(form)
        )
    beside = Reader(patterns, bound=_bound(find))
    test = beside.term(tests[0].children[0], "condition") if tests else None
    return Rule(name, find, test, beside.term(put, "replacement"), where)


def _bound(find: Term) -> dict[str, Term]:
    """Return what a form gives a name to; the lets of patterns keep theirs to themselves."""
    bound: dict[str, Term] = {}
    for each in walk(find):
        match each:
            case Name():
                bound[each.text] = each
            case Literal():
                bound[str(each)] = each
            case Let():
                bound[each.name] = each
            case _:
                pass
    return bound

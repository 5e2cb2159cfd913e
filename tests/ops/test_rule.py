"""The rule datatype and its notation."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irc.dialects.size import symbol
from irc.errors import IrcError
from irc.ops.rule import Rule, RuleError, parse_rule, static

TEXTS = [
    "(b m k, b k n) -> (b m n) sum(k)",
    "() -> (a b) whole(a)",
    "(a [h d], .) -> (a h d) linear(0) size(h=12 d=64)",
    "(sum max, 1) -> (sum, .) max(max)",
    "(a b, a) -> (a 1) whole(b) linear(0 1) linear(0) monotone(1)",
    "(a b c) -> (.) max(a) min(b c)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_round_trips(text: str) -> None:
    assert str(parse_rule(text)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(a", "column 2"),
        ("(a b) -> (a)", "factor 'b' is in no result"),
        ("(a)->(a) sum(a)", "factor 'a' of sum(a) stands in a result"),
        ("(a a)->(a)", "factor 'a' stands twice"),
        ("(a)->(a) linear(3)", "(3) does not name some of the 1 operands"),
        ("(a)->(a) whole(z)", "factor 'z' stands in no operand"),
        ("(a b)->(a) sum(b) max(b)", "given twice"),
        ("(a)->(a) median(a)", "column"),
        ("(a [b])->(a b)", "column"),
        ("(a)->()", "column"),
    ],
)
def test_a_bad_rule_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(IrcError) as caught:
        parse_rule(text, where="model.py:3")
    assert caught.value.code == "rule-syntax"
    assert caught.value.where == "model.py:3"
    assert reason in caught.value.because[0]


dims = st.lists(st.sampled_from("abcdefg"), unique=True, max_size=5)


@given(st.lists(dims, max_size=3), dims, st.data())
def test_any_rule_parses_back(
    operands: list[list[str]], result: list[str], data: st.DataObject
) -> None:
    lost = sorted({name for term in operands for name in term} - set(result))
    kinds = [data.draw(st.sampled_from(["sum", "max", "min", "whole"])) for _ in lost]
    rule = Rule(
        tuple(tuple((name,) for name in term) for term in operands),
        (tuple((name,) for name in result),),
        reduced=tuple(
            sorted(
                ((n, k) for n, k in zip(lost, kinds, strict=True) if k != "whole"),
                key=lambda pair: [p for p in kinds if p != "whole"].index(pair[1]),
            )
        ),
        whole=tuple(n for n, k in zip(lost, kinds, strict=True) if k == "whole"),
        linear=tuple((i,) for i in range(len(operands))),
    )
    assert parse_rule(str(rule)) == rule


def test_only_a_factor_that_leads_every_dim_can_be_split() -> None:
    assert parse_rule("(a [h d]) -> (a h d)").splittable() == ("a", "h")
    assert parse_rule("(h d) -> ([h d])").splittable() == ("h",)
    assert parse_rule("(a b) -> (a b) whole(b)").splittable() == ("a",)


def test_sizes_follow_from_shapes_and_the_size_clause() -> None:
    rule = parse_rule("([h d] k) -> (k [h d]) size(h=3)")
    assert rule.factor_sizes([(12, 5)], [(5, 12)]) == {"h": 3, "d": 4, "k": 5}
    named = parse_rule("(a b) -> (a b)").factor_sizes([(symbol("B"), 4)], [(symbol("B"), 4)])
    assert named == {"a": symbol("B"), "b": 4}
    with pytest.raises(RuleError, match="'a' has size 'B'"):
        static(named)


@pytest.mark.parametrize(
    ("text", "operands", "results", "reason"),
    [
        ("(a) -> (a)", [(3,)], [(4,)], "'a' is 3 and 4"),
        ("(a) -> (a)", [(3, 1)], [(3,)], "has 2 dims"),
        ("(a, a) -> (a)", [(3,)], [(3,)], "2 operands, the op 1"),
        ("([a b]) -> ([a b])", [(6,)], [(6,)], "size of factor 'a' is unknown"),
        ("([a b]) -> (a b)", [(7,)], [(2, 3)], "not a multiple of 6"),
        ("([a b]) -> (a [b c]) size(b=4)", [(6,)], [(2, 8)], "not a multiple"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    text: str, operands: list[tuple[int, ...]], results: list[tuple[int, ...]], reason: str
) -> None:
    with pytest.raises(RuleError, match=reason):
        parse_rule(text).factor_sizes(operands, results)


def test_rules_load_without_lark() -> None:
    code = "import sys, irc.ops.rules; sys.exit('lark' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""The notation of rewrite rules: what it says, what it refuses, what it reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from irc.dialects.builder import FlowBuilder, entry, finish_function
from irc.dialects.flow import FlowOp
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.rewrite.apply import Place, rewrite
from irc.rewrite.library import builtin_rules, rules_of
from irc.rewrite.notation import parse_rules
from irc.rewrite.operators import perm_of, spec_matches, spec_of


def sigmoid_by_parts() -> ModuleOp:
    """``1 / (1 + exp(-x))`` and its square."""
    block = Block(arg_types=[TensorType.of((3, 5), "f32")])
    b = FlowBuilder(block)
    (x,) = block.args
    one = b.scalar(1.0, "f32")
    y = b.pointwise("div", one, b.pointwise("add", b.pointwise("exp", b.pointwise("neg", x)), one))
    return ModuleOp([finish_function("forward", block, [b.pointwise("mul", y, y)])])


def applied(text: str) -> tuple[list[str], list[Place]]:
    """Return the ops that rules leave of the program, and where they were tried."""
    module = sigmoid_by_parts()
    places = rewrite(module, parse_rules(text))
    module.verify()
    ops = [op for op in entry(module).body.block.ops if isinstance(op, FlowOp)]
    return [op.plain.get("fn", op.name) for op in ops], places


def test_sums_match_in_either_order() -> None:
    ops, places = applied("rule s 1 / (1 + exp(-x)) => sigmoid(x)")
    assert ops == ["sigmoid", "mul"]
    assert [place.ops for place in places if not place.reason] == [4]


def test_patterns_are_read_for_each_use() -> None:
    text = """
    pattern logistic(x) = let e = exp(-x)  1 / (e + 1)
    rule square logistic(x) * logistic(x) => sigmoid(x) * sigmoid(x)
    """
    assert applied(text)[0] == ["sigmoid", "sigmoid", "mul"]


def test_a_name_is_one_value() -> None:
    assert applied("rule r a * b where inside(a) => a + b")[0][-1] == "add"
    _, places = applied("rule r exp(x) * exp(x) => x")
    assert "is wanted" in places[-1].reason or "was wanted" in places[-1].reason


def test_literals_are_numbers() -> None:
    ops, _ = applied("rule r $a / (b + $c) where $a == $c => ($a + $c) / b")
    assert ops[-2:] == ["div", "mul"]


def test_conditions_decide() -> None:
    text = 'rule r neg(x) where rank(x) == {} and size(x, -1) >= 5 and dtype(x) == "f32" => exp(x)'
    assert "neg" in applied(text.format(3))[0]
    with pytest.raises(IrcError, match="rewrite-syntax"):
        parse_rules(text)


def test_a_miss_says_how_far_it_got() -> None:
    _, places = applied("rule r 1 / (1 + exp(neg(tanh(x)))) => x")
    (place,) = [place for place in places if place.ops == 4]
    assert "'tanh(x)' was wanted, and there is an argument" in place.reason


def test_a_replacement_of_another_type_is_refused() -> None:
    ops, places = applied('rule r exp(x) => cast["f64"](exp(x))')
    assert "cast" not in ops
    assert "type" in places[0].reason


def test_rules_that_undo_each_other_end() -> None:
    with pytest.raises(IrcError, match="rewrite-endless"):
        applied("rule a neg(x) => exp(x)  rule b exp(x) => neg(x)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rule twice x + x = 2 * x", "column 18"),
        ("rule r exp(x) => y", "nothing is called 'y'"),
        ("rule r exp(x) => $s * x", "no literal"),
        ("rule r expp(x) => x", "no op is called 'expp'"),
        ("rule r exp(x, y) => x", "takes 1 operands"),
        ("rule r x => exp(x)", "it must find an op"),
        ("rule r exp(x) where sizes(x) == 1 => x", "no function is called 'sizes'"),
        ("pattern p(x) = exp(x) rule r p(x, y) => x", "takes 1 operands"),
        ("rule r exp(x)", "ends in the middle"),
        ("rule r exp(x) where __import__(x) => x", "no function is called"),
    ],
)
def test_mistakes_are_located(text: str, reason: str) -> None:
    with pytest.raises(IrcError) as caught:
        parse_rules(f"\n{text}", where="my.rules")
    assert caught.value.code == "rewrite-syntax"
    assert "my.rules" in caught.value.where
    assert reason in f"{caught.value.because}"


def test_a_condition_without_an_answer_is_an_error() -> None:
    with pytest.raises(IrcError, match="rewrite-invalid"):
        applied("rule r exp(x) where size(x, 7) == 1 => x")


def test_a_file_of_rules_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "my.rules"
    path.write_text("rule mine exp(x) => x")
    assert rules_of([str(path)])[0].name == "mine"
    assert rules_of([str(path)])[1:] == builtin_rules()
    with pytest.raises(IrcError, match="file-missing"):
        rules_of([str(tmp_path / "none.rules")])


@pytest.mark.parametrize(
    ("pattern", "spec", "fits"),
    [
        ("*sd,*td->*st", "abqe,abke->abqk", True),
        ("*sd,*td->*st", "qe,ke->qk", True),
        ("*sd,*td->*st", "abqe,bake->abqk", False),
        ("*sd,*td->*st", "abqe,abek->abqk", False),
        ("*sd,*td->*st", "abqe,abke->abkq", False),
        ("*sd,*sd->*ss", "aqe,ake->aqk", False),
        ("sd,td->st", "aqe,ake->aqk", False),
        ("mk,nk->mn", "ab,cb->ac", True),
    ],
)
def test_dims_match_by_letters(pattern: str, spec: str, fits: bool) -> None:
    assert spec_matches(pattern, spec) == fits


def test_dims_are_written_for_ranks() -> None:
    assert spec_of("*sd,*td->*st", (3, 3)) == "Asd,Atd->Ast"
    assert perm_of("*dt->*td", 3) == (0, 2, 1)
    with pytest.raises(ValueError, match="do not fit"):
        spec_of("*sd,*td->*st", (3, 4))

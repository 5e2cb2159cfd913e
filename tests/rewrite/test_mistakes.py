"""Mistakes in rules: each is answered by name, with its place; none ends in anything else."""

from __future__ import annotations

import inspect
import random
import re
from importlib.resources import files
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from irc.cli import main
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ConcatOp, ContractOp, TransposeOp
from irc.dialects.text import dump, load
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.passes.rewrite import RewritePass
from irc.report.rewrites import write
from irc.rewrite.apply import rewrite
from irc.rewrite.library import kept_texts, rules_of
from irc.rewrite.notation import parse_rules
from tests.rewrite.test_notation import applied, sigmoid_by_parts


def refusal(text: str) -> IrcError:
    with pytest.raises(IrcError) as caught:
        parse_rules(text, where="my.rules")
    assert caught.value.codes == ("rewrite-syntax",)
    return caught.value


@pytest.mark.parametrize(("text", "place", "because"), [
    ("rule r\n tanh(x) => x * 1e999", ":2:", "beyond float64"),
    ("rule r\n tanh(x) => transpose[perm = 1](x)", ":2:13", "'perm' of 'transpose' is a list"),
    ("rule r\n " + "-" * 3000 + "x => x", ":2:", "nested over 64 deep"),
    ("rule r\n " + "exp(" * 3000 + "x" + ")" * 3000 + " => x", ":2:", "nested over 64 deep"),
    ("rule r " + "".join(f"let a{i + 1} = exp(a{i}) " for i in range(80)) + "a80 => a0", ":1:",
     "made of is nested over"),
    ("pattern p(x) = tanh(x)\npattern p(x) = exp(x)\nrule r p(x) => x", ":2:9", "in line 1"),
    ("rule r exp(x) => x\n\nrule r tanh(x) => x", ":3:6", "another rule in line 1"),
    ("pattern p(x) = p(x)\nrule r p(x) => x", ":1:9", "'p' uses itself: p uses p"),
    ("pattern p(x) = q(x)\npattern q(x) = p(x)\nrule r p(x) => x", ":", "uses itself"),
    ("pattern p(x, y) = exp(x)\nrule r p(x, x) => x", ":1:9", "'y' is never used"),
    ("pattern exp(x) = tanh(x)\nrule r exp(x) => x", ":1:9", "'exp' is an op"),
    ("rule r\n let a = exp(x)\n tanh(y) => y", ":2:6", "'let a' is never used"),
    ("rule r let x = exp(y) let x = tanh(y) x => y", ":1:27", "a meaning already"),
    ('rule r\n tanh(x)\n where rank(x) == "two" => x', ":3:", "a number with a text"),
    ("rule r tanh(x) where rank(x) => x", ":1:", "a condition is true or false"),
    ("rule r tanh(x) where x == x => x", ":1:", "compares a value with a value"),
    ("rule r tanh(x) where rank(2) == 1 => x", ":1:", "takes a value, and '2' is a number"),
    ("rule r tanh(x) where exp(x) == 1 => x", ":1:22", "'exp' is an op, and this is"),
    ("rule r tanh(x) where (rank(x) | 1) == 1 => x", ":1:", "'|' means nothing here"),
    ("rule r tanh(x) => x | exp(x)", ":1:", "'|' means nothing here"),
    ("rule r tanh(x ?? y) => x", ":1:", "'??' means nothing here"),
    ("rule r tanh(x?) => x", ":1:", "'x?' means nothing here"),
    ("rule r tanh(true) => tanh(1)", ":1:13", "no value of a program"),
    ("rule r tanh(x) => rank(x)", ":1:19", "no op is called 'rank'"),
    ("rule r tanh(x) => cast(x)", ":1:19", "'cast' needs a dtype"),
    ('rule r tanh(x) => cast["f33"](x)', ":1:19", "'f33' is no dtype"),
    ("rule r tanh(x) => contract(x, x)", ":1:19", "needs its dims"),
    ('rule r tanh(x) => contract["a,,b"](x, x)', ":1:19", "does not say how dims correspond"),
    ('rule r tanh(x) => contract["a,b->ac"](x, x)', ":1:19", "is in no operand"),
    ('rule r contract["ab"](x, y) => x', ":1:8", "does not say how dims correspond"),
    ('rule r sum["a"](x) => x', ":1:8", "whole numbers"),
    ("rule r sum[0.5](x) => x", ":1:8", "whole numbers"),
    ("rule r exp[1](x) => x", ":1:8", "no attribute without a name"),
    ("rule r exp(x) => attention[like = x](x, x, x)", ":1:18", "takes the name of an op"),
    ("rule r exp(x) => attention[scale = 1](x, x, x)", ":1:18", "needs the attribute 'is_causal'"),
    ("rule r exp(x) => attention[scale = 1, is_causal = 2](x, x)", ":1:18", "is a truth"),
    ("pattern p(x) = exp(x) rule r tanh(x) => p(x)", ":1:41", "never put"),
    ("rule r tanh(x = x", ":1:15", "'='"),
    ("tanh(x) => x", ":1:1", "'tanh'"),
    ("", "", ""),
    ("// nothing\n", "", ""),
    ("pattern p(x) = exp(x)", "", ""),
])  # fmt: skip
def test_a_mistake_has_its_place(text: str, place: str, because: str) -> None:
    error = refusal(text)
    assert error.where.startswith("my.rules" + place)
    assert because in f"{error.because}"
    assert not error.render().rstrip().endswith(";")


def test_patterns_that_multiply_end() -> None:
    text = "pattern p0(x) = exp(x) "
    text += "".join(f"pattern p{i + 1}(x) = p{i}(x) + p{i}(exp(x)) " for i in range(12))
    assert "over 1000 times" in f"{refusal(text + 'rule r p12(x) => x').render()}"


def test_all_mistakes_of_a_file_are_reported() -> None:
    with pytest.raises(IrcError) as caught:
        parse_rules("rule a expp(x) => x\nrule b tanh(x) => y\nrule c exp(x) => x")
    assert "rules:1:8" in caught.value.render()
    assert "rules:2:19" in caught.value.render()


def test_the_help_is_about_the_mistake() -> None:
    assert "=> stands between" in refusal("rule r tanh(x) = exp(x)").help
    assert "a ')' is missing" in refusal("rule r tanh(x => exp(x)").help
    assert "begin it with its kind" in refusal("tanh(x) => exp(x)").help
    assert refusal("rule r tanhh(x) => exp(x)").help == "did you mean 'tanh'?"
    assert "scale" in refusal("rule r exp(x) => attention[scal = 1](x, x, x)").help


@pytest.mark.parametrize(("put", "reason"), [
    ("1", "the replacement has another shape: [], not [3, 5]"),
    ("sum[-1](x)", "another shape: [3, 1], not [3, 5]"),
    ('cast["f16"](x)', "another dtype: f16, not f32"),
    ("sum[7](x)", "sum over dims [7] of a value of 2 dims"),
    ("reshape[1e300](x)", "the replacement"),
    ("reshape[rank(x) / 4](x)", "the replacement"),
    ('contract["*sd,*td->*st"](x, x)', "another shape"),
    ('contract["abc,abc->abc"](x, x)', "does not fit"),
    ('transpose["*abc->*acb"](x)', "do not fit"),
    ("concat[dim = 9](x, x)", "the replacement"),
])  # fmt: skip
def test_a_replacement_that_does_not_fit_says_why(put: str, reason: str) -> None:
    ops, places = applied(f"rule r exp(x) => {put}")
    assert "exp" in ops
    assert places[0].fits
    assert reason in places[0].reason
    assert reason in write(places)


def test_a_rule_of_the_user_is_listed_wherever_it_was_tried() -> None:
    text = "rule a exp(neg(tanh(x))) => x  rule b erf(x) => x"
    shown = write(applied(text)[1], own=("a", "b"))
    assert "2 ops fit; then 'tanh(x)' was wanted" in shown
    assert "b: tried nowhere" in shown


def test_a_fraction_is_no_integer() -> None:
    _, places = applied('rule r exp(x) => cast["f32"](cast["i32"](x) * 0.5)')
    assert "0.5 is no number of i32" in places[0].reason


@pytest.mark.parametrize(("replacement", "fits", "other"), [
    ("reshape[3, 5](reshape[15](x))",) * 2 + ("reshape[3, 5](reshape[5, 3](x))",),
    ("sum[0](reshape[1, 15](x))", "sum[-2](x)", "sum[1](x)"),
    ("sum[0](reshape[1, 15](x))", "sum[0](x)", "sum[2](x)"),
    ('cast["f32"](cast["f64"](x))',) * 2 + ('cast["f32"](cast["f16"](x))',),
])  # fmt: skip
def test_attributes_without_names_are_compared(replacement: str, fits: str, other: str) -> None:
    if replacement.startswith("sum"):
        replacement = f"broadcast[3, 5](reshape[3, 5]({replacement}))"
    for form, times in ((fits, 1), (other, 0)):
        _, places = applied(
            f"rule a neg(x) => {replacement}  rule b {form} where true == false => x"
        )
        assert len([p for p in places if p.rule == "b" and p.fits]) == times


def test_the_program_keeps_the_rules_of_the_user(tmp_path: Path) -> None:
    text = 'rule s // "quoted", \\ dense, \u03b5\n  1 / (1 + exp(-x)) => sigmoid(x)\n'
    path = tmp_path / "my.rules"
    path.write_text(text, encoding="utf-8")
    module = sigmoid_by_parts()
    RewritePass(rules=(str(path),)).apply(None, module)  # pyright: ignore[reportArgumentType]
    assert kept_texts(load(dump(module))) == (("my.rules", text),)


def test_what_is_no_text_is_no_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "my.rules"
    for data in (b"\xff\xfe\x00rule", b"rule r exp(x) => x // " + b"9" * 50, b" " * (1 << 21)):
        path.write_bytes(data)
        with pytest.raises(IrcError) as caught:
            rules_of([str(path)])
        assert caught.value.code == "rewrite-syntax"
    for name in (str(tmp_path), "none.rules", "\0"):
        with pytest.raises(IrcError, match="file-missing"):
            rules_of([name])


def test_the_example_of_the_pass_is_a_rule() -> None:
    documented = inspect.cleandoc(RewritePass.__doc__ or "")
    match = re.search(r"rule sigmoid_by_parts.*?=> \S+", documented, re.DOTALL)
    assert match is not None
    ops, _ = applied(match[0])
    assert ops == ["sigmoid", "mul"]


WORDS = (
    "rule", "let", "where", "=>", "=", "(", ")", "[", "]", ",", "|", "??", "?", "$s", "x", "y",
    "inf", "true", "1", "-1", "0.5", "1e308", '"f32"', '"*ab->*ba"', "exp", "sum", "cast", "like",
    "contract", "transpose", "reshape", "attention", "concat", "rank(x)", "size(x, 1)", "==", "in",
    "and", "not", "-", "*", "/", "pattern", "//", "\n", "\x00", "\u2028", "9" * 400,
)  # fmt: skip
GOOD = """pattern softmax(x) = let e = exp(x - max[-1](x)) e / sum[-1](e)
rule a y / ($b + exp(-x)) where rank(x) == 2 and size(x, -1) > 1 => sigmoid(x) * ($b ?? 1)
rule b let y = exp(x) y where dtype(x) in "f32 f64" or not fixed(x) => cast["f32"](x) + sum[0](x)
rule c x * x | y * x => transpose["*ab->*ba"](reshape[5, size(x, 0)](x))
rule d neg(x) => attention[scale = 1 / 2, is_causal = false](x, x, x)
rule e let y = contract["*sd,*td->*st"](q, k) y => contract[like = y](q, k)
rule f transpose["*ab->*ba"](x) => transpose["*ab->*ba"](x * $s ?? 1)
rule g sum[-1](x) => mean[-1](x) * size(x, -1)
rule h reshape[7, 5](x) => reshape[rank(x) + 5, 5](x)
rule i let y = concat[dim = 1](a, b) y => concat[like = y](a, b + 0.5)
rule j cast["i32"](x) * $s => cast["i32"](x * $s)
"""


def assorted() -> ModuleOp:
    """A product, a transpose, a sum, a reshape, a concatenation, a product of integers."""
    block = Block(arg_types=[TensorType.of((5, 7), "f32"), TensorType.of((5, 7), "f32")])
    b = FlowBuilder(block)
    x, y = block.args
    product = b.op(ContractOp, [x, y], spec="ad,bd->ab")
    turned = b.op(TransposeOp, [b.pointwise("neg", x)], perm=(1, 0))
    total = b.reduce("sum", turned, [1], keep_dims=True)
    joined = b.op(ConcatOp, [b.reshape(x, (7, 5)), turned], dim=1)
    whole = b.pointwise("mul", b.cast(x, "i32"), b.constant([3] * 35, (5, 7), "i32"))
    values = [product, total, joined, whole]
    return ModuleOp([finish_function("forward", block, values)])


def test_whatever_is_written_is_a_rule_or_a_registered_error() -> None:
    rng = random.Random(11)
    folder = files("irc.rewrite") / "rules"
    own = [*GOOD.splitlines()[1:], GOOD] * 4
    own += [f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith(".rules")]
    refused: set[str] = set()
    read = applied_ones = 0
    for _ in range(250):
        text = rng.choice(own)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            tokens = re.findall(r'"[^"\n]*"|\$?\w+|\s+|=>|\?\?|.', text)
            at = rng.randrange(len(tokens) + 1)
            match rng.randrange(4):
                case 0:
                    tokens[at : at + 1] = [f" {rng.choice(WORDS)} "]
                case 1:
                    tokens[at:at] = [f" {rng.choice(WORDS)} "]
                case 2:
                    del tokens[at : at + rng.randrange(1, 4)]
                case _:
                    tokens = tokens[:at] if rng.random() < 0.3 else tokens
            text = "".join(tokens)
        module = rng.choice((sigmoid_by_parts, assorted))()
        try:
            places = rewrite(module, parse_rules(text))
        except IrcError as error:
            refused |= {error.code}
            continue
        except Exception as error:
            raise AssertionError(text) from error
        module.verify()
        read += 1
        applied_ones += any(not place.reason for place in places)
    assert refused <= {"rewrite-syntax", "rewrite-invalid", "rewrite-endless"}
    assert read > 40
    assert applied_ones > 10


@pytest.mark.slow
def test_a_plan_explains_the_rules_that_it_was_compiled_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn, ones\n\ndef build():\n"
        "    return nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (ones(2, 4),)\n"
    )
    (tmp_path / "my.rules").write_text("rule mine tanh(x) => 2 * sigmoid(2 * x) - 1")
    (tmp_path / "other.rules").write_text("rule other tanh(x) => sum[-1](x)")
    plan = str(tmp_path / "plan")
    rules = ["--rules", str(tmp_path / "my.rules")]
    assert main(["compile", f"{tmp_path}/net.py:build", "-o", plan, *rules]) == 0
    (tmp_path / "my.rules").unlink()
    capsys.readouterr()
    assert main(["explain", "plan", plan, "--rewrites"]) == 0
    assert "mine: applied 1 times" in capsys.readouterr().out
    assert main(["explain", "plan", plan, "--rewrites", str(tmp_path / "other.rules")]) == 0
    shown = capsys.readouterr().out
    assert "mine" not in shown
    assert "the replacement has another shape: [2, 1], not [2, 4]" in shown

"""If, Loop and Scan."""

from __future__ import annotations

import numpy as np
import pytest

from irc.errors import IrcError
from irc.frontends.onnx import load_onnx
from tests.frontends.onnx.compare import check_text, model_of, op_counts

BRANCHES = (
    "y = If (c) <then_branch = a () => (float[3] t) {{ t = {then} (x) }}, "
    "else_branch = b () => (float[3] e) {{ e = {other} (x) }}>"
)
LOOP = (
    "y, h = Loop (n, go, x) <body = b (int64 i, bool going, float[3] v) => "
    "(bool going_on, float[3] w, float[3] out) { going_on = Identity (going)\n"
    "f = Cast <to = 1> (i)\nw = Add (v, f)\nout = Mul (w, w) }>"
)


@pytest.mark.parametrize("value", [True, False])
def test_a_condition_that_is_an_input_selects(value: bool) -> None:
    feeds = {"c": np.array(value), "x": np.array([-1, 2, -3], np.float32)}
    body = BRANCHES.format(then="Relu", other="Neg")
    check_text(body, "bool c, float[3] x", "y:1", feeds=feeds)


def test_a_known_condition_takes_one_branch() -> None:
    body = BRANCHES.format(then="Relu", other="Exp")
    program = check_text(body, "float[3] x", "y:1", stored="bool c = {0}")
    assert op_counts(program) == {"flow.pointwise": 1}
    assert "Exp" in str(program.module)


def test_branches_of_different_types_are_refused() -> None:
    body = BRANCHES.format(then="Relu", other="Shape")
    with pytest.raises(IrcError, match="branches of different types"):
        load_onnx(model_of(body, "bool c, float[3] x", "float[3] y"))


@pytest.mark.parametrize("value", [True, False])
def test_a_branch_of_sizes_that_only_the_run_knows_runs_as_it_is(value: bool) -> None:
    body = BRANCHES.format(then="Relu", other="Unique")
    feeds = {"c": np.array(value), "x": np.array([3, -1, 2], np.float32)}
    program = check_text(body, "bool c, float[3] x", "y:1", feeds=feeds)
    assert op_counts(program) == {"onnx::node::If": 1}


def test_a_branch_that_cannot_be_computed_is_explained() -> None:
    body = BRANCHES.format(then="Relu", other="com.acme.Mystery")
    model = model_of(body, "bool c, float[3] x", "float[3] y", domains="com.acme")
    with pytest.raises(IrcError) as caught:
        load_onnx(model)
    assert "no converter for op 'Mystery' of domain 'com.acme'" in str(caught.value)
    assert "else branch node 0 (Mystery)" in str(caught.value)


def test_loop_unrolls() -> None:
    stored = "int64 n = {4}, bool go = {1}"
    check_text(LOOP, "float[3] x", "y:1 h:2", stored=stored)


@pytest.mark.parametrize(
    ("stored", "inputs", "words"),
    [
        ("bool go = {1}", "float[3] x, int64 n", "trip count depends on inputs"),
        ("int64 n = {4}", "float[3] x, bool go", "condition depends on inputs"),
        ("int64 n = {4611686018427387904}, bool go = {1}", "float[3] x", "over 1024 trips"),
    ],
)
def test_loops_that_cannot_unroll(stored: str, inputs: str, words: str) -> None:
    model = model_of(LOOP, inputs, "float[3] y, float[a,b] h", stored=stored)
    with pytest.raises(IrcError, match=words) as caught:
        load_onnx(model)
    assert caught.value.codes == ("op-unsupported",)


def test_scan_unrolls() -> None:
    body = (
        "s, h = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = b "
        "(float[2] v, float[2] row) => (float[2] w, float[2] out) "
        "{ w = Add (v, row)\nout = Mul (w, row) }> (z, x)"
    )
    check_text(body, "float[2] z, float[5,2] x", "s:1 h:2")

"""Arithmetic on shapes: with names and numbers, and against the converters."""

from __future__ import annotations

import numpy as np
import pytest

from irc.dialects.builder import entry
from irc.dialects.flow import tensor
from irc.frontends.onnx import fold as folding
from irc.frontends.onnx import load_onnx
from tests.frontends.onnx.compare import check_text, model_of, run

CASES = [
    ("Add (a, b)", "int64"), ("Sub (a, b)", "int64"), ("Mul (a, b)", "int64"),
    ("Div (a, b)", "int64"), ("Max (a, b)", "int64"), ("Min (a, b)", "int64"),
    ("Equal (a, b)", "bool"), ("Less (a, b)", "bool"),
    ("Greater (a, b)", "bool"), ("LessOrEqual (a, b)", "bool"), ("GreaterOrEqual (a, b)", "bool"),
    ("Neg (a)", "int64"), ("Abs (a)", "int64"), ("Cast <to = 6> (a)", "int32"),
    ("Gather (a, k)", "int64"), ("Concat <axis = -1> (a, b)", "int64"),
    ("Unsqueeze (a, u)", "int64"),
    ("ReduceProd (a)", "int64"), ("ReduceMax (a)", "int64"), ("ReduceSum (a)", "int64"),
    ("Tile (a, t)", "int64"), ("Identity (a)", "int64"), ("Slice (a, u, t, u, t)", "int64"),
    ("Reshape (a, r)", "int64"), ("Expand (a, e)", "int64"), ("Transpose (a)", "int64"),
]  # fmt: skip
STORED = (
    "int64[4] a = {7,-7,5,-1}, int64[4] b = {2,2,-3,4}, int64[2] k = {-1,0}, int64[1] u = {0}, "
    "int64[1] t = {3}, int64[2] r = {2,-1}, int64[2] e = {2,4}"
)


@pytest.mark.parametrize(("call", "dtype"), CASES)
def test_folding_agrees_with_converting(
    call: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ndim = 2 if call.split()[0] in ("Unsqueeze", "Reshape", "Expand") else 1
    feeds = {"x": np.zeros(1, np.float32)}
    body = f"y = {call}\nz = Neg (x)"
    folded = check_text(body, "float[1] x", f"{dtype}/y:{ndim} z:1", stored=STORED, feeds=feeds)
    kinds = {op.name for op in folded.module.walk()} - {
        "builtin.module",
        "func.func",
        "func.return",
    }
    assert kinds == {"flow.constant", "flow.pointwise"}
    monkeypatch.setattr(folding, "FOLD", {})
    check_text(body, "float[1] x", f"{dtype}/y:{ndim} z:1", stored=STORED, feeds=feeds)


def test_numbers_without_dims_divide() -> None:
    # numpy returns scalars where arrays without dims are divided.
    stored = "float p = {3}, float q = {2}, int64 m = {-7}, int64 n = {2}"
    body = "s = Div (p, q)\nz = Mul (x, s)\ny = Div (m, n)"
    feeds = {"x": np.ones(1, np.float32)}
    check_text(body, "float[1] x", "int64/y:0 z:1", stored=stored, feeds=feeds)


def result_shape(body: str, shape: str, stored: str = "") -> str:
    model = model_of(body, "float[B,S] x", "float[a,b] y", stored=stored)
    for dim, text in zip(
        model.graph.input[0].type.tensor_type.shape.dim, shape.split(","), strict=True
    ):
        dim.dim_param = text
    last = entry(load_onnx(model).module).body.block.last_op
    assert last is not None
    return ", ".join(map(str, tensor(last.operands[0]).shape))


@pytest.mark.parametrize(
    ("body", "shape", "wanted"),
    [
        ("s = Shape (x)\nk, m = Split (s)\np = Mul (k, m)\ny = Reshape (x, p)", "B,S", "B*S"),
        ("y = Flatten <axis = 0> (x)", "B,4*S", "1, 4*B*S"),
        (
            "s = Shape (x)\nn = Constant <value_ints = [-1]> ()\n"
            "h, w = Split (s)\nq = Div (w, t)\nr = Concat <axis = 0> (h, t, q)\ny = Reshape (x, r)",
            "B,4*S",
            "B, 2, 2*S",
        ),
        (
            # As exporters write `expand(-1, 3)`: keep a size where -1 was asked for.
            "s = Shape (x)\nm = Constant <value_ints = [-1, -1]> ()\ne = Equal (s, m)\n"
            "o = ConstantOfShape <value = int64[1] {1}> (t)\n"
            "r = Where (e, o, s)\ny = Expand (x, r)",
            "B,S",
            "B, S",
        ),
        ("y = Concat <axis = 1> (x, x)", "B,S", "B, 2*S"),
        ("p = Constant <value_ints = [0,1,0,2]> ()\ny = Pad (x, p)", "B,S", "B, S + 3"),
    ],
)
def test_names_survive_shape_arithmetic(body: str, shape: str, wanted: str) -> None:
    assert result_shape(body, shape, "int64[1] t = {2}") == wanted


def test_slices_by_named_sizes() -> None:
    body = (
        "s = Shape <start = 1> (x)\nz = Constant <value_ints = [0]> ()\n"
        "a = Constant <value_ints = [0]> ()\nt = Slice (w, z, s, a)\ny = Add (x, t)"
    )
    stored = "float[9] w = {1,2,3,4,5,6,7,8,9}"
    assert result_shape(body, "B,S", stored) == "B, S"
    model = model_of(body, "float[B,S] x", "float[a,b] y", stored=stored)
    program = load_onnx(model, {"B": 2, "S": 5})
    (y,) = run(program, {"x": np.zeros((2, 5), np.float32)})
    np.testing.assert_array_equal(y, [[1, 2, 3, 4, 5]] * 2)

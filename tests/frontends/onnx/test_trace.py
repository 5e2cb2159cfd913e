"""One import for every size: what stays a name, what is noted, and what has to be a number."""

# pyright: basic
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from irc.dialects.bound_sizes import bound_module
from irc.errors import IrcError
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import read_model
from irc.frontends.onnx.trace import OpenProgram, trace
from irc.program import Program
from tests.frontends.onnx.compare import model_of, reference, run


def traced(model: onnx.ModelProto, **hints: int) -> OpenProgram:
    return trace(prepare(read_model(model)), hints)


def agrees(model: onnx.ModelProto, open_program: OpenProgram, values: Mapping[str, int]) -> None:
    """Run the one import at some sizes, and ONNX Runtime."""
    rng = np.random.default_rng(0)
    full = open_program.extended(values)
    feeds = {
        name: rng.standard_normal([d if isinstance(d, int) else full[str(d)] for d in shape])
        .astype(np.float32)
        for name, shape in open_program.shapes.items()
    }  # fmt: skip
    program = Program(bound_module(open_program.program.module, full), open_program.program.tensors)
    program.module.verify()
    for mine, theirs in zip(run(program, feeds), reference(model, feeds), strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


STRIDED = model_of(
    """a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)
    b = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (a)
    y = Relu (b)""",
    "float[N,2,H,W] x",
    "float[N,3,P,Q] y",
    stored="float[3,2,3,3] w = {" + ",".join(str(i % 7 - 3) for i in range(54)) + "}",
)


def test_windows_with_strides_make_quotients() -> None:
    open_program = traced(STRIDED, N=2, H=32, W=40)
    assert set(open_program.places) == {"N", "H", "W"} and not open_program.fixed
    assert open_program.extended({"N": 2, "H": 32, "W": 40})[min(open_program.quotients)] in (
        15,
        16,
        19,
        20,
    )
    for values in (
        {"N": 1, "H": 17, "W": 23},
        {"N": 3, "H": 9, "W": 64},
        {"N": 2, "H": 33, "W": 8},
    ):
        if open_program.admits(values):
            agrees(STRIDED, open_program, values)
    assert open_program.admits({"N": 1, "H": 36, "W": 44})


PYRAMID = model_of(
    """a = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
    s = Constant <value = float[4] {1, 1, 2, 2}> ()
    u = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
        nearest_mode = "floor"> (a, , s)
    y = Add (x, u)""",
    "float[1,2,H,W] x",
    "float[1,2,H,W] y",
)


def test_sizes_that_have_to_be_equal_are_a_condition() -> None:
    open_program = traced(PYRAMID, H=8, W=12)
    agrees(PYRAMID, open_program, {"H": 6, "W": 10})
    refused = open_program.refused({"H": 7, "W": 10})
    assert refused is not None and "floor((H)/2)" in refused


SLICED = model_of(
    """z = Constant <value = int64[1] {0}> ()
    e = Constant <value = int64[1] {10}> ()
    m = Constant <value = int64[1] {1}> ()
    y = Slice (x, z, e, m)""",
    "float[2,S] x",
    "float[2,T] y",
)


@pytest.mark.parametrize(("hint", "good", "bad"), [(20, 10, 9), (4, 9, 10)])
def test_where_a_slice_ends_is_a_condition(hint: int, good: int, bad: int) -> None:
    open_program = traced(SLICED, S=hint)
    agrees(SLICED, open_program, {"S": good})
    assert open_program.refused({"S": bad}) is not None


def test_a_size_that_is_needed_is_fixed_and_says_by_whom() -> None:
    model = model_of(
        'u = Resize <mode = "linear"> (x, , s)\ny = Relu (u)',
        "float[B,2,H] x", "float[B,2,K] y", stored="float[3] s = {1, 1, 1.5}",
    )  # fmt: skip
    open_program = traced(model, B=2, H=8)
    assert set(open_program.places) == {"B"}
    assert open_program.fixed["H"].number == 8 and "Resize" in open_program.fixed["H"].reason
    agrees(model, open_program, {"B": 5})


def test_shape_arithmetic_stays_polynomial() -> None:
    model = model_of(
        """s = Shape (x)
        i = Constant <value = int64 {0}> ()
        j = Constant <value = int64 {1}> ()
        b = Gather (s, i)
        n = Gather (s, j)
        two = Constant <value = int64 {2}> ()
        h = Div (n, two)
        k = Mul (h, two)
        z = Constant <value = int64[1] {0}> ()
        bs = Unsqueeze (b, z)
        ks = Unsqueeze (k, z)
        c = Slice (x, z, ks, one)
        minus = Constant <value = int64[1] {-1}> ()
        t = Concat <axis = 0> (bs, minus)
        y = Reshape (c, t)""",
        "float[B,S] x", "float[B,T] y", stored="int64[1] one = {1}",
    )  # fmt: skip
    open_program = traced(model, B=3, S=9)
    for values in ({"B": 1, "S": 17}, {"B": 3, "S": 2}, {"B": 17, "S": 127}):
        if open_program.admits(values):
            agrees(model, open_program, values)
    assert open_program.admits({"B": 17, "S": 127})


def test_a_dim_of_any_size_is_turned_around() -> None:
    model = model_of(
        "y = Slice (x, s, e, a, s)", "float[B,S] x", "float[B,S] y",
        stored="int64[1] s = {-1}, int64[1] e = {-9223372036854775807}, int64[1] a = {1}",
    )  # fmt: skip
    open_program = traced(model, B=3, S=9)
    assert not open_program.fixed
    agrees(model, open_program, {"B": 2, "S": 17})


def test_what_no_size_allows_is_an_error() -> None:
    model = model_of("y = MatMul (x, w)", "float[B,3] x", "float[B,2] y",
                     stored="float[4,2] w = {1,2,3,4,5,6,7,8}")  # fmt: skip
    with pytest.raises(IrcError):
        traced(model, B=3)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pads_of_an_open_dim_with_its_own_elements(mode: str) -> None:
    text = f'p = Constant <value_ints = [0, 3, 0, 2]> ()\ny = Pad <mode = "{mode}"> (x, p)'
    model = model_of(text, "float[B,N] x", "float[B,M] y", opset=19)
    open_program = traced(model, B=2, N=8)
    assert not open_program.fixed
    for n in (4, 5, 9):
        agrees(model, open_program, {"B": 3, "N": n})


def test_pads_up_to_a_length() -> None:
    model = model_of(
        "n = Shape <start = 1> (x)\nmore = Sub (all, n)\np = Concat <axis = 0> (none, more)\n"
        "y = Pad (x, p)",
        "float[B,N] x", "float[B,12] y", stored="int64[1] all = {12}, int64[3] none = {0, 0, 0}",
    )  # fmt: skip
    open_program = traced(model, B=2, N=8)
    assert not open_program.fixed
    for n in (3, 12):
        agrees(model, open_program, {"B": 3, "N": n})


@pytest.mark.parametrize(
    "bounds", [(3, -(2**63), -1), (-1, -(2**63), -1), (-2, 1, -2), (1, 2**63 - 1, 3), (0, -1, 2)]
)
def test_slices_of_an_open_dim_by_steps(bounds: tuple[int, int, int]) -> None:
    start, stop, step = bounds
    model = model_of(
        "y = Slice (x, s, e, a, t)", "float[B,N] x", "float[B,M] y",
        stored=f"int64[1] s = {{{start}}}, int64[1] e = {{{stop}}}, int64[1] a = {{1}},"
        f" int64[1] t = {{{step}}}",
    )  # fmt: skip
    open_program = traced(model, B=2, N=8)
    assert not open_program.fixed
    for n in (6, 7, 13):
        agrees(model, open_program, {"B": 3, "N": n})


def test_a_range_of_floats_up_to_an_open_size() -> None:
    model = model_of(
        "n = Shape <start = 1> (x)\nf = Cast <to = 1> (n)\ns = Squeeze (f)\n"
        "r = Range (zero, s, one)\ny = Add (x, r)",
        "float[B,N] x", "float[B,N] y", stored="float zero = {0}, float one = {1}",
    )  # fmt: skip
    open_program = traced(model, B=2, N=8)
    assert not open_program.fixed
    agrees(model, open_program, {"B": 3, "N": 5})

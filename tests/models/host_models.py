"""ONNX models whose values decide sizes, branches or trips: what becomes host programs."""

from __future__ import annotations

import numpy as np
import onnx

from tests.frontends.onnx.compare import model_of

WEIGHTS = np.random.default_rng(0).normal(0, 0.3, (8, 8)).astype(np.float32)
"""The matrix W, which bodies read from around them."""

GO = "bool go = {1}"
"""The condition that a loop begins with."""


def stored(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the matrix that bodies read from around them."""
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "W"))
    return model


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Return float32 numbers of a seed."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def branches(rows: int | str = 3) -> str:
    """A product or a sum, as c says."""
    return (
        f"o = If (c) <then_branch = t () => (float[{rows},8] a) {{ a = MatMul (x, W) }}, "
        "else_branch = e () => (float[1,1] b) { b = ReduceSum <keepdims = 1> (x) }>\ny = Exp (o)"
    )


def repeated(rows: int | str = 3, outer: str = "outer") -> str:
    """Products, n of them, whose rows are collected with ``outer``, from around the loop, added."""
    return (
        f"y, h = Loop (n, go, x) <body = b (int64 i, bool going, float[{rows},8] v) => "
        f"(bool on, float[{rows},8] w, float[{rows},8] row) "
        "{ on = Identity (going)\nm = MatMul (v, W)\nw = Tanh (m)\n"
        f"row = Add (w, {outer}) }}>\nall = Relu (h)"
    )


def repeated_while(rows: int | str = 3) -> str:
    """Products until the norm is small."""
    return (
        f"y, h = Loop (, go, x) <body = b (int64 i, bool going, float[{rows},8] v) => "
        f"(bool on, float[{rows},8] w, float l) {{ m = MatMul (v, W)\nw = Tanh (m)\n"
        "l = ReduceL2 <keepdims = 0> (w)\non = Greater (l, eps) }>"
    )


NESTED = (
    "y = Loop (n, go, x) <body = b (int64 i, bool going, float[3,8] v) => (bool on, float[3,8] w) "
    "{ on = Identity (going)\nouter = Tanh (v)\nw = Loop (i, on, outer) "
    "<body = d (int64 j, bool g, float[3,8] a) => (bool g2, float[3,8] z) "
    "{ g2 = Identity (g)\nm = MatMul (a, W)\nz = Add (m, outer) }> }>"
)


def scanned(rows: int | str = 3) -> str:
    """A product for each element of xs, which is added to the state first."""
    return (
        f"s, y = Scan <num_scan_inputs = 1, body = b (float[{rows},8] v, float[{rows},8] e) => "
        f"(float[{rows},8] w, float[{rows},8] o) "
        "{ a = Add (v, e)\nm = MatMul (a, W)\nw = Tanh (m)\no = Identity (w) }> (x, xs)"
    )


def loop_model(rows: int | str = 3) -> onnx.ModelProto:
    """:func:`repeated`, with the exponential of x around it."""
    inputs, outputs = f"float[{rows},8] x, int64 n", f"float[{rows},8] y, float[t,{rows},8] all"
    return stored(model_of("outer = Exp (x)\n" + repeated(rows), inputs, outputs, stored=GO))


def scan_model(rows: int | str = 3) -> onnx.ModelProto:
    """:func:`scanned`, of any length."""
    inputs = f"float[{rows},8] x, float[T,{rows},8] xs"
    return stored(model_of(scanned(rows), inputs, f"float[{rows},8] s, float[T,{rows},8] y"))

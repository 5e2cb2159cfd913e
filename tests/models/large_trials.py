"""ONNX files of a few bytes whose tensors are large at small numbers of their open sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from tests.frontends.onnx.compare import model_of

BY_VALUES = """c = ConstantOfShape (n)
u = Unsqueeze (c, axes)
e = Add (u, w)
a = Exp (e)
y = ReduceSum <keepdims = 0> (a)"""
TOGETHER = """shape = Concat <axis = 0> (n0, n1, n2)
e = Expand (x, shape)
f = Expand (z, m)
g = Unsqueeze (f, axes)
d = Mul (e, w)
a = Exp (d)
r = ReduceSum <keepdims = 0> (a)
y = Add (r, g)"""
AXES = "int64[2] axes = {1, 2}"


def by_values(side: int) -> onnx.ModelProto:
    """A value is the number of matrices of ``side`` rows and columns."""
    inputs = f"int64[1] n, float[1,{side},{side}] w"
    return model_of(BY_VALUES, inputs, "float y", opset=18, stored=AXES)


def together(factor: int) -> onnx.ModelProto:
    """Four values decide sizes; three of them, and ``factor``, are those of one tensor."""
    values = ", ".join(f"int64[1] {name}" for name in ("n0", "n1", "n2", "m"))
    inputs = f"float[1,1,1] x, float[{factor},1,1,1] w, float[1] z, {values}"
    return model_of(TOGETHER, inputs, "float[k,1,1] y", opset=18, stored=AXES)


def by_name(side: int) -> onnx.ModelProto:
    """A name is the number of matrices of ``side`` rows and columns."""
    body = "a = Exp (x)\ny = ReduceSum <keepdims = 0> (a)"
    return model_of(body, f"float[n,{side},{side}] x", "float y", opset=18)


LARGE: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "by values": lambda: by_values(1 << 16),
    "together": lambda: together(1 << 12),
    "by name": lambda: by_name(1 << 16),
}

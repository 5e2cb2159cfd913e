"""Comparisons, and what a float is."""

from __future__ import annotations

from irc.ops.functions.record import Pointwise, Text

FUNCTIONS = (
    Pointwise(
        "eq",
        arity=2,
        result="bool",
        complex=True,
        torch="eq",
        onnx="Equal",
        triton=Text(floats="{0} == {1}", integers="{0} == {1}", bools="({0} ^ {1}) == 0"),
        cuda=Text(floats="{0} == {1}", integers="{0} == {1}", bools="{0} == {1}"),
    ),
    Pointwise(
        "ne",
        arity=2,
        result="bool",
        complex=True,
        torch="ne",
        triton=Text(floats="{0} != {1}", integers="{0} != {1}", bools="{0} ^ {1}"),
        cuda=Text(floats="{0} != {1}", integers="{0} != {1}", bools="{0} != {1}"),
    ),
    Pointwise(
        "lt",
        arity=2,
        result="bool",
        torch="lt",
        onnx="Less",
        triton=Text(floats="{0} < {1}", integers="{0} < {1}", bools="({0} == 0) & {1}"),
        cuda=Text(floats="{0} < {1}", integers="{0} < {1}", bools="{0} < {1}"),
    ),
    Pointwise(
        "le",
        arity=2,
        result="bool",
        torch="le",
        onnx="LessOrEqual",
        triton=Text(floats="{0} <= {1}", integers="{0} <= {1}", bools="({0} == 0) | {1}"),
        cuda=Text(floats="{0} <= {1}", integers="{0} <= {1}", bools="{0} <= {1}"),
    ),
    Pointwise(
        "gt",
        arity=2,
        result="bool",
        torch="gt",
        onnx="Greater",
        triton=Text(floats="{0} > {1}", integers="{0} > {1}", bools="{0} & ({1} == 0)"),
        cuda=Text(floats="{0} > {1}", integers="{0} > {1}", bools="{0} > {1}"),
    ),
    Pointwise(
        "ge",
        arity=2,
        result="bool",
        torch="ge",
        onnx="GreaterOrEqual",
        triton=Text(floats="{0} >= {1}", integers="{0} >= {1}", bools="{0} | ({1} == 0)"),
        cuda=Text(floats="{0} >= {1}", integers="{0} >= {1}", bools="{0} >= {1}"),
    ),
    Pointwise(
        "is_nan",
        aten="isnan",
        result="bool",
        onnx="IsNaN",
        triton=Text(floats="{0} != {0}", integers="{0} != {0}"),
        cuda=Text(floats="{0} != {0}", integers="false"),
    ),
    Pointwise(
        "is_inf",
        aten="isinf",
        result="bool",
        triton=Text(floats='tl.abs({0}) == float("inf")', integers="{0} != {0}"),
        cuda=Text(floats="fabs{f}({0}) == INFINITY", integers="false"),
    ),
)

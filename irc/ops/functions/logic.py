"""Logic of truth values, and of bits."""

from __future__ import annotations

from irc.ops.functions.record import Pointwise, Text

FUNCTIONS = (
    Pointwise(
        "logical_and",
        arity=2,
        result="bool",
        torch="logical_and",
        onnx="And",
        triton=Text(
            floats="({0} != 0) & ({1} != 0)",
            integers="({0} != 0) & ({1} != 0)",
            bools="({0} != 0) & ({1} != 0)",
        ),
        cuda=Text(
            floats="{0} != 0 && {1} != 0",
            integers="{0} != 0 && {1} != 0",
            bools="{0} != 0 && {1} != 0",
        ),
    ),
    Pointwise(
        "logical_or",
        arity=2,
        result="bool",
        torch="logical_or",
        onnx="Or",
        triton=Text(
            floats="({0} != 0) | ({1} != 0)",
            integers="({0} != 0) | ({1} != 0)",
            bools="({0} != 0) | ({1} != 0)",
        ),
        cuda=Text(
            floats="{0} != 0 || {1} != 0",
            integers="{0} != 0 || {1} != 0",
            bools="{0} != 0 || {1} != 0",
        ),
    ),
    Pointwise(
        "logical_xor",
        arity=2,
        result="bool",
        torch="logical_xor",
        onnx="Xor",
        triton=Text(
            floats="({0} != 0) ^ ({1} != 0)",
            integers="({0} != 0) ^ ({1} != 0)",
            bools="({0} != 0) ^ ({1} != 0)",
        ),
        cuda=Text(
            floats="({0} != 0) != ({1} != 0)",
            integers="({0} != 0) != ({1} != 0)",
            bools="({0} != 0) != ({1} != 0)",
        ),
    ),
    Pointwise(
        "logical_not",
        result="bool",
        onnx="Not",
        triton=Text(floats="{0} == 0", integers="{0} == 0", bools="{0} == 0"),
        cuda=Text(floats="{0} == 0", integers="{0} == 0", bools="{0} == 0"),
    ),
    Pointwise(
        "bit_and",
        arity=2,
        aten="bitwise_and",
        flat=True,
        torch="bitwise_and __and__",
        onnx="BitwiseAnd",
        triton=Text(integers="{0} & {1}", bools="{0} & {1}"),
        cuda=Text(integers="({T})({0} & {1})", bools="{0} && {1}"),
    ),
    Pointwise(
        "bit_or",
        arity=2,
        aten="bitwise_or",
        flat=True,
        torch="bitwise_or __or__",
        onnx="BitwiseOr",
        triton=Text(integers="{0} | {1}", bools="{0} | {1}"),
        cuda=Text(integers="({T})({0} | {1})", bools="{0} || {1}"),
    ),
    Pointwise(
        "bit_xor",
        arity=2,
        aten="bitwise_xor",
        flat=True,
        torch="bitwise_xor __xor__",
        onnx="BitwiseXor",
        triton=Text(integers="{0} ^ {1}", bools="{0} ^ {1}"),
        cuda=Text(integers="({T})({0} ^ {1})", bools="{0} != {1}"),
    ),
    Pointwise(
        "bit_not",
        aten="bitwise_not",
        flat=True,
        torch="bitwise_not",
        onnx="BitwiseNot",
        triton=Text(integers="~{0}", bools="{0} == 0"),
        cuda=Text(integers="({T})~{0}", bools="!{0}"),
    ),
    Pointwise(
        "shift_left",
        arity=2,
        aten="bitwise_left_shift",
        flat=True,
        torch="__lshift__ bitwise_left_shift",
        triton=Text(integers="{0} << {1}"),
        cuda=Text(integers="({T})(({U}){0} << {1})"),
    ),
    Pointwise(
        "shift_right",
        arity=2,
        aten="bitwise_right_shift",
        flat=True,
        torch="__rshift__ bitwise_right_shift",
        triton=Text(integers="{0} >> {1}"),
        cuda=Text(integers="({T})({0} >> {1})"),
    ),
)

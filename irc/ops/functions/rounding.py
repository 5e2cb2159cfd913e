"""Rounding to whole numbers."""

from __future__ import annotations

from irc.ops.functions.record import Pointwise, Text

FUNCTIONS = (
    Pointwise(
        "floor",
        monotone=True,
        flat=True,
        torch="floor",
        onnx="Floor",
        llvm="floor",
        triton=Text(floats="tl.floor({0})", integers="{0}"),
        cuda=Text(floats="floor{f}({0})", integers="{0}"),
    ),
    Pointwise(
        "ceil",
        monotone=True,
        flat=True,
        torch="ceil",
        onnx="Ceil",
        llvm="ceil",
        triton=Text(floats="tl.ceil({0})", integers="{0}"),
        cuda=Text(floats="ceil{f}({0})", integers="{0}"),
    ),
    Pointwise(
        "round",
        monotone=True,
        flat=True,
        torch="round",
        onnx="Round",
        llvm="roundeven",
        triton=Text(floats="libdevice.rint({0})", integers="{0}"),
        cuda=Text(floats="rint{f}({0})", integers="{0}"),
    ),
    Pointwise(
        "trunc",
        monotone=True,
        flat=True,
        torch="trunc fix",
        llvm="trunc",
        triton=Text(floats="libdevice.trunc({0})", integers="{0}"),
        cuda=Text(floats="trunc{f}({0})", integers="{0}"),
    ),
)

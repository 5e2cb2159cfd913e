"""Opsets 1 to 6: what a node meant then, said as it is said from opset 7 on.

Broadcasting was asked for and aligned by an axis, not from the right; types had names; a few
operands were attributes or had other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from irc.frontends.onnx.node import Node, Unsupported, Value, check_axis

FIRST_OF_NOW = 7

BROADCASTING = frozenset({
    "Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "PRelu", "Sub", "Xor",
})  # fmt: skip

RENAMED: Mapping[tuple[str, str], str] = {
    ("Pad", "paddings"): "pads",
    ("Upsample", "height_scale"): "",
    ("Upsample", "width_scale"): "",
}
"""Attributes that have another name now, or none."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Concat": {"axis": 1},
    "LpNormalization": {"p": 2},
    "Selu": {"alpha": 1.6732, "gamma": 1.0507},
}
"""Defaults before opset 6 that are others, or none, now."""


def modernise(node: Node) -> Node:
    """Return a node of an old opset with the attributes and operands that converters know."""
    if node.version >= FIRST_OF_NOW:
        return node
    attributes = {**DEFAULTS.get(node.kind, {}), **node.attributes} if node.version < 6 else (
        dict(node.attributes)
    )  # fmt: skip
    if node.kind == "Upsample" and "height_scale" in attributes:
        attributes["scales"] = [1.0, 1.0, attributes["height_scale"], attributes["width_scale"]]
    for (kind, name), now in RENAMED.items():
        if kind == node.kind and name in attributes:
            value = attributes.pop(name)
            if now:
                attributes[now] = value
    if isinstance(to := attributes.get("to"), str):
        attributes["to"] = element(to)
    node.attributes = attributes
    if node.kind == "Reshape" and (shape := attributes.get("shape")) is not None:
        node.inputs = [node.operand(0), Value.of_array(np.array(shape, np.int64))]
    if node.kind == "Tile" and node.version < 6:
        node.inputs = [node.operand(0), tiles(node)]
    if node.kind in BROADCASTING:
        align(node)
    return node


def element(name: str) -> int:
    """Return the number of an element type from its name.

    Raises:
        Unsupported: where there is none of this name.
    """
    if name not in TensorProto.DataType.keys():  # noqa: SIM118 - not a dict
        raise Unsupported(f"a cast to {name!r}")
    return TensorProto.DataType.Value(name)


def tiles(node: Node) -> Value:
    """Return the repeats of a Tile that gave one count and one axis."""
    repeats = np.ones(node.ndim(), np.int64)
    repeats[check_axis(int(node.number(2)), node.ndim())] = int(node.number(1))
    return Value.of_array(repeats)


def align(node: Node) -> None:
    """Give the second operand trailing dims of size 1, so that it aligns from the right."""
    if not node.has(0) or not node.has(1):
        return
    shape, stated = node.shape(), node.attributes.get("axis")
    if node.kind == "PRelu":
        # A slope for each channel; one slope has no dim to align.
        stated = 1 if node.ndim(1) == 1 and node.shape(1) != (1,) and len(shape) > 1 else None
    elif not node.attributes.get("broadcast", 0):
        return
    if stated is None:
        return
    axis = check_axis(int(stated), len(shape))
    behind = len(shape) - axis - node.ndim(1)
    if behind > 0:
        wide = node.b.reshape(node[1], [*node.shape(1), *[1] * behind])
        node.inputs = [node.operand(0), Value.of(wide)]

"""The converter of Pad: with a number, or with the tensor's own elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from xdsl.ir import SSAValue

from irc.dialects.flow import PadOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.size import Dim, Size, decided, is_traced
from irc.errors import IrcError
from irc.frontends.onnx.elementwise import Converter, scalar
from irc.frontends.onnx.node import NeedsSize, Node, Unsupported, check_axis, size_names
from irc.frontends.onnx.shapes import FAR, iota

OWN = ("reflect", "edge", "wrap")
"""Modes that pad with elements of the tensor."""


def convert_pad(node: Node) -> SSAValue:
    """Constant padding is flow's; the other modes are a choice of indices along each dim."""
    mode, ndim = node.attr("mode", "constant"), node.ndim()
    pads: list[Dim] = list(node.attr("pads") or []) or node.dims(1)
    axes = list(range(ndim))
    if node.has(3):
        axes = [check_axis(a, ndim) for a in node.ints(3)]
    if len(pads) != 2 * len(axes):
        raise IrcError("onnx-invalid", f"{len(pads)} pads for {len(axes)} dims")
    low: list[Dim] = [0] * ndim
    high: list[Dim] = [0] * ndim
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[i + len(axes)]
    node.owner.check_volume([d + a + c for d, a, c in zip(node.shape(), low, high, strict=True)])
    if mode == "constant":
        return pad_constant(node, low, high)
    if mode not in OWN:
        raise Unsupported(f"padding by '{mode}'")
    x = node[0]
    for dim in range(ndim):
        if low[dim] != 0 or high[dim] != 0:
            places = _places(node, node.shape()[dim], low[dim], high[dim], mode)
            x = node.b.op(TakeOp, [x, places], dim=dim)
    return x


def _places(node: Node, size: Dim, low: Dim, high: Dim, mode: str) -> SSAValue:
    """Return which element of a dim stands at each place of the padded dim."""
    if size == 0:
        raise Unsupported(f"padding an empty dim by '{mode}'")
    if isinstance(size, int) and isinstance(low, int) and isinstance(high, int):
        node.owner.check_table(low + size + high)
        return node.owner.constant(mirror(np.arange(-low, size + high), size, mode))
    if not is_traced():
        raise NeedsSize(size_names([size, low, high]))
    b, places = node.b, places_around(node, size, low, high)
    if mode == "wrap":
        return b.pointwise("remainder", places, node.owner.size(size, "i64"))
    last = node.owner.size(size - 1, "i64")
    if mode == "edge":
        return b.pointwise("minimum", b.pointwise("maximum", places, b.scalar(0, "i64")), last)
    # Back and forth is one turn of twice the way; a dim of 1 has no way.
    whole = b.pointwise("maximum", node.owner.size(size * 2 - 2, "i64"), b.scalar(1, "i64"))
    places = b.pointwise("remainder", places, whole)
    return b.pointwise("minimum", places, b.pointwise("sub", whole, places))


def places_around(node: Node, size: Dim, low: Dim, high: Dim) -> SSAValue:
    """Return ``-low .. size + high``: negative before a dim, ``size`` and more behind it; i64."""
    padded = low + size + high
    if decided("<", padded):  # cuts off more than there is
        raise Unsupported(f"padding a dim of {size} to {padded}")
    places = iota(node, [padded], 0)
    return node.b.pointwise("sub", places, node.owner.size(low, "i64"))


def mirror(places: np.ndarray, size: int, mode: str) -> np.ndarray:
    """Return which element stands at each place outside a dim."""
    if mode == "edge":
        return places.clip(0, size - 1)
    if mode == "wrap":
        return places % size
    period = max(2 * size - 2, 1)
    places = places % period
    return np.where(places < size, places, period - places)


def pad_constant(node: Node, low: Sequence[Dim], high: Sequence[Dim]) -> SSAValue:
    """Pad by a number; one that is not finite or comes at run time replaces the zeros after."""
    b, x = node.b, node[0]
    if all(amount == 0 for amount in (*low, *high)):
        return x
    if any(isinstance(amount, Size) for amount in (*low, *high)):
        return _pad_open(node, low, high)
    amounts = {"low": tuple(low), "high": tuple(high)}
    operand = node.operand(2) if node.has(2) else None
    if operand is None or operand.known is not None:
        value = float(node.attr("value", 0.0) if operand is None else node.number(2))
        if abs(value) < FAR or node.dtype()[0] == "f":
            return b.op(PadOp, [x], **amounts, value=value)
    inner = b.constant([1], node.shape(), "i1")
    seen = b.op(PadOp, [inner], **amounts, value=0.0)
    padded = b.op(PadOp, [x], **amounts, value=0.0)
    return b.pointwise("where", seen, padded, b.reshape(node[2], ()))


def _pad_open(node: Node, low: Sequence[Dim], high: Sequence[Dim]) -> SSAValue:
    """Pad by amounts that are sizes: up to a length, say, that all signals are to have."""
    if not is_traced():
        raise NeedsSize(size_names([*low, *high]))
    b, x = node.b, node[0]
    has_value = node.has(2)
    value = b.reshape(node[2], ()) if has_value else scalar(node, node.attr("value", 0.0), x)
    for dim in range(node.ndim()):
        before, behind, size = low[dim], high[dim], node.shape()[dim]
        if before == 0 and behind == 0:
            continue
        places = places_around(node, size, before, behind)
        nearest = _places(node, size, before, behind, "edge")
        line = [tensor(places).shape[0] if i == dim else 1 for i in range(node.ndim())]
        seen = b.reshape(b.pointwise("eq", places, nearest), line)
        x = b.pointwise("where", seen, b.op(TakeOp, [x, nearest], dim=dim), value)
    return x


CONVERTERS: Mapping[str, Converter] = {"Pad": convert_pad}

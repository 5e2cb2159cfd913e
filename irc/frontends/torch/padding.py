"""ATen's pads: with a number, and with the tensor's own elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import PadOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.size import Dim, Size
from irc.dialects.types import number_in
from irc.frontends.torch.lowering import Lowering, lowers, number
from irc.frontends.torch.shapes import iota, sliced


@lowers("constant_pad_nd", numbers="complex")
def constant_pad(t: Lowering, self: SSAValue, pad: Sequence[Dim], value: float = 0) -> SSAValue:
    """Pad dims from the last to the first with a number."""
    ndim = tensor(self).ndim
    low, high = [0] * ndim, [0] * ndim
    for i in range(len(pad) // 2):
        low[ndim - 1 - i], high[ndim - 1 - i] = number(pad[2 * i]), number(pad[2 * i + 1])
    if not any((*low, *high)):
        return self
    fill = number_in(value, t.dtype)
    if float(fill) != fill == fill:
        t.decline()  # the op keeps it in double precision
    return t.b.op(PadOp, [self], low=tuple(low), high=tuple(high), value=float(fill))


@lowers("pad", numbers="complex")
def pad_(
    t: Lowering,
    self: SSAValue,
    pad: Sequence[Dim],
    mode: str = "constant",
    value: float | None = None,
) -> SSAValue:
    """Pad with a number, or take along each dim the element that the mode names."""
    if mode == "constant":
        return constant_pad(t, self, pad, value or 0)
    ndim = tensor(self).ndim
    for i in range(len(pad) // 2):
        dim, low, high = ndim - 1 - i, pad[2 * i], pad[2 * i + 1]
        if mode == "circular" and _is_cut(low, high):
            # What is cut off does not come back at the other end.
            size = number(tensor(self).shape[dim])
            first, last = max(-number(low), 0), size - max(-number(high), 0)
            self, low, high = sliced(t, self, dim, first, last), max(low, 0), max(high, 0)
        if not (low == 0 and high == 0):
            places = _places(t, tensor(self).shape[dim], t.shape[dim], low, MODES[mode])
            self = t.b.op(TakeOp, [self, places], dim=dim)
    return self


def _is_cut(*amounts: Dim) -> bool:
    return any(not isinstance(amount, Size) and amount < 0 for amount in amounts)


Place = Callable[[Lowering, SSAValue, SSAValue], SSAValue]
"""Which element stands at a place that may lie outside a dim, given the dim's last place."""


def _places(t: Lowering, size: Dim, padded: Dim, low: Dim, place: Place) -> SSAValue:
    last = t.b.pointwise("sub", t.value(size, "i64"), t.value(1, "i64"))
    return place(t, t.b.pointwise("sub", iota(t, padded), t.value(low, "i64")), last)


def _reflected(t: Lowering, place: SSAValue, last: SSAValue) -> SSAValue:
    """Fold at the first element and at the last: torch pads by less than the dim."""
    back = t.b.pointwise("abs", t.b.pointwise("sub", last, t.b.pointwise("abs", place)))
    return t.b.pointwise("sub", last, back)


def _nearest(t: Lowering, place: SSAValue, last: SSAValue) -> SSAValue:
    first = t.value(0, "i64")
    return t.b.pointwise("minimum", t.b.pointwise("maximum", place, first), last)


def _wrapped(t: Lowering, place: SSAValue, last: SSAValue) -> SSAValue:
    size = t.b.pointwise("add", last, t.value(1, "i64"))
    return t.b.pointwise("remainder", place, size)


MODES: dict[str, Place] = {"reflect": _reflected, "replicate": _nearest, "circular": _wrapped}

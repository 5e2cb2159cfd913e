"""Copies of what convolutions read: channels side by side, and zeros around images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import FlowOp, PadOp, ReshapeOp, ShapeOp, TransposeOp, carry, id_of, tensor
from irc.dialects.types import TensorType
from irc.dialects.windows import ConvolutionOp
from irc.kernels.holds import shape_of
from irc.kernels.launches.launcher import Launcher
from irc.kernels.orders import (
    channels_last,
    has_channels_last,
    is_depthwise,
    margins_of,
    ordered_view,
    reads_lines,
    taps_first,
)


def turn_images(
    ops: Sequence[FlowOp], arguments: Mapping[SSAValue, SSAValue], launcher: Launcher
) -> None:
    """Copy what convolutions read so that its channels lie side by side."""
    for op in ops:
        if not isinstance(op, ConvolutionOp):
            continue
        if op.of_kernel:
            _turn_factors(op, arguments, launcher)
        else:
            image, weight = (arguments.get(value, value) for value in (op.x, op.weight))
            if lines := reads_lines(op):
                _surround(image, margins_of(op), launcher)
            if not has_channels_last(launcher.stored(image)[1]):
                launcher.copy(image, channels_last(len(shape_of(image))))
            if is_depthwise(op):
                launcher.copy(weight, taps_first(len(shape_of(weight))))
            elif lines:
                launcher.copy(weight, channels_last(len(shape_of(weight))))


def _turn_factors(
    op: ConvolutionOp, arguments: Mapping[SSAValue, SSAValue], launcher: Launcher
) -> None:
    """Copy image and gradient, whose dims have changed places, channels side by side."""
    for value in (arguments.get(value, value) for value in (op.x, op.weight)):
        moved, origin = list[ShapeOp](), value
        while isinstance(origin.owner, ReshapeOp | TransposeOp):
            moved.append(origin.owner)
            origin = origin.owner.x
            if len(shape_of(origin)) == len(shape_of(value)):
                break
        if has_channels_last(launcher.stored(origin)[1]):
            continue
        launcher.copy(origin, channels_last(len(shape_of(origin))))
        for each in reversed(moved):
            root, view = launcher.stored(each.x)
            result_view = view.apply(each.name, each.plain, shape_of(each.outputs[0]))
            assert result_view is not None, "dims that change places are a view"
            launcher.places.views[each.outputs[0]] = (root, result_view)


def _surround(image: SSAValue, margins: tuple[tuple[int, int], ...], launcher: Launcher) -> None:
    """Copy an image with zeros around it, channels last, unless it lies in such a copy."""
    known = launcher.stored(image)[1].margins or [(0, 0)] * len(margins)
    pairs = list(zip(margins, known, strict=True))
    if all(low <= before and high <= after for (low, high), (before, after) in pairs):
        return
    shape, dtype, order = shape_of(image), tensor(image).dtype, channels_last(len(margins))
    lows, highs = zip(*margins, strict=True)
    wide = [low + n + high for n, (low, high) in zip(shape, margins, strict=True)]
    kinds = [TensorType.of(wide, dtype), TensorType.of([wide[d] for d in order], dtype)]
    padded = PadOp.make([image], kinds[:1], low=lows, high=highs, value=0.0)
    turn = TransposeOp.make([padded.outputs[0]], kinds[1:], perm=order)
    if isinstance(image.owner, Operation):
        carry(padded, image.owner)
        carry(turn, image.owner)
        turn.attributes["id"] = StringAttr(f"{id_of(image.owner)}.padded")
    (result,) = launcher.launch([padded, turn], [turn.outputs[0]], {}, turn, free=False)
    launcher.places.views[image] = (result, ordered_view(wide, order).within(margins))
    turn.erase()
    padded.erase()

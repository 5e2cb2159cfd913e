"""STFT as a convolution: a filter for the real and the imaginary part of each frequency."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from xdsl.ir import SSAValue

from irc.dialects.flow import PadOp, TransposeOp, tensor
from irc.dialects.size import Size, is_traced
from irc.dialects.windows import ConvolutionOp
from irc.frontends.onnx.elementwise import Converter
from irc.frontends.onnx.external import Array
from irc.frontends.onnx.node import NeedsSize, Node, Unsupported, Value

LONGEST = 2048
"""Longer frames are left to the library: a transform of n log n is faster than its matrix."""


def convert_stft(node: Node) -> SSAValue:
    """STFT of real signals ``[batch, time]`` or ``[batch, time, 1]``.

    Filter k of a frame of n samples is ``window * exp(-2 pi i k t / n)``; a shorter window stands
    in the middle of the frame. The result is ``[batch, frames, frequencies, 2]``.
    """
    if node.ndim() not in (2, 3) or (node.ndim() == 3 and node.shape()[2] != 1):
        raise Unsupported("a signal of complex numbers")
    if node.dtype() not in ("f32", "f64"):
        raise Unsupported(f"a signal of {node.dtype()}")
    step = int(node.number(1))
    wide = node.shape(2)[0] if node.has(2) else None
    length = int(node.number(3)) if node.has(3) else wide
    if not isinstance(length, int) or not 0 < length <= LONGEST:
        raise Unsupported(f"frames of {length} samples")
    batch, time = node.shape()[:2]
    if isinstance(time, Size) and step != 1 and not is_traced():
        raise NeedsSize(time.names())
    filters = _filters(length, onesided=bool(node.attr("onesided", 1)))
    weights = _windowed(node, filters, length)
    b, count = node.b, filters.shape[0]
    signal = b.reshape(node[0], (batch, 1, time))
    spectrum = b.op(
        ConvolutionOp, [signal, weights], strides=(step,), low=(0,), high=(0,), dilations=(1,),
        groups=1,
    )  # fmt: skip
    spectrum = b.op(TransposeOp, [spectrum], perm=(0, 2, 1))
    return b.reshape(spectrum, (batch, tensor(spectrum).shape[1], count // 2, 2))


def _filters(length: int, *, onesided: bool) -> Array:
    """Return cosines and negative sines, f64 ``[2 * frequencies, 1, length]``."""
    count = length // 2 + 1 if onesided else length
    turns = np.outer(np.arange(count), np.arange(length)) % length
    angles = 2 * np.pi / length * turns
    return np.stack([np.cos(angles), -np.sin(angles)], 1).reshape(2 * count, 1, length)


def _windowed(node: Node, filters: Array, length: int) -> SSAValue:
    dtype = node.dtype()
    if not node.has(2):
        return _stored(node, filters, dtype)
    width = node.shape(2)[0]
    if not isinstance(width, int) or width > length:
        raise Unsupported(f"a window of {width} samples over frames of {length}")
    before = (length - width) // 2
    if (known := node.operand(2).known) is not None:
        window = np.pad(known.astype(np.float64), (before, length - width - before))
        return _stored(node, filters * window, dtype)
    # What the window does not reach is 0: filters of its width, at its place.
    inner = _stored(node, filters[:, :, before : before + width], dtype)
    weights = node.b.pointwise("mul", inner, node[2])
    if width == length:
        return weights
    high = (0, 0, length - width - before)
    return node.b.op(PadOp, [weights], low=(0, 0, before), high=high, value=0.0)


def _stored(node: Node, numbers: Array, dtype: str) -> SSAValue:
    array = numbers.astype(np.float32 if dtype == "f32" else np.float64)
    return node.owner.ssa(Value.of_array(array, dtype, name="stft"))


CONVERTERS: Mapping[str, Converter] = {"STFT": convert_stft}

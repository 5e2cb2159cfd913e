"""Ops on channels in blocks (``com.microsoft.nchwc``), as ONNX Runtime writes them at level "all".

Values between a ReorderInput and a ReorderOutput are held here as (batch, channels, ...) in the
plain order, with the channels rounded up to a whole number of blocks; filters, which a file holds
in the blocked order, are put back into the plain one. A file does not say how long its blocks are:
ONNX Runtime takes 16 channels where the machine that wrote it has AVX-512, else 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from irc.frontends.onnx.contrib.compose import Composer, Composition
from irc.frontends.onnx.contrib.layers import activated
from irc.frontends.onnx.node import Value

DOMAIN = "com.microsoft.nchwc"
BLOCKS = (16, 8)
WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


def block_of(x: Composer) -> int:
    """Return how many channels a block of this file has."""
    graph, arrays = x.owner.source.model.graph, x.owner.source.stored
    sizes = {t.name: t.dims for t in (*graph.initializer, *arrays)}
    counts = [
        sizes[node.input[1]][0]
        for node in graph.node
        if node.domain == DOMAIN and node.op_type == "Conv" and node.input[1] in sizes
    ]
    if any(count % BLOCKS[1] for count in counts):
        raise x.unsupported(f"blocks that are not of {' or '.join(map(str, BLOCKS))} channels")
    return next(b for b in (widest(), *BLOCKS) if not any(count % b for count in counts))


@cache
def widest() -> int:
    """Return the block of this machine."""
    import torch

    return BLOCKS[0] if torch.backends.cpu.get_cpu_capability() == "AVX512" else BLOCKS[1]


def plain_filter(array: np.ndarray, block: int, *, by_input: bool) -> np.ndarray:
    """Put a filter back into the order (out, in, ...).

    Args:
        array: of shape (out, in, ...); its elements lie as (out / b, in / b, ..., b in, b out)
            where ``by_input``, else as (out / b, in, ..., b out).
        block: b.
        by_input: whether the input channels are in blocks too.

    >>> plain_filter(np.arange(4).reshape(2, 2, 1), 2, by_input=False)[:, :, 0].tolist()
    [[0, 2], [1, 3]]
    """
    out, deep, *window = array.shape
    n = len(window)
    if by_input:
        apart = array.reshape(out // block, deep // block, *window, block, block)
        order = (0, n + 3, 1, n + 2, *range(2, n + 2))
    else:
        apart = array.reshape(out // block, deep, *window, block)
        order = (0, n + 2, 1, *range(2, n + 2))
    return np.ascontiguousarray(apart.transpose(order)).reshape(array.shape)


def convolution(x: Composer) -> Value:
    """A convolution, the sum with another tensor, an activation."""
    group, block = x.attr("group", 1), block_of(x)
    array = x.array(1)
    deep = array.shape[1]
    # Depthwise ones, and those of few input channels, which are not in blocks.
    by_input = deep >= block if group == 1 else deep > 1
    weight = Value.of_array(
        plain_filter(array, block, by_input=by_input), role="parameter", name=x[1].name
    )
    attributes: dict[str, Any] = {name: x.attr(name) for name in WINDOW}
    convolved = x.op("Conv", x[0], weight, x.get(2), group=group, **attributes)
    return activated(x, x.op("Add", convolved, x[3]) if x.has(3) else convolved)


def pooled(kind: str, names: tuple[str, ...], x: Composer) -> Value:
    """A pooling: channels do not meet in it."""
    return x.op(kind, x[0], **{name: x.attr(name) for name in names})


def reorder_input(x: Composer) -> Value:
    """Into blocks: whole ones, so zeros follow the last channel."""
    value, n = x[0], len(x[0].shape)
    if x.attr("channels_last", 0):
        value = x.op("Transpose", value, perm=[0, n - 1, *range(1, n - 1)])
    channels = value.shape[1]
    if not isinstance(channels, int):
        raise x.unsupported("channels without a number")
    if short := -channels % block_of(x):
        value = x.op("Pad", value, x.ints(0, 0, *[0] * (n - 2), 0, short, *[0] * (n - 2)))
    return value


def reorder_output(x: Composer) -> Value:
    """Out of blocks: the channels that are there."""
    value, n, channels = x[0], len(x[0].shape), int(x.attr("channels"))
    if value.shape[1] != channels:
        value = x.op("Slice", value, x.ints(0), x.ints(channels), x.ints(1))
    if x.attr("channels_last", 0):
        value = x.op("Transpose", value, perm=[0, *range(2, n), 1])
    return value


def upsampled(x: Composer) -> Value:
    """Upsampling by whole factors."""
    scales = Value.of_array(np.array(x.attr("scales"), np.float32))
    return x.op(
        "Resize", x[0], None, scales, mode=x.attr("mode", "nearest"),
        coordinate_transformation_mode=x.attr("coordinate_transformation_mode", "asymmetric"),
        nearest_mode="floor",
    )  # fmt: skip


POOL = (*WINDOW, "ceil_mode")
COMPOSITIONS: Mapping[str, Composition] = {
    "AveragePool": partial(pooled, "AveragePool", (*POOL, "count_include_pad")),
    "Conv": convolution,
    "GlobalAveragePool": partial(pooled, "GlobalAveragePool", ()),
    "GlobalMaxPool": partial(pooled, "GlobalMaxPool", ()),
    "MaxPool": partial(pooled, "MaxPool", (*POOL, "storage_order")),
    "ReorderInput": reorder_input,
    "ReorderOutput": reorder_output,
    "Upsample": upsampled,
}

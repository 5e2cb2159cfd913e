"""Ops over windows: convolution and pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from irc.ops import names
from irc.runtime.flow_ops.indexing import padded_with
from irc.runtime.flow_ops.signature import Attrs, Kernel, Results

if TYPE_CHECKING:
    import torch


def _convolution(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    x, w, *bias = inputs
    low, high = attrs["low"], attrs["high"]
    if attrs.get("flipped"):
        w = w.flip(tuple(range(2, w.ndim)))
    padding: tuple[int, ...] = tuple(low)
    if tuple(low) != tuple(high) or any(p < 0 for p in low):
        around = {"low": (0, 0, *low), "high": (0, 0, *high), "value": 0.0}
        x, padding = padded_with(around, [x], results), (0,) * len(low)
    return torch.ops.aten.convolution(
        x,
        w,
        bias[0] if bias else None,
        list(attrs["strides"]),
        list(padding),
        list(attrs["dilations"]),
        False,
        [0] * len(low),
        attrs["groups"],
    )


def _pool(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    x, window = inputs[0], tuple(attrs["window"])
    if attrs["fn"] == "avg" and x.dtype in (torch.float16, torch.bfloat16):
        return _pool(attrs, [x.float()], results).to(x.dtype)  # sums of halves are in float32
    n, lead = len(window), inputs[0].ndim - len(window)
    low, high = tuple(attrs["low"]), tuple(attrs["high"])
    # Windows that reach past the stated padding (ceil mode) see padding too: extend `high`.
    spans = [
        (size - 1) * s + d * (k - 1) + 1
        for size, s, d, k in zip(
            results[0][0][lead:], attrs["strides"], attrs["dilations"], window, strict=True
        )
    ]
    extra = [
        max(span - (size + lo), -(10**9))
        for span, size, lo in zip(spans, x.shape[lead:], low, strict=True)
    ]
    full = {"low": (0,) * lead + low, "high": (0,) * lead + tuple(extra), "value": 0.0}
    is_max = attrs["fn"] == "max"
    neutral = -torch.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    padded = padded_with({**full, "value": neutral if is_max else 0.0}, [x], results)
    for i, (k, s, d) in enumerate(zip(window, attrs["strides"], attrs["dilations"], strict=True)):
        padded = padded.unfold(lead + i, d * (k - 1) + 1, s)[..., ::d]
    axes = tuple(range(-n, 0))
    if is_max:
        return padded.amax(axes)
    ones = torch.ones(x.shape[lead:], dtype=x.dtype)
    if attrs["count_padding"]:
        ones = padded_with({"low": low, "high": high, "value": 1.0}, [ones], results)
        tail = [e - h for e, h in zip(extra, high, strict=True)]
        ones = padded_with({"low": (0,) * n, "high": tuple(tail), "value": 0.0}, [ones], results)
    else:
        ones = padded_with({"low": low, "high": tuple(extra), "value": 0.0}, [ones], results)
    for i, (k, s, d) in enumerate(zip(window, attrs["strides"], attrs["dilations"], strict=True)):
        ones = ones.unfold(i, d * (k - 1) + 1, s)[..., ::d]
    return padded.sum(axes) / ones.sum(axes)


KERNELS: Mapping[str, Kernel] = {
    names.CONVOLUTION: _convolution,
    names.POOL: _pool,
}

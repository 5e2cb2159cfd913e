"""ATen's convolutions and pools."""

# ruff: noqa: A002 - arguments have the names of ATen's schemas
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.size import Size
from irc.dialects.types import TensorType
from irc.dialects.windows import ConvolutionOp, PoolOp
from irc.frontends.torch.lowering import Lowering, enter, lowers, number

Ints = int | Sequence[int]


def each(value: Ints, ndim: int) -> tuple[int, ...]:
    """Return one number per spatial dim."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * ndim if len(values) == 1 else values


@lowers("convolution", "_convolution")
def convolution(
    t: Lowering,
    input: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    *options: Any,
) -> SSAValue:
    """Convolve [N, C, spatial..]; transposed ones stay in the library."""
    if transposed:
        t.decline()
    ndim = tensor(weight).ndim - 2
    low = each(padding, ndim)
    return _convolved(t, input, weight, bias, stride, low, low, dilation, groups)


def _convolved(
    t: Lowering,
    x: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: Ints,
    low: Sequence[int],
    high: Sequence[int],
    dilation: Ints,
    groups: int,
) -> SSAValue:
    ndim = tensor(weight).ndim - 2
    shape = tensor(x).shape
    if any(isinstance(dim, Size) for dim in shape[1:]):
        t.decline()
    batched = x if len(shape) == ndim + 2 else t.b.reshape(x, (1, *shape))
    inputs = [batched, weight] if bias is None else [batched, weight, bias]
    t.require_one_dtype(*inputs)
    y = t.b.op(
        ConvolutionOp,
        inputs,
        strides=each(stride, ndim),
        low=tuple(low),
        high=tuple(high),
        dilations=each(dilation, ndim),
        groups=groups,
    )
    return t.b.reshape(y, t.shape)


def _conv(
    t: Lowering,
    input: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None = None,
    stride: Ints = 1,
    padding: Any = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> SSAValue:
    ndim = tensor(weight).ndim - 2
    if isinstance(padding, str):
        kernel = [number(k) for k in tensor(weight).shape[2:]]
        total = [
            d * (k - 1) if padding == "same" else 0
            for k, d in zip(kernel, each(dilation, ndim), strict=True)
        ]
        low, high = [n // 2 for n in total], [n - n // 2 for n in total]
        return _convolved(t, input, weight, bias, stride, low, high, dilation, groups)
    return _convolved(
        t, input, weight, bias, stride, each(padding, ndim), each(padding, ndim), dilation, groups
    )


enter(dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv))


def pooled(
    t: Lowering,
    x: SSAValue,
    fn: str,
    window: Sequence[int],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    count_padding: bool,
) -> SSAValue:
    """Reduce windows of the last dims; the stated result says whether the last one may be cut."""
    kind = tensor(x)
    ndim = len(window)
    if any(isinstance(dim, Size) for dim in kind.shape[-ndim:]) or kind.dtype not in (
        "f32",
        "f64",
        "f16",
        "bf16",
    ):
        t.decline()
    window, low = tuple(window), each(padding, ndim)
    strides = each(stride, ndim) if stride else window
    result = TensorType.of(t.shape, t.dtype)
    return t.b.op(
        PoolOp,
        [x],
        result=result,
        fn=fn,
        window=window,
        strides=strides,
        low=low,
        high=low,
        dilations=each(dilation, ndim),
        count_padding=count_padding,
    )


def _max_pool(ndim: int) -> Any:
    def row(
        t: Lowering,
        self: SSAValue,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
    ) -> SSAValue:
        return pooled(t, self, "max", each(kernel_size, ndim), stride, padding, dilation, False)

    return row


def _max_pool_with_indices(ndim: int) -> Any:
    plain = _max_pool(ndim)

    def row(t: Lowering, *args: Any, **options: Any) -> list[SSAValue | None]:
        return t.decline() if t.read[1] else [plain(t, *args, **options), None]

    return row


def _avg_pool(ndim: int) -> Any:
    def row(
        t: Lowering,
        self: SSAValue,
        kernel_size: Ints,
        stride: Ints = (),
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> SSAValue:
        if divisor_override is not None:
            t.decline()
        return pooled(
            t, self, "avg", each(kernel_size, ndim), stride, padding, 1, count_include_pad
        )

    return row


for _n in (1, 2, 3):
    enter({f"max_pool{_n}d": _max_pool(_n), f"avg_pool{_n}d": _avg_pool(_n)})
    enter({f"max_pool{_n}d_with_indices": _max_pool_with_indices(_n)})

"""``flow.packed_contract`` in torch: the weights unpacked, then multiplied. The reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def contract(
    inputs: Sequence[torch.Tensor],
    bits: int,
    zero: float,
    window: Sequence[int] | None,
    groups: Sequence[int] | None = None,
) -> torch.Tensor:
    """Multiply x by packed weights: see :class:`irc.dialects.packed_products.PackedContractOp`.

    Args:
        inputs: x, weights, and for floats scales [P, G, 16] and perhaps zeros alike.
        bits: of a weight.
        zero: subtracted from each weight where there are no zeros.
        window: kernel, strides and dilations of a convolution.
        groups: how many groups it has, and how many channels from one to the next.
    """
    import torch

    x, weights, *scales = inputs
    if x.dtype is torch.uint8:
        if window is not None:
            return _window(x, weights, window, groups)
        dense = weights.transpose(-1, -2).reshape(weights.shape[0], -1, 16)
        sums = torch.einsum("mk,pkc->mpc", x.double(), dense.double())
        return sums.reshape(x.shape[0], -1).to(torch.int32)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    q = unpacked(weights, bits).to(wide)  # [P, K, 16]
    runs = scales[0].shape[1]
    split = q.reshape(q.shape[0], runs, -1, 16)
    subtracted = scales[1][:, :, None].to(wide) if len(scales) > 1 else zero
    dense = (split - subtracted) * scales[0][:, :, None].to(wide)
    dense = dense.reshape(q.shape)
    return torch.einsum("mk,pkc->mpc", x.to(wide), dense).reshape(x.shape[0], -1)


def unpacked(weights: torch.Tensor, bits: int) -> torch.Tensor:
    """Return weights [P, K, 16] of 4 or 8 bits as integers."""
    import torch

    if bits == 8:
        return weights
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)[:, None]
    nibbles = (weights[:, :, None] >> shifts) & 15
    return nibbles.reshape(weights.shape[0], -1, 16)


def _window(
    x: torch.Tensor, weights: torch.Tensor, window: Sequence[int], groups: Sequence[int] | None
) -> torch.Tensor:
    """Convolve bytes; float64 holds sums of their products exactly."""
    import torch

    image = x.permute(0, 3, 1, 2).double()
    if weights.ndim == 3:
        count, dense = weights.shape[2], weights.permute(2, 0, 1)[:, None]
    else:
        panels, height, width, quads = weights.shape[:4]
        dense = weights.permute(0, 4, 3, 5, 1, 2).reshape(panels * 16, quads * 4, height, width)
        count, step = groups or (1, 0)
        first = torch.arange(count)[:, None] * step
        image = image[:, (first + torch.arange(quads * 4)).flatten()]
    sums = torch.nn.functional.conv2d(
        image,
        dense.double(),
        stride=tuple(window[2:4]),
        dilation=tuple(window[4:]),
        groups=count,
    )
    return sums.permute(0, 2, 3, 1).contiguous().to(torch.int32)

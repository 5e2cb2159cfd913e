"""Weight-only quantisation: ``irc.quantize(module, bits=4, group_size=64)``.

Linear layers keep their weights as integers of 4 or 8 bits with a scale for every group of inputs
(round to nearest; Dettmers et al. 2022, arXiv:2208.07339, call it block-wise). The layers are plain
torch: in eager mode they unpack, scale and multiply, which is the reference; compiled, one kernel
reads the integers and scales them in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from irc.errors import IrcError

BITS = (4, 8)
GROUP_SIZES = (32, 64, 128)


class QuantizedLinear(nn.Module):
    """``y = x W' + b`` with W [out, in] as integers.

    W is ``(q - zero) * scale``, in groups of inputs; inputs are padded to whole groups. The product
    is taken in float32 and given back in the dtype of x.

    Attributes:
        packed: u8 [out, padded / 2] (two weights a byte, lower bits first), or u8 [out, padded].
        scales: float32 [out, groups].
        zeros: float32 [out, groups], or None where the middle of the range stands for 0.
        bias: as that of ``nn.Linear``.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    shifts: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        bits: int = 4,
        group_size: int = 64,
        symmetric: bool = True,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bits, self.group_size = bits, group_size
        padded = functional.pad(weight.detach().float(), (0, -self.in_features % group_size))
        groups = padded.reshape(self.out_features, -1, group_size)
        q, scales, zeros = quantized(groups, bits, symmetric=symmetric)
        q = q.flatten(1)
        if bits == 4:
            q = q[:, 0::2] | q[:, 1::2] << 4
        self.register_buffer("packed", q.contiguous())
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)
        self.register_buffer("shifts", torch.tensor([0, 4], dtype=torch.uint8), persistent=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def dequantized(self) -> Tensor:
        """Return the weight, float32 [out, padded]."""
        q = self.packed
        if self.bits == 4:
            q = (q.unsqueeze(-1) >> self.shifts & 15).flatten(1)
        groups = q.reshape(self.out_features, -1, self.group_size).float()
        zeros = 1 << (self.bits - 1) if self.zeros is None else self.zeros.unsqueeze(-1)
        return ((groups - zeros) * self.scales.unsqueeze(-1)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the last dim of x."""
        padding = self.packed.shape[1] * 8 // self.bits - self.in_features
        wide = functional.pad(x, (0, padding)) if padding else x
        y = functional.linear(wide.float(), self.dequantized())
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        """Say the sizes, as ``nn.Linear`` does."""
        zeros = "" if self.zeros is None else ", zeros"
        return (
            f"{self.in_features}, {self.out_features}, bits={self.bits}, "
            f"group_size={self.group_size}{zeros}, bias={self.bias is not None}"
        )


def quantized(
    groups: Tensor, bits: int, *, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Round groups of weights to integers.

    Args:
        groups: float32 [out, groups, size].
        bits: of an integer.
        symmetric: the middle of the range stands for 0; else a zero point of each group does.

    Returns:
        q u8 alike, scales [out, groups] and zeros alike (None if symmetric), so that
        ``(q - zeros) * scales`` is near the weights; all-zero groups have scale 1.
    """
    most, middle = (1 << bits) - 1, 1 << (bits - 1)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scales = (high - low) / most
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    zeros = torch.full_like(scales, middle)
    if not symmetric:
        zeros = (-low / scales).round().clamp(0, most)
    q = (groups / scales[..., None]).round() + zeros[..., None]
    return q.clamp(0, most).to(torch.uint8), scales, None if symmetric else zeros


def quantize(
    module: nn.Module,
    *,
    bits: int = 4,
    group_size: int = 64,
    symmetric: bool = True,
    skip: Sequence[str] = (),
) -> nn.Module:
    """Replace linear layers by ones whose weights are integers, in place.

    A weight that is shared with an embedding is quantised for the layer alone.

    Args:
        module: any; a layer that is itself ``nn.Linear`` comes back as the new layer.
        bits: 4 or 8.
        group_size: 32, 64 or 128 inputs share a scale.
        symmetric: without zero points.
        skip: dotted names of layers to leave, with wildcards (``"*.lm_head"``).

    Returns:
        The module.

    Raises:
        IrcError: ``quantize-unsupported``.
    """
    if bits not in BITS or group_size not in GROUP_SIZES:
        raise IrcError(
            "quantize-unsupported",
            f"weights of {bits} bits in groups of {group_size}",
            help=f"choose bits of {BITS} and group_size of {GROUP_SIZES}",
        )
    every = cast("Iterable[tuple[str, nn.Module]]", module.named_modules())
    chosen = {
        name: layer
        for name, layer in every
        if isinstance(layer, nn.Linear) and not any(fnmatch(name, each) for each in skip)
    }
    for name, layer in chosen.items():
        quantized_layer = QuantizedLinear(
            layer.weight, layer.bias, bits=bits, group_size=group_size, symmetric=symmetric
        )
        quantized_layer.train(layer.training)
        if not name:
            return quantized_layer
        parent, _, own = name.rpartition(".")
        setattr(module.get_submodule(parent), own, quantized_layer)
    return module

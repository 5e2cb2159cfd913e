"""Work of the gradients of convolutions, which stand as library ops until kernels are made."""

from __future__ import annotations

from math import prod

from irc.ops.custom import Call, Declaration


def _flops(call: Call) -> int:
    """A product and a sum for each tap, channel and place, as those of the convolution itself.

    0, not known, where a call has no rule that names its taps.
    """
    return 2 * prod(call.sizes.values()) if "k0" in call.sizes else 0


def _bytes(call: Call) -> int:
    """0, nothing special: each operand and result once."""
    return 0


DECLARATIONS: tuple[Declaration, ...] = tuple(
    Declaration(target, flops=_flops, bytes=_bytes)
    for target in ("aten::convolution", "aten::convolution_backward")
)

"""An op of this package, ``gated(x, y) = x * sigmoid(y)``, and all that irc asks of an op.

Importing this module declares it: with torch, so that models can call it, and with irc.
"""

import torch

import irc


@torch.library.custom_op("irc_example::gated", mutates_args=())
def gated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return ``x * sigmoid(y)``, of two matrices of one shape and dtype."""
    return x * torch.sigmoid(y)


@gated.register_fake
def _shape(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _gradients(
    gradients: tuple[torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of x and y from that of the result."""
    (g,) = gradients
    s = torch.sigmoid(y)
    return g * s, g * x * s * (1 - s)


# "linear(0)": partial sums of x give partial sums of the result, so that a reduction may wait.
irc.register_op(
    gated,
    rule="(a b, a b) -> (a b) linear(0)",
    flops=lambda call: 5 * call["a"] * call["b"],
    bytes=lambda call: 3 * call.item_bytes * call["a"] * call["b"],
    reference=lambda x, y: x * torch.sigmoid(y),
    derivative=_gradients,
)

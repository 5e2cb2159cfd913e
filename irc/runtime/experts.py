"""A layer of experts on the CPU: what ``irc::experts`` means (see `irc.ops.experts`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def experts(
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    act: str,
    num_experts: int,
) -> torch.Tensor:
    """Send each token through its experts and add the weighted results.

    Args:
        hidden: tokens, [t, i].
        index: the experts of each token, [t, k]; others than those held count nothing.
        weights: of each result, [t, k].
        gate_up: first matrices [e, 2, f, i], gate above up; [e, 1, f, i] without gate.
        down: second matrices [e, o, f].
        act: name of the activation, one of :data:`ACTIVATIONS`.
        num_experts: experts of all ranks together, for the cost model.
    """
    import torch

    count, choices = index.shape
    chosen = index.reshape(-1)
    rows: list[torch.Tensor] = []
    weighted: list[torch.Tensor] = []
    for expert in range(down.shape[0]):
        mine = torch.nonzero(chosen == expert).flatten()
        if len(mine):
            x = hidden[mine // choices]
            inner = [x @ matrix.T for matrix in gate_up[expert]]
            activated = ACTIVATIONS[act](inner[0])
            y = (activated * inner[1] if len(inner) == 2 else activated) @ down[expert].T
            rows.append(mine)
            weighted.append(y * weights.reshape(-1)[mine, None])
    shape = (count * choices, down.shape[1])
    if not weighted:
        # A rank that no token chose has gradients of zero, not none.
        nothing = sum(x[:0].sum() for x in (hidden, weights, gate_up, down))
        return hidden.new_zeros(count, down.shape[1]) + nothing
    # Out of place, so that torch can differentiate it; summed over k in order, as the model does.
    spread = weighted[0].new_zeros(shape).index_put((torch.cat(rows),), torch.cat(weighted))
    return spread.reshape(count, choices, -1).sum(1).to(hidden.dtype)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import gelu

    return gelu(x, approximate="tanh")


def _named(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        return getattr(functional, name)(x)

    return call


ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": _named("silu"),
    "gelu": _named("gelu"),
    "gelu_tanh": _gelu_tanh,
    "relu": _named("relu"),
}

"""Cross-entropy of a linear layer and its gradients in torch: see `irc.ops.linear_loss`.

Logits are those of a block of rows at a time, so that no more than :data:`LOGITS` of them exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LOGITS = 1 << 22
"""So many logits are held at a time."""


def losses(
    h: torch.Tensor, w: torch.Tensor, index: torch.Tensor, bias: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Return the loss and the log-sum of each row, both [n].

    Args:
        h: hidden rows [n, d].
        w: the weight [v, d].
        index: the class of each row, [n], inside the vocabulary.
        bias: of the layer, [v].

    Raises:
        IndexError: an index lies outside the vocabulary.
    """
    if len(h) and not 0 <= int(index.min()) <= int(index.max()) < len(w):
        raise IndexError(f"an index lies outside of the {len(w)} classes")
    row_losses, sums = _empty(h, len(h)), _empty(h, len(h))
    for at, x in _blocks(h, w, bias):
        top = x.amax(1, keepdim=True)
        log = (x - top).exp().sum(1).log()
        picked = x.gather(1, index[at].long()[:, None]) - top
        row_losses[at], sums[at] = log - picked[:, 0], log + top[:, 0]
    return [row_losses, sums]


def backward(
    g: torch.Tensor,
    h: torch.Tensor,
    w: torch.Tensor,
    index: torch.Tensor,
    sums: torch.Tensor,
    bias: torch.Tensor | None = None,
    gs: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return the gradients of h [n, d], w [v, d] and, where there is one, the bias [v].

    Args:
        g: the gradient of the losses, [n].
        h: hidden rows [n, d].
        w: the weight [v, d].
        index: the class of each row, [n]; one outside of the vocabulary is no class of it.
        sums: the log-sums, [n].
        bias: of the layer, [v].
        gs: the gradient of the log-sums, [n].
    """
    import torch

    start = g if gs is None else g + gs
    dh, dw = torch.zeros_like(h), _empty(h, *w.shape)
    db = _empty(h, len(w))
    for at, x in _blocks(h, w, bias):
        dx = (x - sums[at, None]).exp() * start[at, None]
        mine = (index[at] >= 0) & (index[at] < len(w))
        column = torch.where(mine, index[at], 0).long()[:, None]
        dx.scatter_add_(1, column, torch.where(mine, -g[at], 0).to(dx.dtype)[:, None])
        db += dx.sum(0)
        dx = dx.to(h.dtype)
        dh[at] = dx @ w
        dw += dx.T @ h[at]
    gradients = [dh, dw.to(w.dtype)]
    return gradients if bias is None else [*gradients, db.to(bias.dtype)]


def both(
    g: torch.Tensor,
    h: torch.Tensor,
    w: torch.Tensor,
    index: torch.Tensor,
    bias: torch.Tensor | None = None,
    gs: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return what :func:`losses` gives, and then what :func:`backward` does."""
    row_losses, sums = losses(h, w, index, bias)
    return [row_losses, sums, *backward(g, h, w, index, sums, bias, gs)]


def _empty(h: torch.Tensor, *shape: int) -> torch.Tensor:
    """Zeros of what losses are accumulated in."""
    import torch

    wide = torch.float32 if h.dtype in (torch.float16, torch.bfloat16) else h.dtype
    return h.new_zeros(shape, dtype=wide)


def _blocks(
    h: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield blocks of rows, and their logits as losses read them."""
    rows = max(1, LOGITS // max(len(w), 1))
    for first in range(0, len(h), rows):
        at = slice(first, first + rows)
        x = h[at] @ w.T
        yield at, (x if bias is None else x + bias).to(_empty(h).dtype)

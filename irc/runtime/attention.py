"""Attention with its log-sums and its derivative on the CPU: see `irc.ops.attention_ops`.

Scores are computed in blocks of rows, so that no more than :data:`SCORES` of them exist at a time;
torch's own flash attention is used where it computes the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SCORES = 1 << 18
"""So many scores are held at a time."""


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    start: torch.Tensor | None,
    y0: torch.Tensor | None,
    sums0: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    with_sums: bool,
) -> list[torch.Tensor]:
    """Return y [.., H, S, E] and, ``with_sums``, the log-sums [.., H, S].

    Args:
        q: queries, [.., H, S, D].
        k: keys, [.., G, T, D], H a multiple of G; without heads [T, D].
        v: values, [.., G, T, E].
        mask: bool (True takes part) or additive, broadcast to [.., H, S, T].
        start: the place of the first row less that of the first column.
        y0: the result over other columns, which this adds to.
        sums0: the log-sums of that.
        is_causal: row i sees column j where i + start >= j.
        scale: of the scores.
        with_sums: return the log-sums too.
    """
    shift = 0 if start is None else int(start)
    if is_causal and shift <= -q.shape[-2]:
        results = _nothing(q, v) if y0 is None or sums0 is None else (y0, sums0)
    else:
        causal = is_causal and shift < k.shape[-2] - 1
        results = _flash(q, k, v, mask, causal, shift, scale)
        results = results or _blocked(_Scores(q, k, mask, causal, shift, scale), v)
        if y0 is not None and sums0 is not None:
            results = merge(y0, sums0, *results)
    return [*results] if with_sums else [results[0]]


def merge(
    y: torch.Tensor, sums: torch.Tensor, other: torch.Tensor, other_sums: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join the results over two sets of columns (online softmax, arXiv:1805.02867).

    ``L = log(exp(l) + exp(m))`` and ``y = exp(l - L) y + exp(m - L) y'``; rows that see neither
    stay zeros.
    """
    import torch

    total = torch.logaddexp(sums, other_sums)
    # Where both are -inf, so is their sum: the weights are then of zeros.
    safe = total.masked_fill(total == -torch.inf, 0.0)
    old, new = (torch.exp(s - safe).unsqueeze(-1) for s in (sums, other_sums))
    return old * y + new * other, total


def backward(
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    y: torch.Tensor,
    sums: torch.Tensor,
    mask: torch.Tensor | None,
    start: torch.Tensor | None,
    dq0: torch.Tensor | None,
    dk0: torch.Tensor | None,
    dv0: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> list[torch.Tensor]:
    """Return the gradients of q, k and v; shapes and meaning are those of :func:`attention`.

    ``P = exp(S - sums)``, ``dV = P^T g``, ``dS = P * (g V^T - sum(g * y))``, ``dQ = dS K`` and
    ``dK = dS^T Q`` (arXiv:2205.14135, appendix B).
    """
    shift = 0 if start is None else int(start)
    addends = (dq0, dk0, dv0)
    if is_causal and shift <= -q.shape[-2]:
        pairs = zip((q, k, v), addends, strict=True)
        return [x.new_zeros(x.shape) if d is None else d for x, d in pairs]
    causal = is_causal and shift < k.shape[-2] - 1
    gradients = _flash_backward(g, q, k, v, y, sums, mask, causal, shift, scale)
    gradients = gradients or _blocked_backward(
        _Scores(q, k, mask, causal, shift, scale), g, v, y, sums
    )
    return [x if d is None else d + x for x, d in zip(gradients, addends, strict=True)]


def _nothing(q: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    wide = _wide(q.dtype)
    empty = torch.full(q.shape[:-1], -torch.inf, dtype=wide)
    return q.new_zeros(*q.shape[:-1], v.shape[-1]), empty


def _wide(dtype: torch.dtype) -> torch.dtype:
    import torch

    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _suits_flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object, causal: bool, shift: int
) -> bool:
    """True where torch's CPU kernel computes this: no mask, equal heads, the plain diagonal."""
    square = not causal or (shift == 0 and q.shape[-2] == k.shape[-2])
    alike = q.ndim == 4 and q.shape[:2] == k.shape[:2] and q.shape[-1] == v.shape[-1]
    return mask is None and square and alike and 0 not in (*q.shape, *k.shape)


def _flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    shift: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    import torch

    if not _suits_flash(q, k, v, mask, causal, shift):
        return None
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return run(*map(_with_dense_rows, (q, k, v)), 0.0, causal, attn_mask=None, scale=scale)


def _flash_backward(
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    y: torch.Tensor,
    sums: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    shift: int,
    scale: float,
) -> tuple[torch.Tensor, ...] | None:
    import torch

    if not _suits_flash(q, k, v, mask, causal, shift):
        return None
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    rows = map(_with_dense_rows, (g, q, k, v, y))
    return run(*rows, sums, 0.0, causal, attn_mask=None, scale=scale)


def _with_dense_rows(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose last dim has stride 1: torch's kernel reads no other one right.

    Its own front (``scaled_dot_product_attention``) looks at that stride; the kernel does not, and
    reads beyond the tensor. A convolution's result lies channels last in an arena.
    """
    return x if x.stride(-1) == 1 else x.contiguous()


@dataclass
class _Scores:
    """The scores of one call, by blocks of rows: [.., G, R, rows, T], R query heads to a key."""

    q: torch.Tensor
    k: torch.Tensor
    mask: torch.Tensor | None
    causal: bool
    shift: int
    scale: float

    def grouped(self, value: torch.Tensor) -> torch.Tensor:
        """View [.., H, S, X] as [.., G, R, S, X]."""
        if value.ndim == 2:
            return value.unsqueeze(0)
        groups, heads = self.k.shape[-3], value.shape[-3]
        split = (groups, heads // groups)
        return value.reshape(*value.shape[:-3], *split, *value.shape[-2:])

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield rows and their scores; -inf where masked."""
        q, mask = self.grouped(self.q), self._spread_mask()
        row = prod(q.shape[:-2]) * self.k.shape[-2]
        step = max(1, SCORES // max(row, 1))
        for first in range(0, q.shape[-2], step):
            rows = slice(first, min(first + step, q.shape[-2]))
            yield rows, self._block(q[..., rows, :], mask, rows)

    def _spread_mask(self) -> torch.Tensor | None:
        if self.mask is None:
            return None
        mask = self.mask[(None,) * (max(self.q.ndim, 2) - self.mask.ndim)]
        if mask.ndim == 2:
            return mask.unsqueeze(0)
        return mask.unsqueeze(-3) if mask.shape[-3] == 1 else self.grouped(mask)

    def _block(self, q: torch.Tensor, mask: torch.Tensor | None, rows: slice) -> torch.Tensor:
        import torch

        wide = _wide(q.dtype)
        scores = torch.einsum("...rsd,...td->...rst", q, self.k).to(wide) * self.scale
        if mask is not None:
            part = mask if mask.shape[-2] == 1 else mask[..., rows, :]
            if part.dtype == torch.bool:
                scores = scores.masked_fill(~part, -torch.inf)
            else:
                scores = scores + part.to(wide)
        if self.causal:
            i = torch.arange(rows.start, rows.stop).unsqueeze(-1) + self.shift
            scores = scores.masked_fill(i < torch.arange(self.k.shape[-2]), -torch.inf)
        return scores


def _blocked(scores: _Scores, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    q = scores.q
    parts: list[torch.Tensor] = []
    tops: list[torch.Tensor] = []
    for _, block in scores.blocks():
        top = block.amax(-1, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0.0)
        powers = torch.exp(block - top)
        total = powers.sum(-1, keepdim=True)
        chances = (powers / total.clamp(min=1.0)).to(v.dtype)
        parts.append(torch.einsum("...rst,...te->...rse", chances, v))
        tops.append((top + total.log()).squeeze(-1))
    y = torch.cat(parts, -2).reshape(*q.shape[:-1], v.shape[-1])
    return y, torch.cat(tops, -1).reshape(q.shape[:-1])


def _blocked_backward(
    scores: _Scores, g: torch.Tensor, v: torch.Tensor, y: torch.Tensor, sums: torch.Tensor
) -> list[torch.Tensor]:
    import torch

    q, k, wide = scores.q, scores.k, _wide(scores.q.dtype)
    share = (g.to(wide) * y.to(wide)).sum(-1, keepdim=True)
    safe = sums.masked_fill(sums == -torch.inf, 0.0).unsqueeze(-1)
    heads, gs, safe, share = (scores.grouped(x) for x in (q, g, safe, share))
    parts: list[torch.Tensor] = []
    dk, dv = (torch.zeros(x.shape, dtype=wide) for x in (k, v))
    for rows, block in scores.blocks():
        part = gs[..., rows, :]
        chances = torch.exp(block - safe[..., rows, :])
        dv += torch.einsum("...rst,...rse->...te", chances.to(v.dtype), part)
        chance_slopes = torch.einsum("...rse,...te->...rst", part, v).to(wide)
        slopes = (chances * (chance_slopes - share[..., rows, :]) * scores.scale).to(q.dtype)
        parts.append(torch.einsum("...rst,...td->...rsd", slopes, k))
        dk += torch.einsum("...rst,...rsd->...td", slopes, heads[..., rows, :])
    return [torch.cat(parts, -2).reshape(q.shape), dk, dv]

"""Which tensors of a call lie over each other in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and of the byte after its last."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def clash(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> tuple[int, int] | None:
    """Return a tensor that is written to, and another whose memory meets it; None if none does.

    Two that interleave count as meeting: whether their elements do is not worth finding out. One
    that was expanded meets itself: a number is written in many of its places at once.
    """
    spans = [span(tensor) for tensor in tensors]
    for i in written:
        low, high = spans[i]
        if any(
            n > 1 and s == 0 for n, s in zip(tensors[i].shape, tensors[i].stride(), strict=True)
        ):
            return i, i
        for j, (first, last) in enumerate(spans):
            if j != i and low < last and first < high:
                return i, j
    return None


def apart(arguments: Any) -> Any:
    """Return arguments in which no tensor lies over another: later ones are copied where they do.

    A trace takes tensors for separate that are given as such; it needs their kinds, not their
    values. Copies lie in memory as the tensors do, which the trace looks at, too.
    """
    leaves, spec = pytree.tree_flatten(arguments)
    seen: list[tuple[int, int]] = []
    changed = False
    for i, leaf in enumerate(leaves):
        if type(leaf) is not torch.Tensor or leaf.layout != torch.strided or leaf.is_meta:
            continue
        if leaf.is_nested:
            continue
        low, high = span(leaf)
        if any(low < last and first < high for first, last in seen):
            leaves[i], changed = _copy(leaf).requires_grad_(leaf.requires_grad), True
        seen.append((low, high))
    return pytree.tree_unflatten(leaves, spec) if changed else arguments


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that lies in a copy of a tensor's whole memory as that does in its own."""
    memory = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    copy = copy.conj() if tensor.is_conj() else copy
    lazy: Any = torch  # its stub leaves `_neg_view` out
    return lazy._neg_view(copy) if tensor.is_neg() else copy

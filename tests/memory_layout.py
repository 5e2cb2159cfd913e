"""Where tensors lie in memory, as far as a caller can tell: strides, offsets, common elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def layout(x: Tensor) -> tuple[tuple[int, ...], int]:
    """Return a tensor's strides and storage offset, in elements, as far as they mean something.

    Strides of dims of one element mean nothing, and neither does anything of an empty tensor.
    """
    if not x.numel() or x.layout is not torch.strided:
        return (), 0
    strides = tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
    return strides, int(x.storage_offset())


def lies_alike(one: Tensor, other: Tensor, *, apart: bool = False) -> bool:
    """Return whether a tensor lies as eager's does, as far as somebody may build on that.

    Args:
        one: the tensor.
        other: eager's.
        apart: eager's tensors have elements in common, and here each has memory of its own: then it
            begins where that does, and an expanded one may have all its elements.
    """
    here, there = layout(one), layout(other)
    if not apart:
        return here == there
    return here[0] == there[0] or 0 in there[0]


def overlapping(tensors: Sequence[Tensor | None]) -> set[tuple[int, int]]:
    """Return the pairs of tensors that have elements in common, by position, the lower first.

    A write to one of such a pair changes the other.
    """
    pairs: set[tuple[int, int]] = set()
    places: dict[int, set[int]] = {}
    memory = [_memory(x) for x in tensors]
    for j, here in enumerate(memory):
        for i in range(j):
            if here is None or memory[i] != here:
                continue
            for k in (i, j):
                if k not in places:
                    places[k] = _bytes(tensors[k])
            if places[i] & places[j]:
                pairs.add((i, j))
    return pairs


def _memory(x: Tensor | None) -> int | None:
    if x is None or x.layout is not torch.strided or not x.numel():
        return None
    if x._is_zerotensor():  # the gradient of sgn: zeros that lie nowhere
        return None
    return x.untyped_storage().data_ptr()


def _bytes(x: Tensor | None) -> set[int]:
    """Return which bytes of its storage a tensor's elements are; tensors here are small."""
    assert x is not None
    places = torch.tensor(x.storage_offset())
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = places[..., None] + torch.arange(size) * stride
    bytes_ = places[..., None] * x.itemsize + torch.arange(x.itemsize)
    return set(bytes_.flatten().tolist())

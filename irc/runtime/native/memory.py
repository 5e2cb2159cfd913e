"""Memory of native programs: arenas, weights, and tensors in them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from irc.dialects.items import ITEM_BYTES
from irc.plan.native import View
from irc.runtime.pages import HUGE, huge_region

LINE = 64
STREAMED = 1 << 20
"""Bytes from which on kernels may write a result past the caches, which takes whole lines."""

Array: TypeAlias = np.ndarray[Any, Any]
Bases: TypeAlias = ctypes.Array[ctypes.c_int64]
"""A base table: the addresses that views count from."""


def zero_bytes(num_bytes: int) -> Array:
    """Return zeros, u8 [num_bytes], at the begin of a line; in huge pages where they are many."""
    region = huge_region(num_bytes)
    if region is not None:
        whole = np.frombuffer(region, np.uint8)
        return whole[-whole.ctypes.data % HUGE :][:num_bytes]
    whole = np.zeros(num_bytes + LINE, np.uint8)
    return whole[-whole.ctypes.data % LINE :][:num_bytes]


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array for a result; a large one begins a line."""
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes < STREAMED:
        return np.empty(shape, dtype)
    raw = np.empty(num_bytes + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + num_bytes].view(dtype).reshape(shape)


def address_of(array: Array) -> int:
    """Return where an array's first element lies."""
    return array.__array_interface__["data"][0]


def raw_view(address: int, view: View) -> Array:
    """Return a tensor in memory as unsigned integers of its width; bytes where there is none.

    What it shows must live as long as it does.
    """
    item = ITEM_BYTES[view.dtype]
    kind = np.dtype(f"u{item}") if item in (1, 2, 4, 8) else np.dtype(f"V{item}")
    strides = row_major(view.shape) if view.strides is None else view.strides
    if 0 in view.shape:
        return np.empty(view.shape, kind)
    extent = (sum(s * (n - 1) for s, n in zip(strides, view.shape, strict=True)) + 1) * item
    memory = (ctypes.c_char * extent).from_address(address + view.offset)
    return np.ndarray(view.shape, kind, memoryview(memory), 0, [s * item for s in strides])


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor without gaps."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))

"""What lists, dictionaries, arrays and the like hold: to compare later, and to give back."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Sequence
from operator import is_
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

Container: TypeAlias = Any
"""One of the classes of :func:`is_container`."""

PLAIN = (int, float, complex, str, bytes, slice, range, torch.device)
"""Values that are compared as such."""


def is_container(value: object) -> bool:
    """True for what holds items, and may hold others at the next call."""
    kinds = (list, dict, set, deque, bytearray, array, memoryview, MappingProxyType)
    return isinstance(value, kinds) or is_array(value)


def is_array(value: object) -> bool:
    """True for an array of NumPy's whose numbers are compared; files in memory are not read."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        return False
    return not isinstance(value, numpy.memmap)


def items_of(container: Container) -> list[Any]:
    """Return what a container holds now."""
    if isinstance(container, dict | MappingProxyType):
        return [*container, *container.values()]
    if is_array(container):
        if container.dtype.hasobject:
            return [container.shape, *container.flat]
        return [container.shape, container.dtype, container.tobytes()]
    if isinstance(container, memoryview):
        return [container.tobytes()]
    return [*container]


def restore(container: Container, items: Sequence[Any]) -> None:
    """Give a container the items that it had; views of dictionaries and arrays stay as they are."""
    if isinstance(container, MappingProxyType | memoryview) or is_array(container):
        return
    target: Any = container  # whose class, once told, says nothing of its items
    if isinstance(container, list | bytearray | array):
        target[:] = type(target)(items) if not isinstance(container, array) else array(
            container.typecode, items
        )  # fmt: skip
        return
    target.clear()
    if isinstance(container, dict):
        half = len(items) // 2
        target.update(zip(items[:half], items[half:], strict=True))
    elif isinstance(container, deque):
        target.extend(items)
    else:
        target.update(items)


def same(then: Sequence[Any], now: Sequence[Any]) -> bool:
    """Return whether values are the same objects, or equal numbers, strings and tuples of them."""
    return len(then) == len(now) and (
        all(map(is_, then, now))
        or all(
            a is b
            or (
                type(a) is type(b)
                and (
                    same(a, b)  # pyright: ignore[reportUnknownArgumentType]
                    if isinstance(a, tuple)
                    else isinstance(a, PLAIN) and a == b
                )
            )
            for a, b in zip(then, now, strict=True)
        )
    )

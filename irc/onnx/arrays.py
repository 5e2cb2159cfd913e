"""The short way of a session's call: arrays in, arrays out, and nothing between but the kernels.

A call of a small model costs more in checks and conversions than in its kernels. So what a model
takes is looked up once, and a plan that is one run of kernels gets the addresses of arrays.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from torch._C._dynamo.guards import (  # torch's stub leaves it out
    _empty_strided_cpu,  # pyright: ignore[reportAttributeAccessIssue]
)

from irc.errors import IrcError, did_you_mean
from irc.onnx.boundary import shape_of, to_value
from irc.runtime.executor import Executor
from irc.runtime.onnx_ops.values import ELEMENTS, FLOW, as_item, as_tensor

Call: TypeAlias = Callable[[Sequence[Any]], list[Any]]

NUMPY: Mapping[torch.dtype, Any] = {
    torch.float64: FLOW["f64"], torch.float32: FLOW["f32"], torch.float16: FLOW["f16"],
    torch.int64: FLOW["i64"], torch.int32: FLOW["i32"], torch.int16: FLOW["i16"],
    torch.int8: FLOW["i8"], torch.uint8: FLOW["u8"], torch.bool: FLOW["i1"],
}  # fmt: skip
"""Dtypes that both have, and that tensors show as arrays without a copy."""


def array_call(executor: Executor) -> Call:
    """Return what runs a plan on arrays, the short way where the plan is kernels alone."""

    def whole(given: Sequence[Any]) -> list[Any]:
        return [as_item(value) for value in executor(*map(as_tensor, given))]

    takes = [(tuple(shape), NUMPY.get(dtype)) for shape, dtype in executor.takes]
    made = list(executor.made)
    both = (*(kind for _, kind in takes), *(NUMPY.get(dtype) for _, _, dtype in made))
    if None in both or not executor.is_kernels_alone():
        return whole
    leases, new_lease, is_stale = executor.leases, executor.new_lease, executor.is_stale

    def short(given: Sequence[Any]) -> list[Any]:
        if is_stale is not None and is_stale():
            return whole(given)
        addresses: list[int] = []
        for value, (shape, kind) in zip(given, takes, strict=True):
            if value.shape != shape or value.dtype != kind or not value.flags.c_contiguous:
                return whole(given)
            addresses.append(value.ctypes.data)
        results = [_empty_strided_cpu(*kind) for kind in made]
        addresses += [result.data_ptr() for result in results]
        try:
            lease = leases.pop()
        except IndexError:
            lease = new_lease()
        lease.entry.run(*addresses)
        leases.append(lease)
        return [result.numpy() for result in results]

    return short


class Intake:
    """What a model takes, looked up once: checks what a caller gives, in the order of the inputs.

    Args:
        inputs: names and types, as the file states them.
    """

    def __init__(self, inputs: Sequence[onnx.ValueInfoProto]) -> None:
        self._inputs = [(given.name, given.type) for given in inputs]
        self._names = {name for name, _ in self._inputs}
        self._plain: list[tuple[str, Any, tuple[int | None, ...] | None]] = [
            (name, *_tensor(kind)) for name, kind in self._inputs
        ]

    def __call__(self, feed: Mapping[str, Any]) -> list[Any]:
        """Return arrays, lists or None.

        Raises:
            IrcError: ``input-mismatch``.
        """
        if len(feed) == len(self._plain):
            try:
                values = [feed[name] for name, _, _ in self._plain]
            except KeyError:
                values = []
            if values and all(map(_fits, values, self._plain)):
                return values
        self._check_names(feed)
        return [to_value(feed[name], kind, name) for name, kind in self._inputs]

    def _check_names(self, feed: Mapping[str, Any]) -> None:
        names = [name for name, _ in self._inputs]
        for name in (*feed, *names):
            if name not in self._names or name not in feed:
                what = "missing" if name in self._names else "not an input of the model"
                raise IrcError(
                    "input-mismatch", f"input '{name}' is {what}", help=did_you_mean(name, names)
                )


def _tensor(kind: onnx.TypeProto) -> tuple[Any, tuple[int | None, ...] | None]:
    """Return numpy's dtype of a tensor (None for what is none), and its sizes, None where open."""
    if not kind.HasField("tensor_type"):
        return None, None
    dtype = ELEMENTS.get(kind.tensor_type.elem_type)
    sizes = shape_of(kind)
    if dtype is None or dtype.kind == "O" or sizes is None:
        return None, None
    return dtype, tuple(size if isinstance(size, int) else None for size in sizes)


def _fits(value: Any, plain: tuple[str, Any, tuple[int | None, ...] | None]) -> bool:
    _, dtype, sizes = plain
    if type(value) is not np.ndarray or sizes is None or value.dtype != dtype:
        return False
    shape = value.shape
    return len(shape) == len(sizes) and all(
        stated is None or stated == size for stated, size in zip(sizes, shape, strict=True)
    )

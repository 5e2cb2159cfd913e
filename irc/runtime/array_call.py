"""A plan on arrays: in, out, and nothing between but the kernels.

A call of a small model costs more in conversions than in its kernels. So a plan that is one run of
kernels gets the addresses of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._C._dynamo.guards import (  # torch's stub leaves it out
    _empty_strided_cpu,  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
)

from irc.runtime.executor import Executor
from irc.runtime.onnx_ops.values import FLOW, as_item, as_tensor

Call: TypeAlias = Callable[[Sequence[Any]], list[Any]]

NUMPY: Mapping[torch.dtype, Any] = {
    torch.float64: FLOW["f64"], torch.float32: FLOW["f32"], torch.float16: FLOW["f16"],
    torch.int64: FLOW["i64"], torch.int32: FLOW["i32"], torch.int16: FLOW["i16"],
    torch.int8: FLOW["i8"], torch.uint8: FLOW["u8"], torch.bool: FLOW["i1"],
}  # fmt: skip
"""Dtypes that both have, and that tensors show as arrays without a copy."""


def array_call(executor: Executor) -> Call:
    """Return what runs a plan on arrays, the short way where the plan is kernels alone."""

    def whole(inputs: Sequence[Any]) -> list[Any]:
        return [as_item(value) for value in executor(*map(as_tensor, inputs))]

    takes = [(tuple(shape), NUMPY.get(dtype)) for shape, dtype in executor.takes]
    forms = executor.forms
    output_forms = list(executor.made) if forms is None else forms
    both = (*(kind for _, kind in takes), *(NUMPY.get(dtype) for _, _, dtype in output_forms))
    if None in both or not executor.is_kernels_alone():
        return whole
    leases, new_lease, is_stale = executor.leases, executor.new_lease, executor.is_stale
    show = executor.show if forms is None else None

    def short(inputs: Sequence[Any]) -> list[Any]:
        if is_stale is not None and is_stale():
            return whole(inputs)
        addresses: list[int] = []
        for value, (shape, kind) in zip(inputs, takes, strict=True):
            if value.shape != shape or value.dtype != kind or not value.flags.c_contiguous:
                return whole(inputs)
            addresses.append(value.__array_interface__["data"][0])  # half of what .ctypes costs
        results: list[Any] = [_empty_strided_cpu(*kind) for kind in output_forms]
        addresses += [result.data_ptr() for result in results]
        try:
            lease = leases.pop()
        except IndexError:
            lease = new_lease()
        try:
            lease.entry.run(*addresses)
        except SystemError:
            raise lease.entry.outside() from None
        leases.append(lease)
        return [result.numpy() for result in (results if show is None else show(results))]

    return short

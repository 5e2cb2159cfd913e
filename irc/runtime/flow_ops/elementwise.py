"""Ops whose elements depend on no other: pointwise functions, constants, counting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from irc.ops import names
from irc.ops.functions import POINTWISE
from irc.runtime.dtypes import dtypes
from irc.runtime.flow_ops.signature import Attrs, Kernel, Results

if TYPE_CHECKING:
    import torch


# fmt: off
SPECIAL: Mapping[str, Callable[[Any, Any, Any], Any] | Callable[[Any, Any], Any]] = {
    "trunc_div":   lambda t, a, b: t.div(a, b, rounding_mode="trunc"),
    "gelu_tanh":   lambda t, a: t.nn.functional.gelu(a, approximate="tanh"),
    "gelu":        lambda t, a: t.nn.functional.gelu(a),
    "silu":        lambda t, a: t.nn.functional.silu(a),
    "relu":        lambda t, a: t.relu(a),
    "logical_and": lambda t, a, b: t.logical_and(a, b),
    "logical_or":  lambda t, a, b: t.logical_or(a, b),
    "logical_xor": lambda t, a, b: t.logical_xor(a, b),
}
# fmt: on


def function_of(fn: str) -> Callable[..., torch.Tensor]:
    """Return the reference of a pointwise function that is no cast."""
    import torch

    if fn in SPECIAL:
        return partial(SPECIAL[fn], torch)
    return getattr(torch.ops.aten, POINTWISE[fn].reference.removeprefix("aten::"))


def _pointwise(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    fn = attrs["fn"]
    if fn == "cast":
        dtype = dtypes()[results[0][1]]
        if dtype.is_floating_point and inputs[0].dtype == torch.float64:
            return inputs[0]
        return inputs[0].to(dtype)
    return function_of(fn)(*inputs)


def _constant(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    (shape, dtype), values = results[0], attrs["value"]
    if len(values) == 1:
        return torch.full(shape, values[0], dtype=dtypes()[dtype])
    return torch.tensor(values, dtype=dtypes()[dtype]).reshape(shape)


def _iota(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    dim: int
    (shape, dtype), dim = results[0], attrs["dim"]
    line = torch.arange(shape[dim], dtype=dtypes()[dtype])
    return (
        line.reshape([-1 if i == dim else 1 for i in range(len(shape))]).expand(shape).contiguous()
    )


KERNELS: Mapping[str, Kernel] = {
    names.POINTWISE: _pointwise,
    names.CONSTANT: _constant,
    names.IOTA: _iota,
}

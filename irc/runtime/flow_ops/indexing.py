"""Ops that say where elements lie: shapes, slices, joins, padding, taking and scattering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from irc.dialects.items import number_in
from irc.ops import names
from irc.runtime.dtypes import dtype_names
from irc.runtime.flow_ops.signature import Attrs, Results

if TYPE_CHECKING:
    import torch


def _slice(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    x = inputs[0]
    bounds = zip(attrs["starts"], attrs["stops"], attrs["steps"], x.shape, strict=True)
    return x[tuple(slice(a, n if b == -1 else b, s) for a, b, s, n in bounds)]


def _concat(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    return torch.cat(inputs, attrs["dim"])


def padded_with(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    """Return the operand with ``value`` around it: ``low`` and ``high`` elements in each dim."""
    import torch

    amounts = [n for pair in zip(attrs["low"], attrs["high"], strict=True) for n in pair[::-1]][
        ::-1
    ]
    x = inputs[0]
    value = number_in(attrs["value"], dtype_names()[x.dtype])
    if x.dtype == torch.bool:
        return torch.nn.functional.pad(x.to(torch.uint8), amounts, value=value).to(torch.bool)
    return torch.nn.functional.pad(x, amounts, value=value)


def _take(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    table, indices = inputs
    rows = torch.index_select(table, attrs["dim"], indices.reshape(-1))
    dim = attrs["dim"]
    return rows.reshape((*table.shape[:dim], *indices.shape, *table.shape[dim + 1 :]))


def _scatter(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    x, index, source = inputs
    if attrs["fn"] == "set":
        return x.scatter(attrs["dim"], index, source)
    reduce = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}[attrs["fn"]]
    return x.scatter_reduce(attrs["dim"], index, source, reduce)


KERNELS: Mapping[str, Callable[[Attrs, list[torch.Tensor], Results], Any]] = {
    names.RESHAPE: lambda attrs, inputs, results: inputs[0].reshape(results[0][0]),
    names.TRANSPOSE: lambda attrs, inputs, results: inputs[0].permute(attrs["perm"]),
    names.BROADCAST: lambda attrs, inputs, results: inputs[0].expand(results[0][0]),
    names.SLICE: _slice,
    names.CONCAT: _concat,
    names.PAD: padded_with,
    names.TAKE: _take,
    names.GATHER: lambda attrs, inputs, results: inputs[0].gather(attrs["dim"], inputs[1]),
    names.SCATTER: _scatter,
}

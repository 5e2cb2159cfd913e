"""Ops that go along dims: reductions, scans, sorts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from irc.ops import names
from irc.runtime.flow_ops.signature import Attrs, Kernel, Results

if TYPE_CHECKING:
    import torch


def _reduce(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    dims: tuple[int, ...] = tuple(attrs["dims"])
    (x,), keep = inputs, attrs["keep_dims"]
    match attrs["fn"]:
        case "sum":
            return torch.sum(x, dims, keep, dtype=x.dtype) if dims else x.clone()
        case "max" | "min" as fn if any(x.shape[dim] == 0 for dim in dims):
            # Torch refuses these; the kernels, and ONNX, give what no element can change.
            least, most = -torch.inf, torch.inf
            if not x.is_floating_point():
                least, most = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
            shape = torch.sum(x, dims, keep).shape
            return torch.full(shape, least if fn == "max" else most, dtype=x.dtype)
        case "max":
            return torch.amax(x, dims, keep) if dims else x.clone()
        case "min":
            return torch.amin(x, dims, keep) if dims else x.clone()
        case "any" | "all" as fn:
            truth = x.to(torch.bool)
            for dim in sorted(dims, reverse=True):
                truth = getattr(torch, fn)(truth, dim, keep)
            return truth
        case "prod":
            for dim in sorted(dims, reverse=True):
                x = torch.prod(x, dim, keep, dtype=x.dtype)
            return x
        case fn:
            raise KeyError(f"{names.REDUCE} has no function {fn!r}")


def _arg_reduce(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    fn = torch.argmax if attrs["fn"] == "max" else torch.argmin
    return fn(inputs[0], attrs["dim"], attrs["keep_dims"])


def _cumulative(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    y: Any  # torch's stub does not type the values of a maximum
    x, dim, fn = inputs[0], attrs["dim"], attrs["fn"]
    if attrs["reverse"]:
        x = x.flip(dim)
    match fn:
        case "sum":
            y = torch.cumsum(x, dim, dtype=x.dtype)
        case "prod":
            y = torch.cumprod(x, dim, dtype=x.dtype)
        case "max":
            y = torch.cummax(x, dim).values
        case _:
            y = torch.cummin(x, dim).values
    if attrs["exclusive"]:
        neutral = {"sum": 0, "prod": 1, "max": -torch.inf, "min": torch.inf}[fn]
        head = torch.full_like(y.narrow(dim, 0, min(1, y.shape[dim])), neutral)
        y = torch.cat([head, y.narrow(dim, 0, max(y.shape[dim] - 1, 0))], dim)
    return y.flip(dim) if attrs["reverse"] else y


def _sort(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    return tuple(
        torch.sort(inputs[0], dim=attrs["dim"], descending=attrs["descending"], stable=True)
    )


def _top_k(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    import torch

    # A stable sort gives the lowest index among equals, on every device and any shard.
    values, indices = torch.sort(
        inputs[0], dim=attrs["dim"], descending=attrs["largest"], stable=True
    )
    return values.narrow(attrs["dim"], 0, attrs["k"]), indices.narrow(attrs["dim"], 0, attrs["k"])


KERNELS: Mapping[str, Kernel] = {
    names.REDUCE: _reduce,
    names.ARG_REDUCE: _arg_reduce,
    names.CUMULATIVE: _cumulative,
    names.SORT: _sort,
    names.TOP_K: _top_k,
}

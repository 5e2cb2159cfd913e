"""Library ops that write their results where a plan lays them, instead of into new memory.

Each has a variant of torch's with ``out=``. What a call gives there is what
:func:`irc.runtime.library.run` gives, bit for bit; the others' results are copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from irc.ops import names
from irc.runtime import effects
from irc.runtime.flow_ops.extern import CELLS, calling, own_op
from irc.runtime.index_bounds import INDEXED, bounded

if TYPE_CHECKING:
    import torch

Write: TypeAlias = Callable[[Sequence["torch.Tensor"], Sequence["torch.Tensor"]], object]
"""Called with operands and with where the results go: contiguous, of the shapes stated."""


def writer(name: str, attrs: Mapping[str, Any], fixed: Collection[int] = ()) -> Write | None:
    """Return what writes the results of an op in place, None where nothing does.

    It raises ``index-out-of-range`` for an index that selects nothing.

    Args:
        name: the op.
        attrs: its attributes.
        fixed: operands that are weights: each the same tensor in every call.
    """
    if name == names.EXTERN and attrs["target"] in CELLS:
        from irc.runtime.onnx_library import cell_writer

        return cell_writer(attrs["target"], json.loads(attrs["arguments"]), fixed)
    if name == names.EXTERN:
        return _extern(attrs)
    factory = WRITERS.get(name)
    run = None if factory is None else factory(attrs)
    if run is None or name not in INDEXED:
        return run
    return lambda inputs, out: bounded(name, attrs, inputs, lambda: run(inputs, out))


def _sort(attrs: Mapping[str, Any]) -> Write:
    import torch

    dim, descending = attrs["dim"], attrs["descending"]

    def run(inputs: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        torch.sort(inputs[0], stable=True, dim=dim, descending=descending, out=tuple(out))

    return run


def _concat(attrs: Mapping[str, Any]) -> Write:
    import torch

    dim = attrs["dim"]
    return lambda inputs, out: torch.cat(list(inputs), dim, out=out[0])


def _arg_reduce(attrs: Mapping[str, Any]) -> Write:
    import torch

    fn = torch.argmax if attrs["fn"] == "max" else torch.argmin
    dim, keep = attrs["dim"], attrs["keep_dims"]
    return lambda inputs, out: fn(inputs[0], dim, keep, out=out[0])


def _cumulative(attrs: Mapping[str, Any]) -> Write | None:
    import torch

    if attrs["exclusive"] or attrs["reverse"] or attrs["fn"] not in ("sum", "prod"):
        return None
    fn, dim = torch.cumsum if attrs["fn"] == "sum" else torch.cumprod, attrs["dim"]
    return lambda inputs, out: fn(inputs[0], dim, dtype=inputs[0].dtype, out=out[0])


def _take(attrs: Mapping[str, Any]) -> Write:
    import torch

    dim = attrs["dim"]

    def run(inputs: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        table, index = inputs
        shape = (*table.shape[:dim], index.numel(), *table.shape[dim + 1 :])
        torch.index_select(table, dim, index.reshape(-1), out=out[0].view(shape))

    return run


def _gather(attrs: Mapping[str, Any]) -> Write:
    import torch

    dim = attrs["dim"]
    return lambda inputs, out: torch.gather(inputs[0], dim, inputs[1], out=out[0])


def _scatter(attrs: Mapping[str, Any]) -> Write:
    """Copy the table there, then write into it."""
    fn, dim = attrs["fn"], attrs["dim"]
    reduce = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}.get(fn)

    def run(inputs: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        table, index, source = inputs
        out[0].copy_(table)
        if reduce is None:
            out[0].scatter_(dim, index, source)
        else:
            out[0].scatter_reduce_(dim, index, source, reduce)

    return run


WRITERS: Mapping[str, Callable[[Mapping[str, Any]], Write | None]] = {
    names.SORT: _sort,
    names.CONCAT: _concat,
    names.ARG_REDUCE: _arg_reduce,
    names.CUMULATIVE: _cumulative,
    names.TAKE: _take,
    names.GATHER: _gather,
    names.SCATTER: _scatter,
}


EXTERN = frozenset({
    "aten::kthvalue", "aten::mode", "aten::median.dim", "aten::nanmedian.dim",
    "aten::searchsorted.Tensor", "aten::bucketize.Tensor", "aten::mm", "aten::bmm", "aten::addmm",
    "aten::baddbmm", "aten::tril", "aten::triu", "aten::cross", "aten::renorm",
})  # fmt: skip
"""ATen ops whose variant with results given computes right there (others copy as we do).

None that calls LAPACK: of torch 2.13, ``linalg_qr.out`` writes beyond a Q that it is given.
"""


def _extern(attrs: Mapping[str, Any]) -> Write | None:
    target = attrs["target"]
    if target not in EXTERN or target == effects.TARGET:
        return None
    overload = _with_out(target)
    if overload is None:
        return None
    run, keywords_of = overload
    fill = calling(json.loads(attrs["arguments"]))

    def call(inputs: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> None:
        positional, keywords = fill(inputs)
        run(*positional, **keywords, **dict(zip(keywords_of, out, strict=True)))

    return call


def _with_out(target: str) -> tuple[Callable[..., Any], list[str]] | None:
    """Return the overload of an ATen op that is given its results, and their names."""
    plain: Any = own_op(target)
    if plain is None:
        return None
    own = [(a.name, str(a.type)) for a in plain._schema.arguments]
    packet = plain.overloadpacket
    # Not ``packet.__getattr__``: that makes another object of an overload and frees the one of
    # before, which torch's dispatcher goes on using without a reference to it.
    for each in (getattr(packet, name) for name in packet.overloads()):
        rest = [(a.name, str(a.type)) for a in each._schema.arguments if not a.is_out]
        out = [a.name for a in each._schema.arguments if a.is_out]
        if rest == own and len(out) == len(plain._schema.returns):
            return each, out
    return None

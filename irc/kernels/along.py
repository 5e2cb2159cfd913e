"""Ops along one dim become kernels of template ``along``: scans, sorts, scatters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.along import OUTPUTS, KernelAlongOp
from irc.dialects.flow import ExternOp, FlowOp, ShapeOp, id_of, loc_of, tensor
from irc.dialects.indexing import ScatterOp
from irc.dialects.literals import ConstantOp
from irc.dialects.scans import CumulativeOp
from irc.dialects.searches import SortOp, TopKOp
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.dialects.types import TensorType, is_float
from irc.kernels.holds import LIBRARY_DTYPES, shape_of
from irc.kernels.lower import Lowered
from irc.kernels.schedule import schedule
from irc.kernels.trace import GroupError, Stored
from irc.kernels.view import contiguous_strides

EXTERN: Mapping[str, str] = {
    "aten::cummax": "max", "aten::cummin": "min", "aten::logcumsumexp": "logaddexp",
}  # fmt: skip
"""Running values that are no ``flow.cumulative``: with positions, or of no linear function."""
MOST_SORTED = 1 << 20
"""Elements of a row that a kernel sorts; a longer one would need too much scratch memory."""


def is_along(op: Operation, target: str) -> bool:
    """True for an op along one dim that a kernel of the target computes; others run in torch.

    Not there: empty tensors, complex numbers, rows too long to sort, an index that covers a part
    of the other dims only.
    """
    if target != "cpu" or not isinstance(op, FlowOp) or not op.inputs:
        return False
    values = (*op.operands, *op.results)
    if not all(isinstance(v.type, TensorType) for v in values):
        return False
    kinds = [tensor(value) for value in values]
    if any(k.dtype in LIBRARY_DTYPES or not _is_known(k) for k in kinds):
        return False
    match op:
        case CumulativeOp():
            return kinds[0].dtype != "i1"
        case SortOp() | TopKOp():
            return shape_of(op.x)[op.dim] <= MOST_SORTED
        case ScatterOp():
            return _is_whole(op)
        case ExternOp():
            return _is_running(op)
        case _:
            return False


def _is_known(kind: TensorType) -> bool:
    return bool(kind.shape) and all(isinstance(n, int) and n > 0 for n in kind.shape)


def _is_whole(op: ScatterOp) -> bool:
    """True where each task has an index: the other dims of table and index are the same."""
    x, index, source = (shape_of(value) for value in op.inputs)
    dim, dtype = op.dim, tensor(op.x).dtype
    same = all(n == m or d == dim for d, (n, m) in enumerate(zip(x, index, strict=True)))
    covered = all(n <= m for n, m in zip(index, source, strict=True))
    return same and covered and (dtype != "i1" or op.fn == "set")


def _is_running(op: ExternOp) -> bool:
    (x, *_), name = op.inputs, op.target
    dtype = tensor(x).dtype
    if name not in EXTERN or dtype == "i1":
        return False
    return is_float(dtype) or EXTERN[name] != "logaddexp"


def along_kernel(op: FlowOp, source: Callable[[SSAValue], Stored]) -> Lowered:
    """Return the kernel of an op for which :func:`is_along` holds.

    Args:
        op: the op.
        source: where a value from outside lies.

    Raises:
        GroupError: with the operands that must be copied first.
    """
    work = _work_of(op)
    roles = [_read(role, value, work, source) for role, value in work.read.items()]
    roles += [_written(role, value, work) for role, value in work.written.items()]
    outer = [n for d, n in enumerate(work.shape) if d != work.dim]
    extents, moves = _joined(outer, [role.strides for role in roles])
    n = work.shape[work.dim]
    roots = list(dict.fromkeys(role.root for role in roles if role.name in work.read))
    sizes = {role.root: role.size for role in roles}
    kinds = [BufferType.of(sizes[v], tensor(v).dtype) for v in (*roots, *work.written.values())]
    block = Block(arg_types=kinds)
    buffers = dict(zip([*roots, *work.written.values()], block.args, strict=True))
    inner = KernelAlongOp.make(
        [buffers[role.root] for role in roles],
        [],
        loc=loc_of(op),
        id=id_of(op),
        roles=tuple(role.name for role in roles),
        offsets=tuple(role.offset for role in roles),
        strides=tuple(s for role, own in zip(roles, moves, strict=True) for s in (*own, role.step)),
        counts=tuple(role.count for role in roles),
        **work.attrs,
    )
    block.add_op(inner)
    space = (*extents, n)
    chosen = schedule("rows", space, len(extents), "cpu")
    kernel = KernelOp.make(
        work.name,
        block,
        template="along",
        space=space,
        parallel=len(extents),
        num_inputs=len(roots),
        mapping=chosen.mapping,
        sources=[id_of(op)],
        loc=loc_of(op),
    )
    kernel.attributes["loc"] = StringAttr(loc_of(op))
    return Lowered(kernel, tuple(roots))


@dataclass(frozen=True)
class _Work:
    """An op along a dim: what it reads and makes by role; ``shape`` is that of all tasks' steps."""

    name: str
    dim: int
    shape: tuple[int, ...]
    read: Mapping[str, SSAValue]
    written: Mapping[str, SSAValue]
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class _Role:
    """Where a role lies: one stride per outer dim, and the step along the dim."""

    name: str
    root: SSAValue
    size: int
    offset: int
    strides: tuple[int, ...]
    step: int
    count: int


def _work_of(op: FlowOp) -> _Work:
    x, *_ = op.inputs
    shape = shape_of(x)
    written: dict[str, SSAValue] = dict(zip(OUTPUTS, op.outputs, strict=False))
    match op:
        case CumulativeOp():
            flags = {"exclusive": op.exclusive, "reverse": op.reverse}
            kind = {"fn": "scan", "mode": op.fn, **flags}
            name = f"cumulative_{op.fn}"
            dim = op.dim
        case SortOp():
            kind = {"fn": "sort", "mode": "descending" if op.descending else "ascending"}
            name, dim = "sort", op.dim
        case TopKOp():
            kind = {"fn": "sort", "mode": "descending" if op.largest else "ascending"}
            name, dim = "top_k", op.dim
        case ScatterOp():
            return _scattering(op)
        case ExternOp():
            mode = EXTERN[op.target]
            positional, keywords = json.loads(op.arguments)
            dim = (positional[1] if len(positional) > 1 else keywords["dim"]) % len(shape)
            kind = {"fn": "scan", "mode": mode}
            name = f"cumulative_{mode}"
        case _:
            raise AssertionError(f"{op.name} is no op along a dim")
    return _Work(name, dim, shape, {"x": x}, written, kind)


def _scattering(op: ScatterOp) -> _Work:
    """A scatter; one into equal values does not read them."""
    x, index, source = op.x, op.index, op.source
    kind: dict[str, Any] = {"fn": "scatter", "mode": op.fn}
    read = {"x": x, "index": index, "source": source}
    literal = literal_of(x)
    if literal is not None:
        kind["fill"] = (float(literal) if is_float(tensor(x).dtype) else int(literal),)
        del read["x"]
    written = {"y": op.outputs[0]}
    return _Work(f"scatter_{op.fn}", op.dim, shape_of(index), read, written, kind)


def literal_of(value: SSAValue) -> float | int | None:
    """Return the number that all elements of a value are, None where that is not known."""
    while isinstance(op := value.owner, ShapeOp):
        value = op.x
    if not isinstance(op, ConstantOp) or len(op.value) != 1:
        return None
    return op.value[0]


def _read(name: str, value: SSAValue, work: _Work, source: Callable[[SSAValue], Stored]) -> _Role:
    root, view = source(value)
    if view.strides is None:
        raise GroupError(f"{name} of {work.name} does not lie evenly", [(value, ())])
    strides, count = view.strides, shape_of(value)[work.dim]
    if name == "source":
        count = work.shape[work.dim]
    outer = tuple(s for d, s in enumerate(strides) if d != work.dim)
    return _Role(name, root, view.size, view.offset, outer, strides[work.dim], count)


def _written(name: str, value: SSAValue, work: _Work) -> _Role:
    shape = shape_of(value)
    strides = contiguous_strides(shape)
    outer = tuple(s for d, s in enumerate(strides) if d != work.dim)
    return _Role(name, value, prod(shape), 0, outer, strides[work.dim], shape[work.dim])


def _joined(
    outer: Sequence[int], moves: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Drop dims of size 1 and join neighbours that every role walks as one; one dim stays.

    >>> _joined([2, 1, 3], [(12, 99, 4), (0, 99, 0)])
    ([6], [[4], [0]])
    """
    extents, kept = list[int](), list[list[int]]()
    for d, n in enumerate(outer):
        own = [strides[d] for strides in moves]
        if n == 1:
            continue
        if kept and all(before == s * n for before, s in zip(kept[-1], own, strict=True)):
            extents[-1], kept[-1] = extents[-1] * n, own
        else:
            extents.append(n)
            kept.append(own)
    if not kept:
        extents, kept = [1], [[0] * len(moves)]
    return extents, [list(role) for role in zip(*kept, strict=True)]

"""A kernel's body as plain steps over a loop nest with few, long dims.

Dims of size 1 are dropped; neighbours of one kind (parallel, reduced) that every access walks as
one are merged. A value is described by the dims that it varies over and by its stage: how many
reductions must be finished before it can be computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import cast

from xdsl.ir import SSAValue

from irc.dialects.task import (
    IndexOp,
    KernelBodyOp,
    KernelConstantOp,
    KernelContractOp,
    KernelOp,
    KernelPointwiseOp,
    KernelReduceOp,
    LoadOp,
    StoreOp,
    blocks_of,
    bound_rows,
)
from irc.dialects.task_types import BufferType
from irc.errors import InternalError
from irc.ops.functions import POINTWISE


@dataclass(frozen=True)
class Bound:
    """Only where ``0 <= start + sum(strides * indices) < size`` does a load touch memory."""

    size: int
    start: int
    strides: tuple[int, ...]

    @property
    def dims(self) -> frozenset[int]:
        """The dims that the position varies over."""
        return frozenset(d for d, stride in enumerate(self.strides) if stride)


@dataclass(frozen=True)
class Access:
    """Elements ``offset + sum(strides * indices)`` of a buffer.

    ``buffer`` counts kernel arguments; a negative one is a scratch row of the emitter. ``blocks``
    are triples (dim, size, stride inside a block), as ``task.load`` has them; outside one of its
    ``bounds`` a load gives ``fill``.
    """

    buffer: int
    dtype: str
    size: int
    offset: int
    strides: tuple[int, ...]
    index_strides: tuple[int, ...] = ()
    index_counts: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int, int], ...] = ()
    bounds: tuple[Bound, ...] = ()
    fill: float | int = 0

    @property
    def dims(self) -> frozenset[int]:
        """The dims that what is accessed varies over."""
        own = frozenset(d for d, stride in enumerate(self.strides) if stride)
        return own.union(*(bound.dims for bound in self.bounds))


@dataclass(frozen=True)
class Step:
    """One op of the body; operands and ``result`` are value numbers (result -1: a store)."""

    kind: str
    result: int
    operands: tuple[int, ...] = ()
    dtype: str = ""
    fn: str = ""
    access: Access | None = None
    literal: float | int = 0
    dim: int | None = None


@dataclass(frozen=True)
class Nest:
    """Steps over ``extents``, of which the first ``parallel`` are tasks.

    Extents, strides, offsets and sizes may have names (:mod:`irc.backends.cpu.loops.sizes`).
    """

    extents: tuple[int, ...]
    parallel: int
    steps: tuple[Step, ...]

    @property
    def reduced(self) -> frozenset[int]:
        """The dims that are reduced inside a task."""
        return frozenset(range(self.parallel, len(self.extents)))

    @property
    def accesses(self) -> list[Access]:
        """All loads and stores."""
        return [step.access for step in self.steps if step.access is not None]

    def producers(self) -> dict[int, Step]:
        """Return the step that makes each value."""
        return {step.result: step for step in self.steps if step.result >= 0}


@dataclass(frozen=True)
class Facts:
    """What is known of each value: the dims that it varies over, and its stage."""

    dims: dict[int, frozenset[int]]
    stage: dict[int, int]


def read(kernel: KernelOp) -> Nest:
    """Convert a kernel's body, dims as written."""
    numbers: dict[SSAValue, int] = {}
    steps: list[Step] = []
    for op in kernel.body.block.ops:
        if not isinstance(op, KernelBodyOp):
            raise InternalError(f"{op.name} stands in a kernel")
        result = -1
        if not isinstance(op, StoreOp):
            result = numbers[op.outputs[0]] = len(numbers)
        steps.append(_step(op, result, numbers))
    return Nest(cast("tuple[int, ...]", kernel.extents), kernel.num_parallel, tuple(steps))


def _step(op: KernelBodyOp, result: int, numbers: dict[SSAValue, int]) -> Step:
    if isinstance(op, StoreOp):
        access = _access(op)
        return Step("store", -1, (numbers[op.stored],), access.dtype, access=access)
    dtype = op.value.dtype
    if isinstance(op, LoadOp):
        access = _access(op)
        return Step("load", result, tuple(numbers[v] for v in op.indices), dtype, access=access)
    operands = tuple(numbers[v] for v in op.inputs)
    match op:
        case KernelConstantOp():
            return Step("constant", result, (), dtype, literal=op.literals[0])
        case IndexOp():
            return Step("index", result, (), dtype, dim=op.dim)
        case KernelPointwiseOp():
            return Step("pointwise", result, operands, dtype, op.fn)
        case KernelReduceOp():
            return Step("reduce", result, operands, dtype, op.fn)
        case KernelContractOp():
            return Step("contract", result, operands, dtype, "sum")
        case _:
            raise InternalError(f"the cpu backend does not know {op.name}")


def _access(op: LoadOp | StoreOp) -> Access:
    kind = op.buffer.type
    assert isinstance(kind, BufferType)
    load = op if isinstance(op, LoadOp) else None
    return Access(
        op.kernel.position(op.buffer),
        kind.dtype,
        cast("int", kind.elements),
        op.offset,
        op.strides,
        (load and load.index_strides) or (),
        (load and load.index_counts) or (),
        tuple((d, size, inner) for d, (size, inner) in blocks_of(op).items()),
        tuple(Bound(*row) for row in bound_rows((load and load.bounds) or (), len(op.strides))),
        ((load and load.fill) or (0,))[0],
    )


def simplify(nest: Nest) -> Nest:
    """Drop dims of size 1 and merge neighbours that are always walked together."""
    kept = [d for d, extent in enumerate(nest.extents) if extent != 1]
    nest = _project(nest, kept, {})
    while (d := _mergeable(nest)) is not None:
        kept = [e for e in range(len(nest.extents)) if e != d]
        nest = _project(nest, kept, {d + 1: nest.extents[d] * nest.extents[d + 1]})
    return nest


def _mergeable(nest: Nest) -> int | None:
    """Return a dim that is one with the next."""
    indexed = {step.dim for step in nest.steps if step.kind == "index"}
    indexed |= {d for access in nest.accesses for d, _, _ in access.blocks}
    for d in range(len(nest.extents) - 1):
        if d + 1 == nest.parallel or d in indexed or d + 1 in indexed:
            continue
        inner = nest.extents[d + 1]
        walks = [a.strides for a in nest.accesses]
        walks += [bound.strides for a in nest.accesses for bound in a.bounds]
        if all(strides[d] == strides[d + 1] * inner for strides in walks):
            return d
    return None


def _project(nest: Nest, kept: Sequence[int], extents: dict[int, int]) -> Nest:
    """Return the nest over some of its dims, with some extents changed."""
    place = {d: i for i, d in enumerate(kept)}

    def step(old: Step) -> Step:
        if old.kind == "index":
            assert old.dim is not None
            if old.dim not in place:
                return replace(old, kind="constant", literal=0, dim=None)
            return replace(old, dim=place[old.dim])
        if old.access is None:
            return old
        strides = tuple(old.access.strides[d] for d in kept)
        blocks = tuple((place[d], n, inner) for d, n, inner in old.access.blocks if d in place)
        bounds = tuple(
            replace(bound, strides=tuple(bound.strides[d] for d in kept))
            for bound in old.access.bounds
        )
        access = replace(old.access, strides=strides, blocks=blocks, bounds=bounds)
        return replace(old, access=access)

    return Nest(
        tuple(extents.get(d, nest.extents[d]) for d in kept),
        sum(d < nest.parallel for d in kept),
        tuple(map(step, nest.steps)),
    )


def analyse(nest: Nest) -> Facts:
    """Find the dims and the stage of each value."""
    dims: dict[int, frozenset[int]] = {}
    stage: dict[int, int] = {}
    for step in nest.steps:
        if step.result < 0:
            continue
        over = frozenset[int]().union(*(dims[v] for v in step.operands))
        ready = max((stage[v] for v in step.operands), default=0)
        if step.access is not None:
            over |= step.access.dims
        if step.dim is not None:
            over |= {step.dim}
        if step.kind in ("reduce", "contract"):
            over, ready = over - nest.reduced, ready + 1
        dims[step.result], stage[step.result] = over, ready
    return Facts(dims, stage)


def step_dims(step: Step, facts: Facts) -> frozenset[int]:
    """Return the dims that a step has to be run over."""
    if step.result >= 0 and step.kind not in ("reduce", "contract"):
        return facts.dims[step.result]
    over = frozenset[int]().union(*(facts.dims[v] for v in step.operands))
    if step.access is not None:
        over |= step.access.dims
    return over


def step_cost(step: Step, vector_dim: int | None) -> float:
    """Estimate the instructions for one vector of a step."""
    if step.access is not None:
        stride = 0 if vector_dim is None else step.access.strides[vector_dim]
        if step.access.index_strides or stride not in (0, 1):
            return 12.0
        return 2.0 if step.access.dtype in ("f16", "bf16") else 1.0
    if step.kind == "pointwise":
        return float(max(POINTWISE[step.fn].flops, 1 if step.fn != "copy" else 0))
    return 1.0 if step.kind in ("reduce", "contract") else 0.0


def points(nest: Nest) -> int:
    """Return the number of points of the space."""
    return prod(nest.extents)

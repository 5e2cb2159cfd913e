"""Fusion candidates: what an op would read, write and launch once pass ``fuse`` has run.

A search that prices every pointwise op as a kernel of its own sees several times the bytes that
move, and takes its plan from them. Groups form here on whole tensors, by the same judge that pass
``fuse`` asks later on what a rank holds (`irc.kernels.fusion.groups`); an op then pays for what
crosses the edge of its group, and one op of each group for the launch. Where a plan parts a group
by a boxing in its midst, the value is written and read after all: the search does not price that,
and the prediction of what it chose does (`irc.simulate.chosen_kernels`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import prod
from typing import TypeAlias

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import FlowOp
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.kernels.fusion.groups import Grouping, anchor, is_literal
from irc.kernels.holds import FREE_OPS, SHAPE_OPS
from irc.ops.work import Traffic

Traffics: TypeAlias = dict[Hashable, list[tuple[int, Traffic]]]
"""Of functions by what they compute: the traffic of ops by their places."""

NAMES = frozenset({"loc", "id"})
"""Attributes that say nothing of what is fused."""


def known_candidates(func: FuncOp, known: Traffics) -> Iterator[tuple[FlowOp, Traffic]]:
    """Yield what :func:`candidates` does, worked out once for all functions that compute the same.

    Args:
        func: its sizes are numbers.
        known: of functions before; filled in.
    """
    ops = list(func.body.block.ops)
    key = _form(func, ops)
    if key not in known:
        place = {op: i for i, op in enumerate(ops)}
        known[key] = [(place[op], traffic) for op, traffic in candidates(func)]
    for at, traffic in known[key]:
        op = ops[at]
        assert isinstance(op, FlowOp)
        yield op, traffic


def _form(func: FuncOp, ops: Sequence[Operation]) -> Hashable:
    """Return what a function computes, but for names: ops, types, and who reads whom."""
    number: dict[SSAValue, int] = {}
    for value in (*func.body.block.args, *(value for op in ops for value in op.results)):
        number[value] = len(number)
    said: list[Hashable] = [value.type for value in number]
    for op in ops:
        every = {**op.properties, **op.attributes}
        named = tuple((name, every[name]) for name in sorted(every) if name not in NAMES)
        said.append((op.name, named, tuple(number[value] for value in op.operands)))
    return tuple(said)


def candidates(func: FuncOp) -> Iterator[tuple[FlowOp, Traffic]]:
    """Yield the traffic of each op of a function that kernels compute; its sizes are numbers."""
    grouping = Grouping(func.body.block)
    for unit in grouping.units:
        if unit.kind == "library":
            continue
        members = grouping.members(unit.ops)
        written = set(grouping.outputs(members))
        yield from _traffic(grouping, members, written)
    for op in func.body.block.ops:
        if isinstance(op, FlowOp) and op.name in FREE_OPS and is_literal(op.outputs[0]):
            yield op, Traffic((), (0.0,), launches=False)


def _traffic(
    grouping: Grouping, members: Sequence[FlowOp], written: set[SSAValue]
) -> Iterator[tuple[FlowOp, Traffic]]:
    inside: set[Operation | object] = set(members)
    read: set[SSAValue] = set()
    launches = True
    for op in members:
        if op not in grouping.owner:
            continue
        reads: list[float] = []
        for value in op.inputs:
            root = anchor(value)
            if root in read or root.owner in inside:
                reads.append(0.0)
            else:
                reads.append(part_read(value, root))
                read.add(root)
        writes = tuple(float(value in written) for value in op.outputs)
        yield op, Traffic(tuple(reads), writes, launches)
        launches = False


def part_read(value: SSAValue, root: SSAValue) -> float:
    """Return how much of an operand's bytes are read from what it is a view of."""
    owner = value.owner
    if value is root or not (isinstance(owner, Operation) and owner.name in SHAPE_OPS):
        return 1.0
    return min(1.0, _num_bytes(root) / max(_num_bytes(value), 1))


def _num_bytes(value: SSAValue) -> int:
    kind = value.type
    assert isinstance(kind, TensorType)
    return prod(kind.static_shape()) * ITEM_BYTES[kind.dtype]

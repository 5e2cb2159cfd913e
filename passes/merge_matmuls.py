"""Pass ``merge-matmuls``: matmuls that read the same few rows become one, over joined weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import (
    ConcatOp,
    ContractOp,
    FlowOp,
    PointwiseOp,
    SliceOp,
    carry,
    id_of,
    tensor,
)
from irc.dialects.types import ITEM_BYTES
from irc.kernels.holds import require_static, shape_of
from irc.kernels.weights.fixed import Fixed
from irc.ops.infer import parse_spec

MOST_ROWS = 16
"""Rows above which a matmul is bound by arithmetic, which merging does not lessen."""
MOST_BYTES = 16 << 20
"""Bytes of joined weights: reading them takes a hundred times as long as the launches saved, and
the joined copy is kept beside the parameters."""


@dataclass(frozen=True)
class Sibling:
    """A matmul by fixed weights.

    Attributes:
        contract: the matmul.
        bias: the sum with a fixed vector that alone reads it, or None.
        dim: the dim of the weight that is the result's last.
    """

    contract: ContractOp
    bias: PointwiseOp | None
    dim: int

    @property
    def last(self) -> FlowOp:
        """What gives the value that others read."""
        return self.bias or self.contract


@dataclass(frozen=True)
class MergeMatmulsPass(ModulePass):
    """Join the weights of matmuls that read the same value: queries, keys and values of attention.

    A launch costs as much as reading some hundred kilobytes; with few rows (a decoder's token) that
    is a part of the whole. The weights are joined once, when they are loaded, as nothing else goes
    into the concatenation.

    Before:

    ```mlir
    func.func @forward(%x: !flow.tensor<[1, 8], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[4, 8], f32> {role = "parameter", name = "w"},
        %v: !flow.tensor<[2, 8], f32> {role = "parameter", name = "v"})
        -> (!flow.tensor<[1, 4], f32>, !flow.tensor<[1, 2], f32>) {
      %0 = flow.contract(%x, %w) {spec = "mk,nk->mn", loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[1, 8], f32>, !flow.tensor<[4, 8], f32>) -> !flow.tensor<[1, 4], f32>
      %1 = flow.contract(%x, %v) {spec = "mk,nk->mn", loc = "m.py:4", id = "n1"}
          : (!flow.tensor<[1, 8], f32>, !flow.tensor<[2, 8], f32>) -> !flow.tensor<[1, 2], f32>
      func.return %0, %1 : !flow.tensor<[1, 4], f32>, !flow.tensor<[1, 2], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%x: !flow.tensor<[1, 8], f32> {role = "input", name = "x"},
        %w: !flow.tensor<[4, 8], f32> {role = "parameter", name = "w"},
        %v: !flow.tensor<[2, 8], f32> {role = "parameter", name = "v"})
        -> (!flow.tensor<[1, 4], f32>, !flow.tensor<[1, 2], f32>) {
      %0 = flow.concat(%w, %v) {dim = 0 : i64, loc = "m.py:3", id = "n0.w"}
          : (!flow.tensor<[4, 8], f32>, !flow.tensor<[2, 8], f32>) -> !flow.tensor<[6, 8], f32>
      %1 = flow.contract(%x, %0) {spec = "mk,nk->mn", loc = "m.py:3", id = "n0.m"}
          : (!flow.tensor<[1, 8], f32>, !flow.tensor<[6, 8], f32>) -> !flow.tensor<[1, 6], f32>
      %2 = flow.slice(%1) {starts = array<i64: 0, 0>, stops = array<i64: -1, 4>,
          steps = array<i64: 1, 1>, loc = "m.py:3", id = "n0"}
          : (!flow.tensor<[1, 6], f32>) -> !flow.tensor<[1, 4], f32>
      %3 = flow.slice(%1) {starts = array<i64: 0, 4>, stops = array<i64: -1, 6>,
          steps = array<i64: 1, 1>, loc = "m.py:4", id = "n1"}
          : (!flow.tensor<[1, 6], f32>) -> !flow.tensor<[1, 2], f32>
      func.return %2, %3 : !flow.tensor<[1, 4], f32>, !flow.tensor<[1, 2], f32>
    }
    ```

    It declines with more than 16 rows (measured: no gain), with more than 16 MiB of weights, where
    weights change from call to call (training), and where a pointwise function that alone reads one
    of the results would lose its place behind the matmul (the gate of an MLP). With ``any_rows`` it
    declines with more than one row: the program is to be that of other numbers of rows too.
    """

    name = "merge-matmuls"
    level: ClassVar[str] = "spmd"

    any_rows: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fixed = Fixed(op)
        for func in op.body.block.ops:
            if isinstance(func, FuncOp) and not func.is_declaration:
                require_static(func)
                for group in _groups(func, fixed, 1 if self.any_rows else MOST_ROWS):
                    _merge(group)


def _groups(func: FuncOp, fixed: Fixed, most: int) -> list[list[Sibling]]:
    """Return the matmuls of a function that may be one, in program order."""
    by_key: dict[object, list[Sibling]] = {}
    position = {op: i for i, op in enumerate(func.body.block.ops)}
    for op in func.body.block.ops:
        if isinstance(op, ContractOp) and (sibling := _sibling(op, fixed, most)) is not None:
            x, w = op.inputs
            spec, biased = op.spec, sibling.bias is not None
            key = (x, spec, tensor(w).dtype, tensor(op.outputs[0]).dtype, biased)
            by_key.setdefault(key, []).append(sibling)
    groups = [[s for s in group if _is_early(s, group[0], position)] for group in by_key.values()]
    return [group for group in groups if len(group) > 1 and _bytes(group) <= MOST_BYTES]


def _sibling(op: ContractOp, fixed: Fixed, most: int) -> Sibling | None:
    """Return a matmul of few rows by a fixed matrix whose own letter comes last."""
    if len(op.inputs) != 2 or fixed(op.a) or not fixed(op.b):
        return None
    (a, b), result = parse_spec(op.spec)
    shape = shape_of(op.outputs[0])
    if len(b) != 2 or not result or result[-1] not in b or result[-1] in a:
        return None
    if prod(shape[:-1]) > most or 0 in shape or set(result[:-1]) & set(b):
        return None
    bias = _bias(op, fixed)
    readers = {use.operation for use in (bias or op).results[0].uses}
    if len(readers) == 1 and isinstance(next(iter(readers)), PointwiseOp):
        return None  # it would lose its epilogue
    return Sibling(op, bias, b.index(result[-1]))


def _bias(op: ContractOp, fixed: Fixed) -> PointwiseOp | None:
    """Return the sum with a fixed vector that alone reads a matmul."""
    users = [use.operation for use in op.outputs[0].uses]
    if len(users) != 1 or not isinstance(user := users[0], PointwiseOp):
        return None
    if user.fn != "add" or user.a is not op.outputs[0]:
        return None
    vector = user.b
    same = shape_of(vector) == shape_of(op.outputs[0])[-1:]
    return user if same and fixed(vector) and user.outputs[0].type == op.outputs[0].type else None


def _is_early(sibling: Sibling, first: Sibling, position: dict[Operation, int]) -> bool:
    """True where the weights are there before the first of the matmuls."""
    values = [sibling.contract.b, *((sibling.bias.b,) if sibling.bias else ())]
    owners = [value.owner for value in values if isinstance(value.owner, Operation)]
    return all(position[owner] < position[first.contract] for owner in owners)


def _bytes(group: Sequence[Sibling]) -> int:
    weights = [sibling.contract.b for sibling in group]
    return sum(prod(shape_of(w)) * ITEM_BYTES[tensor(w).dtype] for w in weights)


def _merge(group: Sequence[Sibling]) -> None:
    """Write one matmul in front of the first, and slices of it in the place of each."""
    first = group[0]
    block = first.contract.parent
    assert block is not None
    b = FlowBuilder(block, before=first.contract)
    name, x = id_of(first.contract), first.contract.a

    def make(cls: type[FlowOp], inputs: Sequence[SSAValue], suffix: str, **attrs: Any) -> SSAValue:
        (result,) = b.ops(cls, inputs, id=f"{name}.{suffix}", **attrs)
        assert isinstance(result.owner, FlowOp)
        result.owner.attributes["loc"] = first.contract.attributes["loc"]
        return result

    weights = [sibling.contract.b for sibling in group]
    joined = make(ConcatOp, weights, "w", dim=first.dim)
    y = make(ContractOp, [x, joined], "m", spec=first.contract.spec)
    if first.bias is not None:
        biases = [sibling.bias.b for sibling in group if sibling.bias is not None]
        y = make(PointwiseOp, [y, make(ConcatOp, biases, "b", dim=0)], "s", fn="add")
    rank, at = len(shape_of(y)), 0
    for sibling in group:
        old = sibling.last.outputs[0]
        width = shape_of(old)[-1]
        starts, stops = (*[0] * (rank - 1), at), (*[-1] * (rank - 1), at + width)
        (part,) = b.ops(SliceOp, [y], starts=starts, stops=stops, steps=(1,) * rank)
        assert isinstance(part.owner, FlowOp)
        carry(part.owner, sibling.last)
        if "sbp" in sibling.last.attributes:
            part.owner.attributes["sbp"] = sibling.last.attributes["sbp"]
        old.replace_all_uses_with(part)
        at += width
    for sibling in group:
        for op in (sibling.bias, sibling.contract):
            if op is not None:
                op.detach()
                op.erase()

"""What the backward pass keeps of the forward pass, and what it computes again: a minimum cut.

Every forward value that backward needs is *saved* (it lives from forward to backward), or computed
again from saved ones. As a graph: each value is a pair of nodes joined by an edge of its bytes,
ops that may run again join their operands to their results, and the cut of fewest bytes between
what cannot be made again and what backward reads is what to save (Chen et al. 2016,
arXiv:1604.06174; torch's min-cut partitioner). Of several such cuts it takes the one nearest to
backward, which computes least again.

What may run again is the policy's say (:mod:`irc.training.policies`); three kinds cost nothing and
always may: views and literals, casts to wider types, and pointwise functions of weights alone. A
pointwise op also may where only pointwise ops and reductions of backward read it: their kernels
compute it on the way, and nothing is written or read in between. So a GELU keeps its operand, a
dropout its mask in one byte, and a norm its operand and two numbers a row, whatever the captured
program computes between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from math import prod
from typing import Any, TypeAlias, cast

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.flow import FlowOp, PointwiseOp, ReduceOp, ShapeOp, id_of, phase_of, tensor
from irc.dialects.literals import ConstantOp, IotaOp, RandomOp
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.ops.derivative import stamp

Graph: TypeAlias = Any
"""A networkx.DiGraph, which has no types to speak of."""

LITERALS = (ConstantOp, IotaOp)
KERNELS = (PointwiseOp, ReduceOp)
"""Ops whose kernels compute pointwise operands on the way."""

UNBOUND = 128
"""Stands for a size that has no number yet, where bytes are compared."""

AGAIN = "recompute"
"""Attribute of an op that backward computes again: the policy that chose it."""


def is_forward(op: Operation) -> bool:
    """True for an op of the forward pass; an op that says nothing is one."""
    return phase_of(op) in ("", "forward")


def num_bytes(value: SSAValue) -> int:
    """Return the bytes of a value; a size without a number counts as ``UNBOUND``."""
    if not isinstance(value.type, TensorType):
        return 0
    sizes = (dim if isinstance(dim, int) else UNBOUND for dim in value.type.shape)
    return prod(sizes) * ITEM_BYTES[value.type.dtype]


class Saving:
    """One body that holds forward and backward ops, while it is decided what is saved.

    Args:
        block: the body; its backward ops stand after the forward ops that they read.
        fixed: arguments that are the same in every call: weights.
        held: arguments that are held anyway: weights, and inputs of the program.
        again: forward ops that the policy lets run again for any reader.
        policy: its name, for the ops that run again.
        fused_only: False lets pointwise ops run again for products too.
    """

    def __init__(
        self,
        block: Block,
        fixed: AbstractSet[SSAValue],
        held: AbstractSet[SSAValue],
        again: AbstractSet[Operation],
        policy: str,
        *,
        fused_only: bool = True,
    ) -> None:
        self._block, self._again, self._policy = block, again, policy
        self._held = {*fixed, *held}
        self._fused_only = fused_only
        ops = [op for op in block.ops if not isinstance(op, ReturnOp)]
        self.forward = [op for op in ops if is_forward(op)]
        self.backward = [op for op in ops if not is_forward(op)]
        self._place = {op: i for i, op in enumerate(self.forward)}
        self._fixed: set[SSAValue] = set(fixed)
        for op in self.forward:
            # What is drawn differs from call to call, though its seed is held anyway.
            if not isinstance(op, RandomOp) and all(value in self._fixed for value in op.operands):
                self._fixed.update(op.results)
        self._kept: set[SSAValue] = set()
        self._in_kernels: dict[Operation, bool] = {}

    def run(self) -> set[SSAValue]:
        """Compute again what need not be saved; return what is, weights apart."""
        needed = [v for op in self.backward for v in op.operands if self._is_forward(v)]
        for op in reversed(self.backward):
            self._in_kernels[op] = self._reads_in_kernel(op)
        for op in self.backward:
            if not self._in_kernels[op]:
                self._keep(v for v in op.operands if self._is_forward(v))
        needed = list(dict.fromkeys(needed))
        saved = self._cut(needed)
        self._compute_again(saved)
        return set(saved) - self._held

    def _is_forward(self, value: SSAValue) -> bool:
        return value.owner in self._place or isinstance(value.owner, Block)

    def _reads_in_kernel(self, op: Operation) -> bool:
        """True for an op whose kernel computes pointwise operands, itself or as a view in one."""
        if not isinstance(op, ShapeOp):
            return isinstance(op, KERNELS)
        users = [use.operation for value in op.results for use in value.uses]
        return all(self._in_kernels.get(user, False) for user in users)

    def _keep(self, values: Iterable[SSAValue]) -> None:
        """Let products and libraries of backward read values as they are."""
        pending = list(values)
        while pending:
            value = pending.pop()
            op = value.owner
            if value in self._kept or value in self._fixed or isinstance(op, Block):
                continue
            if self._is_free(op):
                pending += op.operands
            elif op not in self._again and self._fused_only:
                self._kept.add(value)

    def _is_free(self, op: Operation) -> bool:
        """True for an op that costs nothing to run again, whoever reads it."""
        if isinstance(op, (ShapeOp, *LITERALS)):
            return True
        if not isinstance(op, PointwiseOp):
            return False
        if all(value in self._fixed for value in op.operands):
            return True
        source, result = tensor(op.a), tensor(op.outputs[0])
        wider = ITEM_BYTES[source.dtype] <= ITEM_BYTES[result.dtype]
        return op.fn == "cast" and wider

    def _may_run_again(self, op: Operation) -> bool:
        return self._is_free(op) or isinstance(op, PointwiseOp) or op in self._again

    def _cut(self, needed: list[SSAValue]) -> list[SSAValue]:
        """Return the values of the cut of fewest bytes that is nearest to backward."""
        import networkx as nx

        graph: Graph = cast("Any", nx).DiGraph()
        graph.add_node("source")
        graph.add_node("sink")
        seen, pending = set(needed), list(needed)
        for value in needed:
            graph.add_edge((value, "out"), "sink")
        while pending:
            value = pending.pop()
            op = value.owner
            self._add_bytes(graph, value)
            if isinstance(op, Block) or value in self._kept or not self._may_run_again(op):
                graph.add_edge("source", (value, "in"))
                continue
            for operand in op.operands:
                graph.add_edge((operand, "out"), (value, "in"))
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        if not graph["source"]:
            return []
        late = _sink_side(graph)
        return [v for v in seen if (v, "in") not in late and (v, "out") in late]

    def _add_bytes(self, graph: Graph, value: SSAValue) -> None:
        """Join the two nodes of a value; a view is never saved, but what it shows."""
        op, ends = value.owner, ((value, "in"), (value, "out"))
        if isinstance(op, ShapeOp) and value not in self._kept:
            graph.add_edge(*ends)
        else:
            graph.add_edge(*ends, capacity=0 if value in self._held else num_bytes(value))

    def _compute_again(self, saved: Iterable[SSAValue]) -> None:
        """Put copies of what is not saved before their first readers in backward."""
        there = set(saved)
        copies: dict[SSAValue, SSAValue] = {}
        for op in self.backward:
            for origin in self._missing(op.operands, there, copies):
                copy = origin.clone(copies)
                assert isinstance(copy, FlowOp)
                copy.attributes["id"] = StringAttr(f"{id_of(origin)}.again")
                copy.attributes[AGAIN] = StringAttr(self._policy)
                self._block.insert_op_before(copy, op)
                copies.update(zip(origin.results, copy.results, strict=True))
                stamp(copy.results[0], "backward", "input")
            for i, value in enumerate(op.operands):
                if value in copies:
                    op.operands[i] = copies[value]

    def _missing(
        self,
        values: Iterable[SSAValue],
        there: set[SSAValue],
        copies: dict[SSAValue, SSAValue],
    ) -> list[Operation]:
        """Return the forward ops that must run again before some values can be read, in order."""
        missing: set[Operation] = set()
        pending = list(values)
        while pending:
            value = pending.pop()
            op = value.owner
            if value in there or value in copies or op not in self._place or op in missing:
                continue
            assert not isinstance(op, Block)
            missing.add(op)
            pending += op.operands
        return sorted(missing, key=lambda op: self._place[op])


def _sink_side(graph: Graph) -> set[object]:
    """Return the nodes that still reach the sink beside a maximal flow."""
    from networkx.algorithms import flow as flows

    residual: Graph = cast("Any", flows).preflow_push(graph, "source", "sink")
    reaching: set[object] = {"sink"}
    pending: list[object] = ["sink"]
    while pending:
        node = pending.pop()
        for before in _open_into(residual, node):
            if before not in reaching:
                reaching.add(before)
                pending.append(before)
    return reaching


def _open_into(residual: Graph, node: object) -> Iterator[object]:
    for before, edge in residual.pred[node].items():
        if edge["flow"] < edge["capacity"]:
            yield before

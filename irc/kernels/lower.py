"""From a nest to a ``task.kernel``: buffers, loads, body, stores, mapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, SSAValue

from irc.dialects.flow import tensor
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
)
from irc.dialects.task_types import BufferType, ValueType
from irc.dialects.types import number_in
from irc.kernels.holds import shape_of
from irc.kernels.loops import Loops, contract_operands, loops_of
from irc.kernels.nest import Nest
from irc.kernels.schedule import schedule
from irc.kernels.trace import Node


@dataclass(frozen=True)
class Lowered:
    """A kernel and what its launch gives it.

    Attributes:
        kernel: not yet in a module.
        operands: the contiguous tensors behind its input buffers.
    """

    kernel: KernelOp
    operands: tuple[SSAValue, ...]


def lower(
    nest: Nest,
    *,
    name: str,
    target: str,
    loc: str,
    sources: Sequence[str],
    any_rows: bool = False,
) -> Lowered:
    """Build the kernel of a nest.

    Args:
        nest: from :func:`irc.kernels.nest.nest_of`.
        name: the kernel's symbol.
        target: what the mapping is chosen for: ``cpu``, ``sm_80``, ``sm_90``.
        loc: the user's source line.
        sources: ids of the flow ops that the kernel computes.
        any_rows: as :func:`irc.kernels.loops.loops_of` has it.

    Raises:
        GroupError: where the operands of a matmul must be copied first.
    """
    body = _Body(nest, loops_of(nest, any_rows=any_rows))
    for node in body.order():
        body.emit(node)
    for index, (_, node, _) in enumerate(nest.outputs):
        body.store(node, index)
    space, parallel = body.loops.space, len(body.loops.parallel)
    template = "packed" if nest.is_packed else nest.template
    if nest.contract is not None and nest.contract.attrs.get("grouped"):
        template = "grouped"
    if any(node.attrs.get("outer") for node in nest.nodes):
        template = "outer"
    elif _has_windows(nest, body.loops):
        template = "convolution"
    chosen = schedule(template, space, parallel, target, _multiplied(nest), _beside(nest))
    kernel = KernelOp.make(
        name,
        body.block,
        template=template,
        space=space,
        parallel=parallel,
        num_inputs=len(body.operands),
        mapping=chosen.mapping,
        tile=dict(chosen.tile),
        sources=sources,
        loc=loc,
    )
    return Lowered(kernel, tuple(body.operands))


def _has_windows(nest: Nest, loops: Loops) -> bool:
    """True for a convolution that is no plain matmul: its windows move, overlap or cross a border.

    With one tap and stride 1 its places are rows of a matmul, and its channels what is summed.
    """
    contract = nest.contract
    if contract is None or not contract.attrs.get("windows"):
        return False
    image, weight = (nest.accesses[node] for node in contract.operands)
    places = [x for x in loops.parallel if x.stride(image) and not x.stride(weight)]
    return len(loops.reduced) > 1 or len(places) > 1 or bool(nest.bounds)


class _Body:
    """The block of a kernel while it is written."""

    def __init__(self, nest: Nest, loops: Loops) -> None:
        self.nest, self.loops = nest, loops
        loads = [node for node in self.order() if node.kind == "load"]
        self.operands = list(dict.fromkeys(n.stored[0] for n in loads if n.stored))
        sizes = [
            next(n.stored[1].size for n in loads if n.stored and n.stored[0] is root)
            for root in self.operands
        ]
        inputs = [
            BufferType.of(n, tensor(v).dtype) for n, v in zip(sizes, self.operands, strict=True)
        ]
        outputs = [BufferType.of(_count(v), tensor(v).dtype) for v, _, _ in nest.outputs]
        self.block = Block(arg_types=[*inputs, *outputs])
        self.buffers = dict(zip(self.operands, self.block.args, strict=False))
        self.values: dict[Node, SSAValue] = {}

    def order(self) -> list[Node]:
        """The nodes as they are computed; a matmul starts with its operands a, b."""
        if self.nest.template != "matmul" or self.nest.is_packed:
            return list(self.nest.nodes)
        contract = next(node for node in self.nest.nodes if node.kind == "contract")
        first = [*contract_operands(self.nest), contract]
        return first + [node for node in self.nest.nodes if node not in first]

    def add(
        self,
        op: type[KernelBodyOp],
        inputs: Sequence[SSAValue],
        dtype: str,
        node: Node,
        **attrs: object,
    ) -> SSAValue:
        """Append an op that gives a value."""
        kind = ValueType.of(dtype, full=node in self.nest.full)
        body_op = op.make(inputs, [kind], loc=node.loc, id=node.id, **attrs)
        self.block.add_op(body_op)
        return body_op.outputs[0]

    def emit(self, node: Node) -> None:
        """Append the ops of one node."""
        operands = [self.values[operand] for operand in node.operands]
        match node.kind:
            case "load":
                value = self._load(node, operands)
            case "constant":
                value = self._constant(node, node.attrs["value"], node.dtype)
            case "index":
                value = self._index(node)
            case "pointwise":
                value = self.add(KernelPointwiseOp, operands, node.dtype, node, fn=node.attrs["fn"])
            case "reduce":
                value = self.add(KernelReduceOp, operands, node.dtype, node, fn=node.attrs["fn"])
            case "contract":
                if not self.nest.is_packed:
                    operands = [self.values[operand] for operand in contract_operands(self.nest)]
                fill = node.attrs.get("fill")
                value = self.add(KernelContractOp, operands, node.dtype, node, fill=fill)
        self.values[node] = value

    def _load(self, node: Node, index: Sequence[SSAValue]) -> SSAValue:
        assert node.stored is not None
        access = self.nest.accesses[node]
        return self.add(
            LoadOp,
            [self.buffers[node.stored[0]], *index],
            node.dtype,
            node,
            offset=access.offset,
            strides=self.loops.strides(access, full=node in self.nest.full),
            index_strides=(node.attrs["index_stride"],) if index else None,
            index_counts=(node.attrs["index_count"],) if index else None,
            **self._bounds(node),
        )

    def _bounds(self, node: Node) -> dict[str, object]:
        """The attributes of a load that does not touch memory everywhere."""
        rows, full = self.nest.bounds.get(node, ()), node in self.nest.full
        if not rows:
            return {}
        strides = [(size, at.offset, *self.loops.strides(at, full=full)) for size, at in rows]
        flat = tuple(number for row in strides for number in row)
        return {"bounds": flat, "fill": (node.attrs["fill"],)}

    def _constant(self, node: Node, value: float, dtype: str) -> SSAValue:
        return self.add(KernelConstantOp, [], dtype, node, value=(number_in(value, dtype),))

    def _index(self, node: Node) -> SSAValue:
        """The sum of stride times position over the loops that the index follows."""
        total: SSAValue | None = None
        for dim, stride in enumerate(self.loops.strides(self.nest.accesses[node])):
            if stride == 0:
                continue
            term = self.add(IndexOp, [], "i64", node, dim=dim)
            if stride != 1:
                factor = self._constant(node, stride, "i64")
                term = self.add(KernelPointwiseOp, [term, factor], "i64", node, fn="mul")
            if total is not None:
                term = self.add(KernelPointwiseOp, [total, term], "i64", node, fn="add")
            total = term
        return total if total is not None else self._constant(node, 0, "i64")

    def store(self, node: Node, output: int) -> None:
        """Append the store of an output."""
        access = self.nest.outputs[output][2]
        op = StoreOp.make(
            [self.values[node], self.block.args[len(self.operands) + output]],
            [],
            loc=node.loc,
            offset=access.offset,
            strides=self.loops.strides(access, full=node in self.nest.full),
        )
        op.attributes["loc"] = StringAttr(node.loc)
        self.block.add_op(op)


def _multiplied(nest: Nest) -> str:
    """Return the dtype of a matmul's operands."""
    contract = next((node for node in nest.nodes if node.kind == "contract"), None)
    return "f32" if contract is None else contract.operands[0].dtype


def _beside(nest: Nest) -> int:
    """Return how many tensors of the size of a matmul's result its epilogue reads."""
    contract = next((node for node in nest.nodes if node.kind == "contract"), None)
    if contract is None:
        return 0
    loads = [n for n in nest.nodes if n.kind == "load" and n not in contract.operands]
    return sum(
        all(nest.accesses[node].strides.get(axis, 0) for axis in nest.tasks) for node in loads
    )


def _count(value: SSAValue) -> int:
    total = 1
    for size in shape_of(value):
        total *= size
    return total

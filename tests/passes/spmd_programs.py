"""Random programs of level spmd: blocks that are called, with collectives at their edges."""

from __future__ import annotations

import random
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.comm import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    CollectiveOp,
    PendingType,
    ReduceScatterOp,
    WaitOp,
)
from irc.dialects.flow import tensor
from irc.dialects.placement import Mesh, Placement
from irc.dialects.types import PlacementAttr, TensorType

SHAPES = ((6, 12), (12, 6, 2), (6,), (12,), (24, 6), ())


def random_program(seed: int, mesh: str = "data=2,tensor=3") -> ModuleOp:
    """Return a verified module: an entry that calls two blocks, three times each at most.

    The second is an optimizer's update, with collectives in its middle.
    """
    draw = random.Random(seed)
    writer = _Writer(draw, Mesh.parse(mesh))
    blocks = [writer.block(f"block_{i}") for i in range(2)]
    module = ModuleOp([*blocks, writer.entry(blocks)])
    module.attributes["irc.mesh"] = StringAttr(mesh)
    module.verify()
    return module


class _Writer:
    def __init__(self, draw: random.Random, mesh: Mesh) -> None:
        self.draw, self.mesh = draw, mesh
        self.whole = PlacementAttr(Placement.replicated(mesh.names))

    def block(self, name: str) -> FuncOp:
        shapes = [self.draw.choice(SHAPES) for _ in range(self.draw.randint(2, 4))]
        block = Block(arg_types=[TensorType.of(shape) for shape in shapes])
        b = FlowBuilder(block, f"{name}_n")
        b.loc = "m.py:1"
        values = [self.maybe(b, v, 0.7) for v in block.args]
        values = [self.local(b, v) for v in values]
        if name == "block_1":
            values = [self.local(b, self.maybe(b, v, 0.5)) for v in values]
            values[0] = self.sum(b, values)
        values = [self.maybe(b, v, 0.5) for v in values]
        return finish_function(name, block, values)

    def entry(self, blocks: list[FuncOp]) -> FuncOp:
        block = Block()
        b = FlowBuilder(block, "n")
        b.loc = "m.py:2"
        values: list[SSAValue] = []
        for _ in range(self.draw.randint(1, 3)):
            for func in blocks:
                inputs = [
                    self.operand(b, block, kind, values) for kind in func.function_type.inputs
                ]
                outputs = b.call(func.sym_name.data, inputs, [*func.function_type.outputs])
                if func is blocks[1]:
                    outputs[0].owner.attributes["phase"] = StringAttr("step")  # type: ignore[union-attr]
                values += [self.maybe(b, v, 0.4) for v in outputs]
                if self.draw.random() < 0.5:
                    values.append(self.local(b, self.draw.choice(values)))
        return finish_function("forward", block, values)

    def operand(
        self, b: FlowBuilder, block: Block, kind: object, values: list[SSAValue]
    ) -> SSAValue:
        same = [value for value in values if value.type == kind]
        if same and self.draw.random() < 0.7:
            return self.draw.choice(same)
        assert isinstance(kind, TensorType)
        return block.insert_arg(kind, len(block.args))

    def sum(self, b: FlowBuilder, values: list[SSAValue]) -> SSAValue:
        """Add up those that are alike: what is behind one collective meets what is not."""
        total = values[0]
        for value in values[1:]:
            if value.type == total.type:
                total = b.pointwise("add", total, value)
        return total

    def local(self, b: FlowBuilder, value: SSAValue) -> SSAValue:
        return b.pointwise(self.draw.choice(("neg", "sin")), value)

    def maybe(self, b: FlowBuilder, value: SSAValue, part: float) -> SSAValue:
        while self.draw.random() < part:
            value = self.collective(b, value)
            part /= 2
        return value

    def collective(self, b: FlowBuilder, value: SSAValue) -> SSAValue:
        shape, axis = tensor(value).static_shape(), self.draw.choice(self.mesh.names)
        size = self.mesh.size(axis)
        dims = [d for d, n in enumerate(shape) if n % size == 0]
        kinds: list[type[CollectiveOp]] = [AllReduceOp]
        kinds += [AllGatherOp] if shape else []
        kinds += [ReduceScatterOp, AllToAllOp] if dims else []
        cls = self.draw.choice(kinds)
        result_shape, attrs = list(shape), dict[str, Any](axis=axis)
        if cls in (AllReduceOp, ReduceScatterOp):
            attrs["fn"] = self.draw.choice(("sum", "sum", "max"))
        if cls is AllGatherOp:
            attrs["dim"] = self.draw.randrange(len(shape))
            result_shape[attrs["dim"]] *= size
        elif cls is ReduceScatterOp:
            attrs["dim"] = self.draw.choice(dims)
            result_shape[attrs["dim"]] //= size
        elif cls is AllToAllOp:
            attrs["split_dim"] = self.draw.choice(dims)
            attrs["concat_dim"] = self.draw.randrange(len(shape))
            result_shape[attrs["split_dim"]] //= size
            result_shape[attrs["concat_dim"]] *= size
        kind = TensorType.of(result_shape)
        (pending,) = b.ops(cls, [value], results=[PendingType(kind)], **attrs)
        (result,) = b.ops(WaitOp, [pending], results=[kind])
        for each in (pending, result):
            each.owner.attributes["sbp"] = ArrayAttr([self.whole])  # type: ignore[union-attr]
        return result

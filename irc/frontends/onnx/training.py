"""``Gradient`` of ``ai.onnx.preview.training``: derivatives of a value of the same graph.

The nodes between the named inputs and the output are converted once more, on the operands, and
swept backwards (:mod:`irc.training.sweep`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from xdsl.dialects.func import CallOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import FlowOp, tensor
from irc.frontends.onnx.control import run_graph
from irc.frontends.onnx.elementwise import Converter
from irc.frontends.onnx.node import Blocked, Node, Unsupported, Value
from irc.training.sweep import Gradients, Sweep


def convert_gradient(node: Node) -> list[Value]:
    """Return the gradient of ``y`` with respect to each of ``xs``."""
    names = [*node.attr("xs"), *(node.attr("zs") or [])]
    operands = node.values()
    if len(operands) != len(names):
        raise Unsupported(f"{len(operands)} operands for {len(names)} names")
    body = between(node.owner.source.model.graph, names, node.attr("y"))
    block = Block(arg_types=[value.type for value in operands])
    outer, node.owner.b = node.owner.b, FlowBuilder(block, f"d{node.owner.fresh()}.")
    node.owner.b.loc = outer.loc
    try:
        (y,) = run_graph(node, body, [Value.of(arg) for arg in block.args], "gradient")
        gradients = swept(node, block, node.owner.ssa(y), len(node.attr("xs")))
    finally:
        node.owner.b = outer
    move(node, block, operands)
    return [Value.of(operands[block.args.index(v)] if v in block.args else v) for v in gradients]


def swept(node: Node, block: Block, y: SSAValue, count: int) -> list[SSAValue]:
    """Append the backward ops and return the gradients of the first arguments."""
    b, kind = node.b, tensor(y)
    wanted = list(block.args[:count])
    sweep = Sweep(block, wanted, (), node.owner.errors, no_calls)
    seed = b.broadcast(b.scalar(1.0, kind.dtype), kind.shape)
    sweep.run({y: seed})
    results: list[SSAValue] = []
    for value in wanted:
        gradient = sweep.gradient(value)
        shape, dtype = tensor(value).shape, tensor(value).dtype
        zero = b.broadcast(b.scalar(0.0, dtype), shape) if gradient is None else gradient
        results.append(zero)
    return results


def no_calls(op: CallOp, incoming: Gradients, sweep: Sweep) -> Gradients:
    """Refuse calls: the importer makes none."""
    raise Blocked(f"a call of {op.callee.string_value()} inside a gradient")


def move(node: Node, block: Block, operands: Sequence[SSAValue]) -> None:
    """Move the ops of a block to the end of the program, its arguments replaced."""
    for argument, value in zip(block.args, operands, strict=True):
        argument.replace_all_uses_with(value)
    for op in list(block.ops):
        op.detach()
        if isinstance(op, FlowOp):
            op.attributes.pop("phase", None)
            op.attributes.pop("grad", None)
        node.owner.block.add_op(op)


def between(graph: onnx.GraphProto, inputs: Sequence[str], wanted: str) -> onnx.GraphProto:
    """Return the part of a graph that computes one value from others.

    Raises:
        Unsupported: where no node makes the value.
    """
    needed, kept = {wanted}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if needed.intersection(node.output).difference(inputs):
            kept.append(node)
            needed.update(name for name in node.input if name not in inputs)
    if not kept:
        raise Unsupported(f"a gradient of '{wanted}', which no node makes")
    part = onnx.GraphProto(node=kept[::-1])
    part.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
    part.output.append(onnx.ValueInfoProto(name=wanted))
    return part


CONVERTERS: Mapping[str, Converter] = {"ai.onnx.preview.training::Gradient": convert_gradient}

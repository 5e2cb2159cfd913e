"""Nodes that have no flow form run as they are: `flow.extern` of `irc.runtime.onnx_ops`.

Results whose size or kind is known only then have fresh size names, or are opaque: sequences,
strings, element types that flow lacks.
"""

from __future__ import annotations

import json

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue

from irc.dialects.flow import ExternOp
from irc.dialects.types import OpaqueType, TensorType
from irc.frontends.onnx.bodies import Encoder
from irc.frontends.onnx.node import Node, Value
from irc.frontends.onnx.result_types import flow_type, fresh_names, inferred
from irc.runtime.onnx_ops.run import PREFIX, kernels, key_of


def runs(node: Node) -> bool:
    """True where the runtime has a kernel for the node."""
    return key_of(node.proto.op_type, node.proto.domain) in kernels()


def at_run(node: Node, *, static: bool) -> list[Value] | None:
    """Append a node as a library op and return its results.

    Args:
        node: the node.
        static: only where every result is a tensor whose sizes are known before it runs.

    Returns:
        None where ``static`` cannot be kept.
    """
    kinds = inferred(node)
    types = [flow_type(node, kind) for kind in kinds]
    fresh = fresh_names(types, node)
    if static and (fresh or not all(isinstance(kind, TensorType) for kind in types)):
        return None
    operands: list[SSAValue] = []
    positions: list[dict[str, int] | None] = []
    for value in node.inputs:
        positions.append(None if value is None else {"operand": len(operands)})
        operands += [] if value is None else [node.owner.ssa(value)]
    encoder = Encoder(node, operands)
    options = {
        "version": node.owner.version_of(node.proto.domain),
        "attributes": encoder.attributes(node.proto),
        "captures": encoder.captures,
    }
    key = key_of(node.proto.op_type, node.proto.domain)
    found = append(node, key, operands, positions, options, types)
    for name in fresh:
        node.owner.backed_by[name] = found[0]
    return [
        Value.of(ssa, kind=kind if isinstance(ssa.type, OpaqueType) else None)
        for ssa, kind in zip(found, kinds, strict=True)
    ]


def append(
    node: Node,
    key: str,
    operands: list[SSAValue],
    positions: list[dict[str, int] | None],
    options: dict[str, object],
    types: list[Attribute],
) -> list[SSAValue]:
    """Append a library op by the name of its kernel."""
    text = json.dumps([positions, options], sort_keys=True, allow_nan=False)
    return node.b.ops(
        ExternOp, operands, results=types, target=PREFIX + key, arguments=StringAttr(text)
    )

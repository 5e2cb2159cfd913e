"""Nodes that have no flow form run as they are: `flow.extern` of `irc.runtime.onnx_ops`.

Results whose size or kind is known only then have fresh size names, or are opaque: sequences,
strings, element types that flow lacks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from onnx import TypeProto
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import VerifyException

from irc.dialects.flow import ExternOp
from irc.dialects.size import UnboundSizeError
from irc.dialects.types import OpaqueType, TensorType
from irc.errors import IrcError
from irc.frontends.onnx.bodies import Encoder
from irc.frontends.onnx.node import OPAQUE, NeedsSize, Node, Value, size_names
from irc.frontends.onnx.read import DOMAINS
from irc.frontends.onnx.result_types import flow_type, fresh_names, inferred
from irc.ops.infer import ShapeError
from irc.runtime.onnx_ops.run import PREFIX, kernels, key_of

CONTROL = frozenset({"If", "Loop", "Scan"})
"""Ops whose bodies become functions, where the importer makes any."""


def runs(node: Node) -> bool:
    """True where the runtime has a kernel for the node."""
    return key_of(node.proto.op_type, node.proto.domain) in kernels()


def left_to_library(node: Node, error: Exception) -> Sequence[Value] | None:
    """Leave a node that was not converted to the library, or return None.

    A node that does not fit its operands is an error of the model, unless sizes or kinds that
    only the run knows are among them. A named size of an input is the user's to give.
    """
    owner = node.owner
    names = size_names([d for v in node.inputs if v is not None for d in v.shape])
    loose = not names.isdisjoint(owner.backed_by) or any(
        v is not None and v.dtype == OPAQUE for v in node.inputs
    )
    if isinstance(error, IrcError) and error.code != "op-unsupported":
        return None
    if owner.control is not None and node.kind in CONTROL and node.proto.domain in DOMAINS:
        results = owner.control(node)
        owner.library_nodes += 1
        return results
    if isinstance(error, NeedsSize | UnboundSizeError) and not (
        owner.dynamic and not error.names.isdisjoint(owner.backed_by)
    ):
        return None
    if isinstance(error, ShapeError | VerifyException) and not (loose and owner.dynamic):
        return None
    if not runs(node):
        return None
    results = at_run(node, static=not owner.dynamic)
    owner.library_nodes += results is not None
    return results


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
    attributes = encoder.attributes(node.proto)
    if node.kind in ("Loop", "Scan"):
        attributes["empty"] = [no_rows(kind) for kind in kinds]
    options: dict[str, object] = {
        "version": node.version,
        "attributes": attributes,
        "captures": encoder.captures,
    }
    key = key_of(node.proto.op_type, node.proto.domain)
    results = append(node, key, operands, positions, options, types)
    for name in fresh:
        node.owner.backed_by[name] = results[0]
    return [
        Value.of(ssa, kind=kind if isinstance(ssa.type, OpaqueType) else None)
        for ssa, kind in zip(results, kinds, strict=True)
    ]


def no_rows(kind: TypeProto | None) -> dict[str, object] | None:
    """Return the form of a result that no trip of a loop added to: of 0 rows, or None."""
    if kind is None or not kind.HasField("tensor_type"):
        return None
    dims = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.tensor_type.shape.dim]
    return {"element": kind.tensor_type.elem_type or 1, "shape": [0, *dims[1:]], "data": ""}


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

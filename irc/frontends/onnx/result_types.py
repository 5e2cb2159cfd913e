"""What a node gives, by the type inference of onnx: for nodes that run as library ops."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference
from onnx import TypeProto, helper, numpy_helper
from xdsl.ir import Attribute

from irc.dialects.size import Dim, Size, symbol
from irc.dialects.types import OpaqueType, TensorType
from irc.frontends.onnx.external import DTYPES
from irc.frontends.onnx.node import Node, Value, size_names

ELEMENTS = {name: number for number, name in DTYPES.items()}
MAX_KNOWN = 1 << 14

FAILURES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError,
    TypeError, ValueError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError,
)  # fmt: skip
"""What Python, numpy, torch and onnx raise for values that they cannot work with."""


def inferred(node: Node) -> list[TypeProto | None]:
    """Return the type of each result; None where onnx cannot say."""
    types: dict[str, TypeProto] = {}
    # Where onnx cannot say, the run does.
    with suppress(*FAILURES):
        types = _infer(node)
    return [types.get(name) for name in node.proto.output]


def refusal(node: Node) -> str:
    """Return why type inference refuses a node; empty where it does not."""
    try:
        _infer(node)
    except FAILURES as error:
        text = str(error).strip()
        return text.partition("\n")[0] or type(error).__name__
    return ""


def _infer(node: Node) -> dict[str, TypeProto]:
    proto, version = node.proto, node.version
    if not onnx.defs.has(proto.op_type, version, domain=proto.domain):
        return {}
    schema = onnx.defs.get_schema(proto.op_type, version, domain=proto.domain)
    types: dict[str, TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for name, value in zip(proto.input, node.inputs, strict=True):
        if value is not None and (kind := type_of(value)) is not None:
            types[name] = kind
            if value.known is not None and value.known.dtype != object and small(value.known):
                data[name] = numpy_helper.from_array(np.ascontiguousarray(value.known), name)
    return onnx.shape_inference.infer_node_outputs(
        schema, _with_defaults(proto, schema), types, data, opset_imports=opsets(node)
    )


def _with_defaults(proto: onnx.NodeProto, schema: onnx.defs.OpSchema) -> onnx.NodeProto:
    """Write out attributes that are left to their defaults: inference may take others (STFT)."""
    completed, stated = onnx.NodeProto(), {attribute.name for attribute in proto.attribute}
    completed.CopyFrom(proto)
    completed.attribute.extend(
        attribute.default_value
        for name, attribute in schema.attributes.items()
        if name not in stated and attribute.default_value.name
    )
    return completed


def opsets(node: Node) -> list[onnx.OperatorSetIdProto]:
    """Return the model's opsets, that of the node's own domain as the node is read."""
    others = [o for o in node.owner.source.model.opset_import if o.domain != node.proto.domain]
    return [*others, helper.make_opsetid(node.proto.domain, node.version)]


def small(array: np.ndarray) -> bool:
    """True for constants that a shape may depend on."""
    return array.size <= MAX_KNOWN


def type_of(value: Value) -> TypeProto | None:
    """Return the ONNX type of a value, as far as it is known."""
    if value.dtype == "opaque":
        return value.kind
    kind = TypeProto()
    kind.tensor_type.elem_type = ELEMENTS[value.dtype]
    kind.tensor_type.shape.SetInParent()
    for dim in value.shape:
        place = kind.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            place.dim_value = dim
        elif dim == symbol(str(dim)) if str(dim).isidentifier() else False:
            place.dim_param = str(dim)
    return kind


def flow_type(node: Node, kind: TypeProto | None) -> Attribute:
    """Return the flow type of a result; sizes that are known only when it runs get fresh names."""
    if kind is None or not kind.HasField("tensor_type"):
        return OpaqueType()
    tensor = kind.tensor_type
    if tensor.elem_type not in DTYPES or not tensor.HasField("shape"):
        return OpaqueType()
    known = size_names([d for v in node.inputs if v is not None for d in v.shape])
    return TensorType.of([_dim(node, d, known) for d in tensor.shape.dim], DTYPES[tensor.elem_type])


def _dim(node: Node, dim: onnx.TensorShapeProto.Dimension, known: frozenset[str]) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    if dim.dim_param in known:
        return symbol(dim.dim_param)
    return node.owner.unbacked(node.kind)


def fresh_names(types: Sequence[Attribute], node: Node) -> frozenset[str]:
    """Return the names in these types that no operand has."""
    sizes = [d for kind in types if isinstance(kind, TensorType) for d in kind.shape]
    operand_sizes = [d for v in node.inputs if v is not None for d in v.shape]
    return size_names([d for d in sizes if isinstance(d, Size)]) - size_names(operand_sizes)

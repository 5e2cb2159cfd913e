"""Stored tensors of element types that flow lacks: bytes in the program, the type at run time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TypeProto
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp
from irc.dialects.types import OpaqueType
from irc.frontends.onnx.external import to_any_array
from irc.frontends.onnx.node import OPAQUE, Value
from irc.frontends.onnx.read import Source
from irc.ops import names
from irc.runtime.onnx_ops.run import PREFIX
from irc.runtime.onnx_ops.values import to_literal

if TYPE_CHECKING:
    from irc.frontends.onnx.arguments import FunctionValues

MAX_LITERAL_BYTES = 1024
VERSION = 1
"""Constants mean the same in every opset."""


def opaque_value(tensor: onnx.TensorProto, source: Source) -> Value:
    """Return a stored tensor of any element type as an opaque value."""
    kind = TypeProto()
    kind.tensor_type.elem_type = tensor.data_type
    for size in tensor.dims:
        kind.tensor_type.shape.dim.add().dim_value = size
    kind.tensor_type.shape.SetInParent()
    array = to_any_array(tensor, source)
    return Value((), OPAQUE, known=array, role="parameter", name=tensor.name, kind=kind)


def stored_opaque(owner: FunctionValues, value: Value) -> SSAValue:
    """Append what gives the numbers of an opaque value: a literal, or a view of stored bytes."""
    array = value.known
    assert array is not None and value.kind is not None
    operands: list[SSAValue] = []
    if array.dtype == object or array.nbytes <= MAX_LITERAL_BYTES:
        key, attributes = "Constant", {"value": to_literal(array)}
    else:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        operands = [owner.argument("parameter", value.name, data, "u8")]
        element = value.kind.tensor_type.elem_type
        key, attributes = names.VIEW, {"element": element, "shape": list(array.shape)}
    positions = [{"operand": index} for index in range(len(operands))]
    options = {"version": VERSION, "attributes": attributes}
    text = json.dumps([positions, options], sort_keys=True)
    (stored,) = owner.b.ops(
        ExternOp, operands, results=[OpaqueType()], target=PREFIX + key, arguments=StringAttr(text)
    )
    return stored

"""What goes in and out of a model: types as text, and a caller's arrays as the program's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, TensorShapeProto, TypeProto, numpy_helper

from irc.errors import IrcError
from irc.runtime.onnx_ops.values import ELEMENTS, as_item, strings

NAMES: Mapping[int, str] = {
    TensorProto.FLOAT: "float", TensorProto.DOUBLE: "double", TensorProto.FLOAT16: "float16",
}  # fmt: skip
"""Element types whose name in ONNX Runtime's type text is not that of the enumeration."""


def type_text(kind: TypeProto) -> str:
    """Return a type as ONNX Runtime writes it.

    >>> kind = onnx.helper.make_tensor_type_proto(1, [2])
    >>> type_text(kind), type_text(onnx.helper.make_sequence_type_proto(kind))
    ('tensor(float)', 'seq(tensor(float))')
    """
    match kind.WhichOneof("value"):
        case "tensor_type":
            return f"tensor({element_text(kind.tensor_type.elem_type)})"
        case "sequence_type":
            return f"seq({type_text(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({type_text(kind.optional_type.elem_type)})"
        case "map_type":
            key = element_text(kind.map_type.key_type)
            return f"map({key},{type_text(kind.map_type.value_type)})"
        case "sparse_tensor_type":
            return f"sparse_tensor({element_text(kind.sparse_tensor_type.elem_type)})"
        case _:
            return "unknown"


def element_text(element: int) -> str:
    """Return an element type as ONNX Runtime writes it."""
    return NAMES.get(element) or TensorProto.DataType.Name(element).lower()


def shape_of(kind: TypeProto) -> list[int | str | None] | None:
    """Return the sizes of a tensor type: numbers, names, None where it has neither.

    None for what has no shape.
    """
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    # Some exporters write -1 for a size that is not known.
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or None
        for d in tensor.shape.dim
    ]


def to_value(value: Any, kind: TypeProto, name: str) -> Any:
    """Return what a caller gives as an array, a list or None.

    Raises:
        IrcError: ``input-mismatch`` where it is not of the type that the model states.
    """
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    match kind.WhichOneof("value"):
        case "optional_type":
            return None if value is None else to_value(value, kind.optional_type.elem_type, name)
        case "sequence_type":
            if isinstance(value, list | tuple):
                items: list[Any] = [*value]
                return [to_value(each, kind.sequence_type.elem_type, name) for each in items]
        case "tensor_type":
            return _tensor(value, kind, name)
        case _:
            return as_item(value)
    raise _mismatch(name, kind, type(value).__name__)


def _tensor(value: Any, kind: TypeProto, name: str) -> np.ndarray:
    wanted = ELEMENTS.get(kind.tensor_type.elem_type)
    array = as_item(value) if hasattr(value, "detach") else np.asarray(value)
    if wanted is not None and isinstance(value, list | tuple) and wanted.kind != "O":
        # Numbers of Python have no type of their own.
        array = array.astype(wanted) if _holds(array, wanted) else array
    if wanted is not None and wanted.kind == "O" and array.dtype.kind in "US":
        flat = [t.decode() if isinstance(t, bytes) else t for t in array.reshape(-1).tolist()]
        array = strings(flat, array.shape)
    if array.dtype != wanted:
        raise _mismatch(name, kind, f"of {array.dtype}")
    sizes = shape_of(kind)
    fits = sizes is None or (
        len(sizes) == array.ndim
        and all(not isinstance(d, int) or d == n for d, n in zip(sizes, array.shape, strict=True))
    )
    if not fits:
        raise _mismatch(name, kind, f"of shape {list(array.shape)}")
    return array


def _holds(array: np.ndarray, wanted: np.dtype) -> bool:
    """True where a type can hold numbers of another: whole ones any, others a float."""
    if array.dtype.kind in "iu" and wanted.kind in "iu" and array.size:
        limits = np.iinfo(wanted)
        return limits.min <= array.min() and array.max() <= limits.max
    return array.dtype.kind in "bif" and (wanted.kind == "f" or array.dtype.kind == wanted.kind)


def _mismatch(name: str, kind: TypeProto, actual: str) -> IrcError:
    shape = shape_of(kind)
    stated = type_text(kind) + ("" if shape is None else f" {shape}")
    return IrcError("input-mismatch", f"input '{name}' is {actual}; the model takes {stated}")


def specialised(
    graph_inputs: Sequence[onnx.ValueInfoProto], arrays: Mapping[str, Any]
) -> list[onnx.ValueInfoProto]:
    """Return the types of inputs with the shapes of one call."""

    def with_shape(name: str, shape: TensorShapeProto) -> None:
        if name in arrays:
            del shape.dim[:]
            shape.SetInParent()  # a scalar has a shape, which has no dims
            for size in arrays[name].shape:
                shape.dim.add().dim_value = size

    return _changed(graph_inputs, with_shape)


def with_numbers_for(
    graph_inputs: Sequence[onnx.ValueInfoProto], sizes: Mapping[str, int]
) -> list[onnx.ValueInfoProto]:
    """Return the types of inputs with numbers for some of their named sizes."""

    def with_numbers(_: str, shape: TensorShapeProto) -> None:
        for dim in shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]

    return _changed(graph_inputs, with_numbers)


def _changed(
    graph_inputs: Sequence[onnx.ValueInfoProto], change: Callable[[str, TensorShapeProto], None]
) -> list[onnx.ValueInfoProto]:
    """Return copies of inputs; of tensors, with what ``change`` makes of the shape."""
    copies: list[onnx.ValueInfoProto] = []
    for value in graph_inputs:
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(value)
        if value.type.HasField("tensor_type"):
            change(value.name, copy.type.tensor_type.shape)
        copies.append(copy)
    return copies

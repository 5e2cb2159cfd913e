"""Inputs and outputs of the program under construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx
from xdsl.ir import SSAValue

from irc.dialects.size import Dim, Size
from irc.dialects.types import OpaqueType, TensorType
from irc.errors import IrcError, printable
from irc.frontends.onnx.external import DTYPES, NUMPY_NAMES, dtype_of
from irc.frontends.onnx.node import Unsupported, Value

if TYPE_CHECKING:
    from irc.frontends.onnx.importer import Importer
    from irc.frontends.onnx.sizes import SizeTable


def input_value(owner: Importer, formal: onnx.ValueInfoProto) -> Value | None:
    """Add an argument for an input; what is wrong with it is noted, and None returned."""
    where = printable(f"{owner.source.name}: input '{formal.name}'")
    try:
        tensor = formal.type.tensor_type
        known = formal.type.HasField("tensor_type") and tensor.HasField("shape")
        if owner.dynamic and not (known and tensor.elem_type in DTYPES):
            ssa = owner.add_argument(OpaqueType(), "input", printable(formal.name))
            return Value.of(ssa, kind=formal.type)
        if not known:
            raise IrcError("op-unsupported", "an input that is not a tensor of known ndim")
        dtype = dtype_of(tensor.elem_type)
        shape = [input_dim(owner.sizes, formal.name, i, d) for i, d in enumerate(tensor.shape.dim)]
        owner.check_volume(shape)
    except IrcError as error:
        owner.errors.add(IrcError(error.code, error.message, where, error.because, error.help))
        return None
    except Unsupported as error:
        owner.errors.add(IrcError("op-unsupported", f"an input that is {error}", where))
        return None
    if formal.name in owner.frozen:
        return frozen(owner, formal.name, shape, dtype)
    kind = TensorType.of(shape, dtype)
    ssa = owner.add_argument(kind, "input", printable(formal.name))
    return Value(tuple(shape), dtype, ssa=ssa)


def frozen(owner: Importer, name: str, shape: Sequence[Dim], dtype: str) -> Value:
    """Return an input as the constant that the user gave.

    Raises:
        IrcError: ``input-mismatch`` where it is not of the input's type.
    """
    array = owner.frozen[name]
    fits = len(array.shape) == len(shape) and all(
        isinstance(dim, Size) or dim == size for dim, size in zip(shape, array.shape, strict=True)
    )
    if NUMPY_NAMES.get(array.dtype) != dtype or not fits:
        raise IrcError(
            "input-mismatch",
            f"the constant for input '{name}' is {list(array.shape)} {array.dtype}, "
            f"not [{', '.join(map(str, shape))}] {dtype}",
        )
    return Value.of_array(array, dtype, name=name)


def input_dim(sizes: SizeTable, name: str, index: int, dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """Return a size of an input: a number, or a name.

    Raises:
        IrcError: ``onnx-invalid`` for a negative one.
    """
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    size = sizes.dim(dim.dim_param, f"{name}_{index}")
    if isinstance(size, int) and size < 0:
        raise IrcError("onnx-invalid", f"size {index} is {size}: '{dim.dim_param}'")
    return size


def output_values(
    owner: Importer, graph: onnx.GraphProto, scope: Mapping[str, Value | None]
) -> list[SSAValue]:
    """Return the results of the program; outputs that no node makes are noted."""
    results: list[SSAValue] = []
    for output in graph.output:
        owner.b.loc = printable(f"{owner.source.name}: output '{output.name}'")
        if output.name not in scope:
            owner.errors.add(
                IrcError("onnx-invalid", f"output '{output.name}' is never made", owner.b.loc)
            )
        elif (value := scope[output.name]) is not None:
            results.append(owner.ssa(value))
    return results

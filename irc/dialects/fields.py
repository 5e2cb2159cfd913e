"""Fields of ops by name: what an op is applied to, and what it says, as Python values.

    @flow_op
    class GatherOp(FlowOp):
        name = "flow.gather"
        x = operand(0)
        index = operand(1)
        dim = integer_field()

    gather.index, gather.dim  # an SSAValue, an int

A field of a property is one of xDSL's definitions (its constraint is what the parser and verifier
check); :func:`read_by_name` makes an op's accessors give Python values. An optional field that is
not there is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, opt_prop_def, prop_def

from irc.dialects.attributes import to_python
from irc.dialects.types import ShapeAttr, SizeAttr

OpOfFields = TypeVar("OpOfFields", bound=IRDLOperation)


def operand(place: int) -> SSAValue:
    """The operand at a place, counted from 0."""

    def read(op: IRDLOperation) -> SSAValue:
        return op.operands[place]

    return cast("Any", property(read))


def opt_operand(place: int) -> SSAValue | None:
    """The operand at a place, None where the op has fewer."""

    def read(op: IRDLOperation) -> SSAValue | None:
        return op.operands[place] if place < len(op.operands) else None

    return cast("Any", property(read))


def operands_from(place: int) -> Sequence[SSAValue]:
    """All operands from a place on."""

    def read(op: IRDLOperation) -> Sequence[SSAValue]:
        return op.operands[place:]

    return cast("Any", property(read))


def text_field() -> str:
    """A name or other text."""
    return cast("Any", prop_def(StringAttr))


def opt_text_field() -> str | None:
    """A text that may be missing."""
    return cast("Any", opt_prop_def(StringAttr))


def texts_field() -> tuple[str, ...]:
    """Several names."""
    return cast("Any", prop_def(ArrayAttr[StringAttr]))


def integer_field() -> int:
    """An integer: a dim, a count."""
    return cast("Any", prop_def(IntegerAttr))


def opt_integer_field() -> int | None:
    """An integer that may be missing."""
    return cast("Any", opt_prop_def(IntegerAttr))


def integers_field() -> tuple[int, ...]:
    """Several integers: dims, one number for each dim."""
    return cast("Any", prop_def(DenseArrayBase))


def opt_integers_field() -> tuple[int, ...] | None:
    """Several integers that may be missing."""
    return cast("Any", opt_prop_def(DenseArrayBase))


def number_field() -> float:
    """A floating-point number."""
    return cast("Any", prop_def(FloatAttr))


def opt_number_field() -> float | None:
    """A floating-point number that may be missing."""
    return cast("Any", opt_prop_def(FloatAttr))


def numbers_field() -> tuple[float | int, ...]:
    """Several numbers, integers or floats."""
    return cast("Any", prop_def(DenseArrayBase))


def opt_numbers_field() -> tuple[float | int, ...] | None:
    """Several numbers that may be missing."""
    return cast("Any", opt_prop_def(DenseArrayBase))


def flag_field() -> bool:
    """True or false."""
    return cast("Any", prop_def(BoolAttr))


def opt_flag_field() -> bool | None:
    """True or false, and None, which is no, where nothing is said."""
    return cast("Any", opt_prop_def(BoolAttr))


def size_field() -> int:
    """An offset or a number of elements; a ``Size`` in a kernel whose sizes have names."""
    return cast("Any", prop_def(IntegerAttr | SizeAttr))


def sizes_field(stored_as: str | None = None) -> tuple[int, ...]:
    """Strides, offsets, sizes; some are a ``Size`` in a kernel whose sizes have names."""
    return cast("Any", prop_def(DenseArrayBase | ShapeAttr, prop_name=stored_as))


def opt_sizes_field() -> tuple[int, ...] | None:
    """Strides, offsets or sizes that may be missing; see :func:`sizes_field`."""
    return cast("Any", opt_prop_def(DenseArrayBase | ShapeAttr))


def read_by_name(cls: type[OpOfFields]) -> type[OpOfFields]:
    """Let each property of a defined op be read as a Python value, under the name of its field."""
    for field, (name, _) in cls.get_irdl_definition().accessor_names.items():
        setattr(cls, field, property(_reader(name)))
    return cls


def _reader(name: str) -> Any:
    def read(op: IRDLOperation) -> Any:
        attribute = op.properties.get(name)
        return None if attribute is None else to_python(attribute)

    return read

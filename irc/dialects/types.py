"""The tensor type of every level above kernels, and its parts.

``!flow.tensor<[B, 4*S, 128], f32>`` is a logical tensor; with a placement,
``!flow.tensor<[8, 128], f32, [data = S(0), tensor = B]>``, it says how the mesh holds it. xDSL's
own TensorType has one encoding slot, no named sizes, and accepts ``S(7)`` on a matrix; here the
placement is checked when the type is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from xdsl.dialects.builtin import (
    BFloat16Type,
    ComplexType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    NoneAttr,
    Signedness,
    f32,
)
from xdsl.ir import Attribute, Data, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from irc.dialects.items import ALIGNMENT as ALIGNMENT
from irc.dialects.items import ITEM_BYTES as ITEM_BYTES
from irc.dialects.items import Shape as Shape
from irc.dialects.items import is_complex as is_complex
from irc.dialects.items import is_float as is_float
from irc.dialects.items import is_smooth as is_smooth
from irc.dialects.items import number_in as number_in
from irc.dialects.placement import AxisPlacement, B, Partial, Placement, Split
from irc.dialects.size import Dim, Size, symbol

DTYPES: Mapping[str, Attribute] = {
    "f64": Float64Type(),
    "f32": Float32Type(),
    "f16": Float16Type(),
    "bf16": BFloat16Type(),
    "i64": IntegerType(64),
    "i32": IntegerType(32),
    "i16": IntegerType(16),
    "i8": IntegerType(8),
    "u8": IntegerType(8, Signedness.UNSIGNED),
    "u16": IntegerType(16, Signedness.UNSIGNED),
    "u32": IntegerType(32, Signedness.UNSIGNED),
    "u64": IntegerType(64, Signedness.UNSIGNED),
    "i1": IntegerType(1),
    "c32": ComplexType(Float16Type()),
    "c64": ComplexType(Float32Type()),
    "c128": ComplexType(Float64Type()),
    "f8e4m3fn": Float8E4M3FNType(),
    "f8e4m3fnuz": Float8E4M3FNUZType(),
    "f8e5m2": Float8E5M2Type(),
    "f8e5m2fnuz": Float8E5M2FNUZType(),
    "f8e8m0fnu": Float8E8M0FNUType(),
}
"""Element types by the short name that irc uses outside the IR; ``i1`` is bool."""

DTYPE_NAMES: Mapping[Attribute, str] = {attr: name for name, attr in DTYPES.items()}
_BY_IDENTITY: Mapping[int, str] = {id(attr): name for name, attr in DTYPES.items()}


def dtype_name(element_type: Attribute) -> str:
    """Return the short name of an element type (a missing one is an internal error)."""
    # Most types are made of those above; the hash of an attribute is that of all of its parts.
    return _BY_IDENTITY.get(id(element_type)) or DTYPE_NAMES[element_type]


@irdl_attr_definition
class ShapeAttr(Data[Shape]):
    """The sizes of a tensor, ``[B, 4*S, 128]``."""

    name = "flow.shape"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Shape:
        return tuple(
            parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_dim(parser))
        )

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"[{', '.join(map(str, self.data))}]")


@irdl_attr_definition
class SizeAttr(Data[Size]):
    """One size that has names, ``#flow.size<4*S + 1>``; a number is an integer attribute."""

    name = "flow.size"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Size:
        with parser.in_angle_brackets():
            dim = parse_dim(parser)
        if not isinstance(dim, Size):
            parser.raise_error(f"{dim} has no names: it is written as an integer")
        return dim

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


@irdl_attr_definition
class PlacementAttr(Data[Placement]):
    """How a mesh holds a tensor: ``#sbp.placement<[data = S(0), tensor = P(sum)]>``."""

    name = "sbp.placement"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Placement:
        parser.parse_punctuation("<")
        placement = parse_placement(parser)
        parser.parse_punctuation(">")
        return placement

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


@irdl_attr_definition
class TensorType(ParametrizedAttribute, TypeAttribute):
    """``!flow.tensor<shape, element type[, placement]>``.

    Invariants, verified in this order: the element type is one of :data:`DTYPES`; sizes are not
    negative; a split dim exists; split sizes are known to be positive.
    """

    name = "flow.tensor"
    shape_attr: ShapeAttr
    element_type: Attribute
    placement_attr: PlacementAttr | NoneAttr

    @staticmethod
    def of(
        shape: Sequence[Dim], dtype: str = "f32", placement: Placement | None = None
    ) -> TensorType:
        """Build a type from sizes and a dtype name such as ``"f32"``."""
        return _tensor_type(tuple(shape), dtype, placement)

    @property
    def shape(self) -> Shape:
        """Sizes; of the logical tensor, whatever the placement."""
        return self.shape_attr.data

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The element type's short name, ``"f32"``."""
        return dtype_name(self.element_type)

    @property
    def placement(self) -> Placement | None:
        """The placement, or None on levels that have none."""
        return self.placement_attr.data if isinstance(self.placement_attr, PlacementAttr) else None

    def static_shape(self) -> tuple[int, ...]:
        """Return the sizes as integers.

        Raises:
            ValueError: naming the size that is still symbolic.
        """
        shape = self.shape
        for dim in shape:
            if isinstance(dim, Size):
                raise ValueError(f"size '{dim}' is not bound to a number")
        return cast("tuple[int, ...]", shape)

    def with_placement(self, placement: Placement | None) -> TensorType:
        """Return the same logical tensor, placed."""
        return TensorType.of(self.shape, self.dtype, placement)

    def verify(self) -> None:
        if self.element_type not in DTYPE_NAMES:
            raise VerifyException(f"{self.element_type} is not an element type of flow")
        for dim in self.shape:
            if isinstance(dim, int) and dim < 0:
                raise VerifyException(f"size {dim} is negative")
        for axis, placed in self.placement.axes if self.placement else ():
            if isinstance(placed, Split) and placed.dim >= self.ndim:
                raise VerifyException(
                    f"axis '{axis}' splits dim {placed.dim} of a tensor with {self.ndim} dims"
                )

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape = ShapeAttr(ShapeAttr.parse_parameter(parser))
            element: Attribute = f32
            placed: Attribute = NoneAttr()
            if parser.parse_optional_punctuation(",") is not None:
                element = parser.parse_type()
            if parser.parse_optional_punctuation(",") is not None:
                placed = PlacementAttr(parse_placement(parser))
        return (shape, element, placed)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            self.shape_attr.print_parameter(printer)
            printer.print_string(", ")
            printer.print_attribute(self.element_type)
            if self.placement is not None:
                printer.print_string(f", {self.placement}")


@lru_cache(maxsize=4096)
def _tensor_type(shape: Shape, dtype: str, placement: Placement | None) -> TensorType:
    """Return a type; it never changes, and a program has few."""
    placed = NoneAttr() if placement is None else PlacementAttr(placement)
    return TensorType(ShapeAttr(shape), DTYPES[dtype], placed)


@irdl_attr_definition
class OpaqueType(ParametrizedAttribute, TypeAttribute):
    """A value that is not a tensor (a sequence, a string): goes only in and out of extern ops."""

    name = "flow.opaque"


def parse_dim(parser: AttrParser) -> Dim:
    """Parse a sum of products of integers and names (``4*S - 1``)."""
    total: Dim = 0
    sign = -1 if parser.parse_optional_punctuation("-") else 1
    while True:
        term: Dim = sign
        while True:
            number = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
            term = term * (symbol(parser.parse_identifier()) if number is None else number)
            if parser.parse_optional_punctuation("*") is None:
                break
        total = total + term
        if parser.parse_optional_punctuation("+") is not None:
            sign = 1
        elif parser.parse_optional_punctuation("-") is not None:
            sign = -1
        else:
            return total


def parse_placement(parser: AttrParser) -> Placement:
    """Parse ``[data = S(0), tensor = P(sum)]``."""

    def axis() -> tuple[str, AxisPlacement]:
        name = parser.parse_identifier()
        parser.parse_punctuation("=")
        kind = parser.parse_identifier()
        if kind == "B":
            return name, B
        if kind not in ("S", "P"):
            parser.raise_error(f"a placement is S(dim), B or P(sum|max|min), not '{kind}'")
        parser.parse_punctuation("(")
        if kind == "S":
            dim, order = parser.parse_integer(allow_boolean=False), 0
            if parser.parse_optional_punctuation(","):
                order = parser.parse_integer(allow_boolean=False)
            parser.parse_punctuation(")")
            return name, Split(dim, order)
        reduction = parser.parse_identifier()
        parser.parse_punctuation(")")
        if reduction in ("sum", "max", "min"):
            return name, Partial(reduction)
        return parser.raise_error(f"a partial value reduces by sum, max or min, not '{reduction}'")

    return Placement(tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, axis)))


def tensor_type(attribute: Attribute) -> TensorType:
    """Return the attribute as a tensor type.

    Raises:
        VerifyException: where it is something else.
    """
    if not isinstance(attribute, TensorType):
        raise VerifyException(f"expected !flow.tensor, got {attribute}")
    return attribute

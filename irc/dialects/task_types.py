"""Types of level task: flat buffers that kernels are given, and values inside of kernels."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    IntegerAttr,
    StringAttr,
)
from xdsl.ir import (
    Attribute,
    ParametrizedAttribute,
    TypeAttribute,
)
from xdsl.irdl import (
    irdl_attr_definition,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from irc.dialects.size import Dim, Size, value_of
from irc.dialects.types import DTYPES, SizeAttr, dtype_name, parse_dim


@irdl_attr_definition
class BufferType(ParametrizedAttribute, TypeAttribute):
    """A flat kernel argument: ``!task.buffer<393216, f32>`` (elements, dtype)."""

    name = "task.buffer"
    size: IntegerAttr | SizeAttr
    element_type: Attribute

    @staticmethod
    def of(size: Dim, dtype: str) -> BufferType:
        """Build from the number of elements and a dtype name."""
        number = SizeAttr(size) if isinstance(size, Size) else IntegerAttr(size, 64)
        return BufferType(number, DTYPES[dtype])

    @property
    def elements(self) -> Dim:
        """How many elements the buffer holds, perhaps by name."""
        return self.size.data if isinstance(self.size, SizeAttr) else self.size.value.data

    @property
    def num_elements(self) -> int:
        """How many elements the buffer holds.

        Raises:
            UnboundSizeError: where it is a size with names.
        """
        return value_of(self.elements, {})

    @property
    def dtype(self) -> str:
        """The element type's short name."""
        return dtype_name(self.element_type)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            size = parse_dim(parser)
            if isinstance(size, int) and size < 0:
                parser.raise_error(f"a buffer of {size} elements")
            parser.parse_punctuation(",")
            number = SizeAttr(size) if isinstance(size, Size) else IntegerAttr(size, 64)
            return (number, parser.parse_type())

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.elements}, ")
            printer.print_attribute(self.element_type)


@irdl_attr_definition
class ValueType(ParametrizedAttribute, TypeAttribute):
    """A value inside a kernel: ``!task.value<f32, full>`` or ``!task.value<f32, row>``."""

    name = "task.value"
    element_type: Attribute
    extent: StringAttr

    @staticmethod
    def of(dtype: str, *, full: bool) -> ValueType:
        """Build from a dtype name and whether the value spans the reduced dims."""
        return ValueType(DTYPES[dtype], StringAttr("full" if full else "row"))

    @property
    def dtype(self) -> str:
        """The element type's short name."""
        return dtype_name(self.element_type)

    @property
    def is_full(self) -> bool:
        """True where there is one value per point of the whole space."""
        return self.extent.data == "full"

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            element = parser.parse_type()
            parser.parse_punctuation(",")
            extent = parser.parse_identifier()
        if extent not in ("full", "row"):
            parser.raise_error(f"a kernel value is full or row, not '{extent}'")
        return (element, StringAttr(extent))

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.element_type)
            printer.print_string(f", {self.extent.data}")

"""What a converter sees: values of the graph, and one node with typed attributes and a builder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from xdsl.ir import SSAValue

from irc.dialects.flow import tensor
from irc.dialects.size import Dim, Size
from irc.dialects.types import OpaqueType, Shape
from irc.errors import IrcError, printable
from irc.frontends.onnx.external import NUMPY_NAMES, Array

if TYPE_CHECKING:
    from irc.dialects.builder import FlowBuilder
    from irc.frontends.onnx.importer import Importer


OPAQUE = "opaque"
"""The dtype of values that flow has no tensors of."""


class Unsupported(Exception):  # noqa: N818 - what the node is, not an error of ours
    """A converter cannot express its node; the text says why, for the user."""

    def __init__(self, reason: str, help: str = "") -> None:  # noqa: A002 - as in IrcError
        super().__init__(reason)
        self.help = help


class Blocked(Unsupported):
    """Something inside a subgraph was noted already; what depends on it is passed over."""


class NeedsSize(Exception):  # noqa: N818
    """A node needs the number behind these named sizes."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


@dataclass(eq=False)
class Value:
    """A tensor of the graph: an SSA value, known numbers, or both.

    Attributes:
        shape: its sizes.
        dtype: irc's dtype name, or ``opaque`` for what goes only in and out of library ops.
        known: the numbers, where the file or its shapes decide them. An object array holds sizes
            (int or `Size`): arithmetic on shapes works while they are still names.
        role: of the argument that it becomes if it is too big for a literal.
        name: its original name, if it came with one.
        kind: the ONNX type of an opaque value, as far as it is known.
    """

    shape: Shape
    dtype: str
    known: Array | None = None
    role: str = "constant"
    name: str = ""
    ssa: SSAValue | None = None
    loc: str = ""
    kind: onnx.TypeProto | None = None

    @staticmethod
    def of(ssa: SSAValue, kind: onnx.TypeProto | None = None) -> Value:
        """Wrap a computed value; one that is no tensor of flow with its ONNX type, if known."""
        if isinstance(ssa.type, OpaqueType):
            return Value((), OPAQUE, ssa=ssa, kind=kind)
        tensor_type = tensor(ssa)
        return Value(tensor_type.shape, tensor_type.dtype, ssa=ssa)

    @staticmethod
    def of_array(array: Array, dtype: str | None = None, **more: Any) -> Value:
        """Wrap known numbers; an object array without names becomes plain numbers."""
        if array.dtype == object:
            assert dtype is not None
            return Value(tuple(array.shape), dtype, known=array, **more)
        return Value(tuple(array.shape), dtype or NUMPY_NAMES[array.dtype], known=array, **more)


def size_names(dims: Sequence[Dim]) -> frozenset[str]:
    """Return the names that the sizes depend on."""
    return frozenset(name for dim in dims if isinstance(dim, Size) for name in dim.names())


@dataclass
class Node:
    """One node under conversion.

    Attributes:
        owner: the importer, for what few converters need (subgraphs, fresh arguments).
        proto: the node itself.
        inputs: operands in order; None where an optional one is absent.
        version: the opset in whose meaning the node is read.
        attributes: attributes as Python values; subgraphs are `GraphProto`.
    """

    owner: Importer
    proto: onnx.NodeProto
    inputs: list[Value | None]
    version: int
    attributes: dict[str, Any]
    scope: Any = None

    @property
    def kind(self) -> str:
        """The op type."""
        return self.proto.op_type

    @property
    def b(self) -> FlowBuilder:
        """The builder of the block that the node's ops go to."""
        return self.owner.b

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return self.attributes.get(name, default)

    def choice(self, name: str, default: str, known: Collection[str]) -> str:
        """Return an attribute that is one of these words.

        Raises:
            IrcError: ``onnx-invalid`` for another word.
        """
        word = str(self.attr(name, default))
        if word not in known:
            said = f"{self.kind} has {name} {printable(word[:40])!r}"
            raise IrcError("onnx-invalid", said, because=f"it is one of {', '.join(known)}")
        return word

    def optional(self, index: int) -> Value | None:
        """Return an operand, None where it is left out."""
        return next(islice(self.inputs, index, None), None)

    def has(self, index: int) -> bool:
        """True where an optional operand is given."""
        return self.optional(index) is not None

    def operand(self, index: int) -> Value:
        """Return an operand that must be there."""
        if (value := self.optional(index)) is None:
            raise Unsupported(f"operand {index} is missing")
        return value

    def __getitem__(self, index: int) -> SSAValue:
        return self.owner.ssa(self.operand(index))

    def values(self) -> list[SSAValue]:
        """Return all operands that are given."""
        return [self.owner.ssa(value) for value in self.inputs if value is not None]

    def shape(self, index: int = 0) -> Shape:
        """Return the shape of an operand."""
        return self.operand(index).shape

    def ndim(self, index: int = 0) -> int:
        """Return how many dims an operand has."""
        return len(self.operand(index).shape)

    def dtype(self, index: int = 0) -> str:
        """Return the dtype of an operand."""
        return self.operand(index).dtype

    def known(self, index: int) -> Array:
        """Return the numbers of an operand that must be constant (names of sizes may be in it).

        Raises:
            Unsupported: if it depends on an input.
        """
        value = self.operand(index)
        if value.known is None:
            value.known = self.owner.evaluate(value)
        if value.known is None:
            raise Unsupported(
                f"operand {index} of {self.kind} must be constant, but it depends on an input"
            )
        return value.known

    def numbers(self, index: int) -> Array:
        """Return the numbers of a constant operand, in which no size is a name.

        Raises:
            NeedsSize: with the names that are in the way.
        """
        array = self.known(index)
        if array.dtype == object:
            if names := size_names(array.reshape(-1).tolist()):
                raise NeedsSize(names)
            return array.astype(np.int64)
        return array

    def dims(self, index: int) -> list[Dim]:
        """Return a constant operand as a list of sizes, which may be named."""
        return [
            d if isinstance(d, Size) else int(d) for d in self.known(index).reshape(-1).tolist()
        ]

    def ints(self, index: int) -> list[int]:
        """Return a constant operand as a list of integers."""
        return [int(number) for number in self.numbers(index).reshape(-1).tolist()]

    def number(self, index: int, default: float | None = None) -> Any:
        """Return a constant operand of one element as a Python number."""
        if not self.has(index) and default is not None:
            return default
        array = self.numbers(index).reshape(-1)
        if array.size != 1:
            raise Unsupported(f"operand {index} of {self.kind} has {array.size} elements, not one")
        return array.tolist()[0]

    def axis(self, default: int, *, name: str = "axis", ndim: int | None = None) -> int:
        """Return the axis attribute counted from the front."""
        ndim = self.ndim() if ndim is None else ndim
        return check_axis(int(self.attr(name, default)), ndim)

    def axes(self, index: int, *, ndim: int | None = None) -> list[int] | None:
        """Return axes from the attribute (older opsets) or an operand, if there are any."""
        ndim = self.ndim() if ndim is None else ndim
        stated = self.attr("axes")
        if stated is None:
            if not self.has(index):
                return None
            stated = self.ints(index)
        axes = [check_axis(int(axis), ndim) for axis in stated]
        if len(set(axes)) != len(axes):
            raise Unsupported(f"axes {list(stated)} name a dim twice")
        return axes

    def static_shape(self, index: int = 0) -> tuple[int, ...]:
        """Return an operand's shape as numbers.

        Raises:
            NeedsSize: with the names that are in the way.
        """
        return static(self.shape(index))


def static(dims: Sequence[Dim]) -> tuple[int, ...]:
    """Return sizes as numbers.

    Raises:
        NeedsSize: with the names that are in the way.
    """
    if names := size_names(dims):
        raise NeedsSize(names)
    return tuple(int(dim) for dim in dims if isinstance(dim, int))


def check_axis(axis: int, ndim: int) -> int:
    """Count an axis from the front.

    Raises:
        IrcError: ``onnx-invalid`` where the tensor has no such dim.
    """
    if not -ndim <= axis < max(ndim, 1):
        raise IrcError("onnx-invalid", f"axis {axis} does not exist in a tensor with {ndim} dims")
    return axis + ndim if axis < 0 else axis

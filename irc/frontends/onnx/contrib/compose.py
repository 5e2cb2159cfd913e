"""Writing an op as a composition of ONNX ops, on values under conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import onnx
from onnx import helper

from irc.dialects.size import Dim
from irc.frontends.onnx.external import Array
from irc.frontends.onnx.node import Node, Unsupported, Value
from irc.runtime.onnx_ops.values import to_literal

if TYPE_CHECKING:
    from irc.frontends.onnx.importer import Importer

VERSION = 23
"""The opset in whose meaning compositions are read, whatever the model's own is."""


class Composer:
    """The op under conversion, and what appends ops in its place.

    Args:
        node: the op.
    """

    def __init__(self, node: Node) -> None:
        self.node: Node | BodyNode = node

    def __getitem__(self, index: int) -> Value:
        return self._outer.operand(index)

    @property
    def _outer(self) -> Node:
        assert isinstance(self.node, Node)
        return self.node

    def has(self, index: int) -> bool:
        """True where an optional operand is given."""
        return self._outer.has(index)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return self._outer.attr(name, default)

    def get(self, index: int) -> Value | None:
        """Return an operand, or None."""
        return self[index] if self.has(index) else None

    @property
    def owner(self) -> Importer:
        """The importer."""
        return self._outer.owner

    def array(self, index: int) -> Array:
        """Return an operand that the file must decide.

        Raises:
            Unsupported: where it depends on an input.
        """
        return self._outer.numbers(index)

    def number_of(self, index: int) -> Any:
        """Return an operand of one element, which the file or its shapes must decide, as a number.

        Raises:
            Unsupported: where it depends on an input.
        """
        return self._outer.number(index)

    def ops(
        self,
        kind: str,
        *operands: Value | None,
        outputs: int = 1,
        version: int = VERSION,
        **attributes: Any,
    ) -> list[Value]:
        """Append an op of ONNX and return its results; attributes that are None are left out."""
        stated = {key: value for key, value in attributes.items() if value is not None}
        proto = helper.make_node(
            kind,
            [f"i{i}" if v is not None else "" for i, v in enumerate(operands)],
            [f"o{i}" for i in range(outputs)],
            **stated,
        )
        return list(
            self._outer.owner.convert_node(proto, list(operands), self._outer.scope, version)
        )

    def op(self, kind: str, *operands: Value | None, **attributes: Any) -> Value:
        """Append an op of one result."""
        return self.ops(kind, *operands, **attributes)[0]

    def ints(self, *numbers: int) -> Value:
        """Return constant integers, a vector."""
        return Value.of_array(np.array(numbers, np.int64))

    def number(self, value: float, like: Value) -> Value:
        """Return a constant of one element, of the type of another value."""
        return self.op("CastLike", Value.of_array(np.array(value, np.float32)), like)

    def unsupported(self, what: str) -> Unsupported:
        """Return the error that a form of the op is not known."""
        return Unsupported(f"{what} in {self.node.kind}")

    def heads(self, x: Value, count: int) -> Value:
        """Reshape ``(batch, steps, heads * size)`` to ``(batch, heads, steps, size)``."""
        apart = self.op("Reshape", x, self.ints(0, 0, count, -1))
        return self.op("Transpose", apart, perm=[0, 2, 1, 3])

    def packed(self, x: Value) -> Value:
        """Undo :meth:`heads`."""
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3]), self.ints(0, 0, -1))


Composition: TypeAlias = Callable[[Composer], "Value | Sequence[Value | None]"]


class BodyComposer(Composer):
    """As `Composer`, inside a subgraph that runs as it is: values are slots, of unknown types.

    Args:
        proto: the op.
        read: slots of its operands, -1 where one is absent.
        attributes: its attributes.
        fresh: gives slots that nothing uses yet.
    """

    def __init__(
        self,
        proto: onnx.NodeProto,
        read: Sequence[int],
        attributes: Mapping[str, Any],
        fresh: Callable[[], int],
    ) -> None:
        self._read, self._attributes, self._fresh = read, dict(attributes), fresh
        self.node = BodyNode(proto, [None if s < 0 else Slot(s) for s in read], self._attributes)
        self.written: list[list[Any]] = []

    def __getitem__(self, index: int) -> Value:
        return cast(Value, Slot(self._read[index]))

    def has(self, index: int) -> bool:
        return index < len(self._read) and self._read[index] >= 0

    def attr(self, name: str, default: Any = None) -> Any:
        return self._attributes.get(name, default)

    def number_of(self, index: int) -> Any:
        raise Unsupported("a fused op whose form depends on numbers, in a subgraph")

    def ops(
        self,
        kind: str,
        *operands: Value | None,
        outputs: int = 1,
        version: int = VERSION,
        **attributes: Any,
    ) -> list[Value]:
        stated = {key: value for key, value in attributes.items() if value is not None}
        read = [-1 if value is None else self._slot(value) for value in operands]
        slots = [self._fresh() for _ in range(outputs)]
        self.written.append([kind, version, read, slots, stated])
        return [cast(Value, Slot(slot)) for slot in slots]

    def _slot(self, value: Value | Slot) -> int:
        if isinstance(value, Slot):
            return value.number
        assert value.known is not None
        slot = self._fresh()
        self.written.append(["Constant", VERSION, [], [slot], {"value": to_literal(value.known)}])
        return slot


@dataclass(frozen=True)
class Slot:
    """A value of a body."""

    number: int

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Not known before the body runs.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("a fused op whose form depends on sizes, in a subgraph")

    @property
    def dtype(self) -> str:
        """Not known before the body runs.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("a fused op whose form depends on element types, in a subgraph")


@dataclass(frozen=True)
class BodyNode:
    """What compositions ask of the op itself, in a body."""

    proto: onnx.NodeProto
    inputs: Sequence[Slot | None]
    attributes: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The op type."""
        return self.proto.op_type


def composed(composition: Composition) -> Callable[[Node], list[Value]]:
    """Return the converter of an op that is a composition."""

    def convert(node: Node) -> list[Value]:
        returned = composition(Composer(node))
        results = [returned] if isinstance(returned, Value) else list(returned)
        wanted = list(node.proto.output)
        for name, value in zip(wanted, [*results, *[None] * len(wanted)], strict=False):
            if name and value is None:
                raise Unsupported(f"output '{name}' of {node.kind}")
        return [value if value is not None else Value.of_array(np.zeros((), np.float32))
                for value in results[: len(wanted)]]  # fmt: skip

    return convert

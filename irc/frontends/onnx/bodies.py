"""Subgraphs and attributes as JSON, for library ops that run bodies: numbers instead of names.

A value of the surrounding graph that a body reads becomes an operand of the op. Names from the
file end here: what is written refers to values by number, and to ops by rows of our own table.
"""

from __future__ import annotations

from collections import ChainMap
from itertools import count
from math import isfinite
from typing import Any

import onnx
from onnx import AttributeProto, helper
from xdsl.ir import SSAValue

from irc.errors import IrcError, printable
from irc.frontends.onnx.complaints import no_converter
from irc.frontends.onnx.contrib.compose import BodyComposer, Composition, Slot
from irc.frontends.onnx.external import to_any_array
from irc.frontends.onnx.node import Blocked, Node
from irc.runtime.onnx_ops.run import kernels, key_of
from irc.runtime.onnx_ops.values import to_literal

MAX_LITERAL_BYTES = 1 << 20

Slots = ChainMap[str, int]


class Encoder:
    """Writes the attributes of one node.

    Args:
        node: the node; ``operands`` grows by what its bodies read from around it.
        operands: those of the op so far.
    """

    def __init__(self, node: Node, operands: list[SSAValue]) -> None:
        self.node = node
        self.operands = operands
        self.captures: list[list[int]] = []
        self._outer: Slots = ChainMap()
        self._numbers = count()
        self._unknown = False

    def attributes(self, proto: onnx.NodeProto, scope: Slots | None = None) -> dict[str, Any]:
        """Return the attributes of a node by name.

        Raises:
            Blocked: where a body holds an op that cannot run; each is noted.
        """
        scope = self._outer if scope is None else scope
        attributes = {a.name: self._attribute(a, scope) for a in proto.attribute}
        if self._unknown:
            raise Blocked("a body holds ops that cannot run")
        return attributes

    def _attribute(self, attribute: onnx.AttributeProto, scope: Slots) -> Any:
        match attribute.type:
            case AttributeProto.GRAPH:
                place = attribute.name.replace("_", " ")
                return {"graph": self._graph(attribute.g, scope, place)}
            case AttributeProto.TENSOR:
                return self._tensor(attribute.t)
            case AttributeProto.TENSORS:
                return [self._tensor(tensor) for tensor in attribute.tensors]
            case AttributeProto.SPARSE_TENSOR:
                return self._sparse(attribute.sparse_tensor)
            case AttributeProto.TYPE_PROTO | AttributeProto.TYPE_PROTOS:
                return None
            case _:
                return plain(helper.get_attribute_value(attribute))

    def _tensor(self, tensor: onnx.TensorProto) -> dict[str, Any]:
        array = to_any_array(tensor, self.node.owner.source)
        if array.nbytes > MAX_LITERAL_BYTES:
            raise IrcError(
                "op-unsupported",
                f"an attribute of {array.nbytes} bytes",
                help="make the tensor an initializer of the graph",
            )
        return to_literal(array)

    def _sparse(self, sparse: onnx.SparseTensorProto) -> dict[str, Any]:
        from irc.frontends.onnx.sparse import dense

        return to_literal(dense(sparse, self.node.owner.source))

    def _graph(self, graph: onnx.GraphProto, outer: Slots, place: str) -> dict[str, Any]:
        scope = outer.new_child()
        inputs = [self._new(scope, formal.name) for formal in graph.input]
        for tensor in graph.initializer:
            if tensor.name not in {formal.name for formal in graph.input}:
                self._capture(scope, tensor.name, self.node.owner.stored(tensor))
        nodes = [
            written
            for index, proto in enumerate(graph.node)
            for written in self._nodes(proto, scope, f"{place} node {index}")
        ]
        out = [self._slot(scope, formal.name) for formal in graph.output]
        return {"in": inputs, "out": out, "nodes": nodes}

    def _nodes(self, proto: onnx.NodeProto, scope: Slots, place: str) -> list[list[Any]]:
        """Return what a node runs as: itself, or the ops that a fused one stands for."""
        from irc.frontends.onnx.contrib.table import FORMS

        key = key_of(proto.op_type, proto.domain)
        if key not in kernels() and key not in FORMS:
            self._unknown = True
            where = printable(f"{self.node.b.loc}: {place} ({proto.op_type})")
            self.node.owner.errors.add(no_converter(proto, where))
        read = [self._slot(scope, name) if name else -1 for name in proto.input]
        attributes = {a.name: self._attribute(a, scope) for a in proto.attribute}
        if key in FORMS and key not in kernels():
            return self._composed(proto, FORMS[key], read, attributes, scope)
        written = [self._new(scope, name) if name else -1 for name in proto.output]
        return [[key, self.node.owner.version_of(proto.domain), read, written, attributes]]

    def _composed(
        self,
        proto: onnx.NodeProto,
        composition: Composition,
        read: list[int],
        attributes: dict[str, Any],
        scope: Slots,
    ) -> list[list[Any]]:
        composer = BodyComposer(proto, read, attributes, lambda: next(self._numbers))
        returned = composition(composer)
        results = list(returned) if isinstance(returned, list | tuple) else [returned]
        for name, value in zip(proto.output, results, strict=False):
            if name and isinstance(value, Slot):
                scope[name] = value.number
        return composer.written

    def _new(self, scope: Slots, name: str) -> int:
        scope[name] = next(self._numbers)
        return scope[name]

    def _slot(self, scope: Slots, name: str) -> int:
        if name not in scope:
            if name not in self.node.scope:
                raise IrcError("onnx-invalid", f"value '{name}' is read before it is made")
            self._capture(self._outer, name, self.node.scope[name])
        return scope[name]

    def _capture(self, scope: Slots, name: str, value: Any) -> None:
        if value is None:
            raise Blocked(f"'{name}' could not be converted")
        slot = self._new(scope, name)
        self.captures.append([slot, len(self.operands)])
        self.operands.append(self.node.owner.ssa(value))


def plain(value: Any) -> Any:
    """Return an attribute's value for JSON, which has no infinity and no bytes.

    >>> plain([b"a", float("inf")])
    ['a', {'float': 'inf'}]
    """
    match value:
        case bytes():
            return value.decode("utf-8", "replace")
        case float():
            return value if isfinite(value) else {"float": str(value)}
        case int() | str():
            return value
        case _:
            return [plain(each) for each in value]

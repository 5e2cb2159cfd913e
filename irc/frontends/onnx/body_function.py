"""A subgraph as a function of the program, which the run calls.

Its arguments are the subgraph's own inputs, then what it reads of the graph around it, then its
weights. What is known around it (constants, sizes) is known inside.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace

import onnx
from onnx import TypeProto
from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Attribute, SSAValue

from irc.dialects.builder import argument_attrs, finish_function
from irc.dialects.size import Size
from irc.dialects.types import TensorType
from irc.errors import ErrorCollector, IrcError, printable
from irc.frontends.onnx.arguments import FunctionValues
from irc.frontends.onnx.importer import Importer, Scope
from irc.frontends.onnx.node import Blocked, Value

MAX_DEPTH = 32
"""Subgraphs inside subgraphs."""


class Body(Importer):
    """Builds the function of one subgraph.

    Args:
        outer: builds the function around it; sizes, weights and functions are shared.

    Attributes:
        captured: values of the function around it that are arguments here, by argument.
        results: what it gives.
        local: names of sizes that mean something here only.
    """

    def __init__(self, outer: Importer) -> None:
        FunctionValues.__init__(self)
        self.outer = outer
        self.depth: int = getattr(outer, "depth", 0) + 1
        if self.depth > MAX_DEPTH:
            raise IrcError("onnx-invalid", f"subgraphs nest over {MAX_DEPTH} deep", outer.b.loc)
        self.source, self.sizes, self.dynamic = outer.source, outer.sizes, True
        self.frozen, self.bodies, self.named = {}, outer.bodies, outer.named
        self.control = outer.control
        self.readers, self._versions = outer.readers, outer._versions
        self.errors = ErrorCollector()
        self.library_nodes = self._unrolled = 0
        self.b.loc = outer.b.loc
        self.captured: dict[SSAValue, Value] = {}
        self.results: list[Value] = []
        self.formals: list[SSAValue] = []
        self.opened: frozenset[str] = frozenset()

    @property
    def local(self) -> frozenset[str]:
        """Names of sizes that mean something here only."""
        return frozenset(self.backed_by) | self.opened

    def fresh(self) -> int:
        """Return a number that no earlier call gave, in any function."""
        return self.outer.fresh()

    def run_body(
        self,
        graph: onnx.GraphProto,
        scope: Scope,
        formals: Sequence[tuple[Attribute, TypeProto | None]],
        place: str,
    ) -> None:
        """Convert a subgraph; what is wrong is left in ``errors``.

        Args:
            graph: the subgraph.
            scope: values by name around it.
            formals: the type of each of its inputs, and ONNX's.
            place: what it is, for locations: ``loop body``.
        """
        inner: Scope = ChainMap[str, "Value | None"]({}, Surroundings(scope, self))
        for formal, (kind, stated) in zip(graph.input, formals, strict=False):
            ssa = self.add_argument(kind, "input", printable(formal.name))
            self.formals.append(ssa)
            inner[formal.name] = Value.of(ssa, kind=stated)
        self.convert(graph, inner, f"{place} node")
        for output in graph.output:
            if output.name not in inner:
                message = f"output '{output.name}' of the {place} is never made"
                self.errors.add(IrcError("onnx-invalid", message, self.b.loc))
            elif (value := inner[output.name]) is not None:
                self.ssa(value)
                self.results.append(value)

    def lifted(self, value: Value | None) -> Value | None:
        """Return a value of the function around as one of this function."""
        if value is None:
            return None
        if value.known is None:
            value.known = self.outer.evaluate(value)
        if value.known is not None:
            return replace(value, ssa=None)
        outside = self.outer.ssa(value)
        argument = self.add_argument(outside.type, "input", f"captured_{len(self.captured)}")
        self.captured[argument] = value
        return replace(value, ssa=argument)

    def finish(self, name: str) -> list[Value]:
        """Register the function, and return the values that its caller gives after its inputs."""
        results = [self.ssa(value) for value in self.results]
        self.sweep(results)
        for argument in list(self.captured):
            if not argument.uses and argument not in results:
                index = self.block.args.index(argument)
                del self.captured[argument], self.arg_attrs[index]
                self.block.erase_arg(self.block.args[index])
        attrs: list[DictionaryAttr] = [
            argument_attrs("output", f"output{i}") for i in range(len(results))
        ]
        func = finish_function(name, self.block, results, arg_attrs=self.arg_attrs, res_attrs=attrs)
        assert self.bodies is not None
        self.bodies.add(func, self.tensors)
        return list(self.captured.values())


class Surroundings(MutableMapping[str, "Value | None"]):
    """Values around a subgraph by name, each made one of the subgraph's when it is first read."""

    def __init__(self, scope: Scope, body: Body) -> None:
        self._scope, self._body = scope, body
        self._lifted: dict[str, Value | None] = {}

    def __getitem__(self, name: str) -> Value | None:
        if name not in self._lifted:
            self._lifted[name] = self._body.lifted(self._scope[name])
        return self._lifted[name]

    def __setitem__(self, name: str, value: Value | None) -> None:
        self._lifted[name] = value

    def __delitem__(self, name: str) -> None:
        del self._lifted[name]

    def __contains__(self, name: object) -> bool:
        return name in self._lifted or name in self._scope

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self._scope), **dict.fromkeys(self._lifted)})

    def __len__(self) -> int:
        return len({*self._scope, *self._lifted})


def import_body(
    outer: Importer,
    graph: onnx.GraphProto,
    scope: Scope,
    formals: Sequence[tuple[Attribute, TypeProto | None]],
    place: str,
) -> Body:
    """Convert a subgraph.

    Raises:
        Blocked: where it cannot be; what is wrong is noted with the function around it.
    """
    body = Body(outer)
    body.run_body(graph, scope, formals, place)
    body.errors.move_to(outer.errors)
    if len(body.results) < len(graph.output):
        raise Blocked(f"the {place} could not be converted")
    return body


def joined(types: Sequence[Attribute]) -> list[object] | None:
    """Return the sizes that tensor types have in common, None for those that differ.

    None for all where they are not tensors of one rank and element type.
    """
    first = types[0]
    tensors = [kind for kind in types if isinstance(kind, TensorType)]
    if len(tensors) < len(types) or not isinstance(first, TensorType):
        return None
    if any(t.dtype != first.dtype or t.ndim != first.ndim for t in tensors):
        return None
    return [
        dims[0] if all(dim == dims[0] for dim in dims) else None
        for dims in zip(*(t.shape for t in tensors), strict=True)
    ]


def is_local(dim: object, names: frozenset[str]) -> bool:
    """True for a size that is made of some of these names."""
    return isinstance(dim, Size) and not dim.names().isdisjoint(names)

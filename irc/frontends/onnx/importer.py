"""From a checked ONNX graph to a flow program: one walk over the nodes, one converter per op type.

A node whose operands are all known shapes and constants is folded (`fold`); otherwise its converter
(`table`) appends flow ops. A node that cannot be converted is noted, and what depends on it is
passed over in silence, so that one look reports everything.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import onnx
from onnx import helper
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from irc.dialects.builder import argument_attrs, finish_function
from irc.dialects.size import Dim, UnboundSizeError
from irc.errors import ErrorCollector, IrcError, printable
from irc.frontends.onnx.arguments import FunctionValues
from irc.frontends.onnx.at_run import left_to_library
from irc.frontends.onnx.boundary import input_value, output_values
from irc.frontends.onnx.complaints import misfit, no_converter, unbound
from irc.frontends.onnx.elementwise import Converter
from irc.frontends.onnx.external import DTYPES, Array, to_array
from irc.frontends.onnx.fold import fold
from irc.frontends.onnx.functions import Functions
from irc.frontends.onnx.misuse import misused
from irc.frontends.onnx.node import (
    OPAQUE,
    Blocked,
    NeedsSize,
    Node,
    Unsupported,
    Value,
)
from irc.frontends.onnx.old import modernise
from irc.frontends.onnx.opaque import opaque_value
from irc.frontends.onnx.operand_types import check_operand_types
from irc.frontends.onnx.prepare import nodes
from irc.frontends.onnx.read import DOMAINS, Source
from irc.frontends.onnx.result_types import FAILURES
from irc.frontends.onnx.sizes import SizeTable
from irc.frontends.onnx.sparse import dense
from irc.ops.infer import ShapeError
from irc.program import Program
from irc.runtime.onnx_ops.run import key_of

MAX_ELEMENTS = 1 << 40
MAX_OPS = 500_000
MAX_TABLE = 1 << 24

ANY_OPERANDS = frozenset({"If", "Loop", "Scan"})
"""Ops whose converters take operands that are no tensors of flow."""

REFUSALS = (Unsupported, NeedsSize, UnboundSizeError, ShapeError, VerifyException, IrcError)
"""What converters raise for a node that they have no form for."""

Scope = ChainMap[str, "Value | None"]
"""Values by name; None for what a node that could not be converted would have given."""


Control: TypeAlias = Callable[[Node], list[Value]]
"""Converts a node whose bodies are called when the program runs."""


class Importer(FunctionValues):
    """Builds one program.

    Args:
        source: the model, with functions expanded.
        sizes: numbers for named sizes.
        constants: the values of inputs that are the same in every call.
        dynamic: also take what only an interpreter runs: sizes that are known when it runs,
            sequences, strings, element types that flow lacks.
        control: with ``dynamic``, converts If, Loop and Scan whose bodies run as often as values
            say, so that they become functions of the program
            (:func:`irc.frontends.onnx.run_time_control.convert_control`); None: the library runs
            them.
        table: gives dimensions their sizes; by default one of ``sizes``.
    """

    def __init__(
        self,
        source: Source,
        sizes: Mapping[str, int] | None = None,
        constants: Mapping[str, Array] | None = None,
        *,
        dynamic: bool = False,
        control: Control | None = None,
        table: SizeTable | None = None,
    ) -> None:
        super().__init__()
        self.source = source
        self.dynamic = dynamic
        self.control = control
        self.bodies: Functions | None = None if control is None else Functions()
        self.library_nodes = 0
        self.frozen = dict(constants or {})
        self.sizes = SizeTable(sizes) if table is None else table
        self.errors = ErrorCollector()
        self._unrolled = 0
        graph = source.model.graph
        self.readers = Counter(name for node in nodes(graph) for name in node.input)
        self.readers.update(output.name for output in graph.output)
        self._versions = {
            "" if o.domain in DOMAINS else o.domain: o.version for o in source.model.opset_import
        }

    def run(self) -> Program:
        """Convert the main graph.

        Raises:
            IrcError: with everything that is wrong.
        """
        graph = self.source.model.graph
        scope: Scope = ChainMap()
        for formal in graph.input:
            scope[formal.name] = input_value(self, formal)
        self.sizes.inputs_are_read()
        for tensor in self.source.stored:
            scope[tensor.name] = self._stored(tensor)
        self.convert(graph, scope, "node")
        self.sizes.check_used()
        results = output_values(self, graph, scope)
        self.errors.check()
        self.sweep(results)
        attrs = [argument_attrs("output", printable(out.name)) for out in graph.output]
        func = finish_function(
            "forward", self.block, results, arg_attrs=self.arg_attrs, res_attrs=attrs
        )
        bodies = [] if self.bodies is None else self.bodies.called_by(func)
        tensors = dict(self.tensors)
        for body in bodies:
            tensors |= body.tensors
        module = ModuleOp([func, *(body.func for body in bodies)])
        program = Program(module, tensors, printable(self.source.name))
        try:
            program.module.verify()
        except VerifyException as error:
            said = printable(str(error.__cause__ or error)).strip().rpartition("\n")[2][:300]
            reason = f"a node does not fit its operands: {said}"
            raise IrcError("onnx-invalid", reason, self.source.name) from error
        return program

    def convert(self, graph: onnx.GraphProto, scope: Scope, place: str) -> None:
        """Convert the initializers and nodes of a graph into the current block."""
        for tensor in graph.initializer:
            scope[tensor.name] = self._stored(tensor)
        for sparse in graph.sparse_initializer:
            array = dense(sparse, self.source)
            scope[sparse.values.name] = Value.of_array(
                array, role="parameter", name=sparse.values.name
            )
        for index, proto in enumerate(graph.node):
            self._node(proto, scope, f"{place} {index}")

    def _node(self, proto: onnx.NodeProto, scope: Scope, place: str) -> None:
        name = f" '{proto.name}'" if proto.name else ""
        outer = self.b.loc
        operands: list[Value | None] = []
        self.b.loc = printable(f"{self.source.name}:{place}{name} ({proto.op_type})").replace(
            "\n", " "
        )
        for result in proto.output:
            scope[result] = None
        try:
            operands = [
                self._lookup(scope, operand_name) if operand_name else None
                for operand_name in proto.input
            ]
            if not any(
                operand_name and value is None
                for operand_name, value in zip(proto.input, operands, strict=True)
            ):
                results = self._convert_one(proto, operands, scope)
                for result, value in zip(proto.output, results, strict=False):
                    scope[result] = value
        except IrcError as error:
            where = error.where or self.b.loc
            self.errors.add(IrcError(error.code, error.message, where, error.because, error.help))
        except NeedsSize as error:
            self.errors.add(unbound(self, error.names, f"{proto.op_type} needs sizes as numbers"))
        except UnboundSizeError as error:
            reason = f"{proto.op_type} needs sizes as numbers"
            self.errors.add(unbound(self, error.names, reason))
        except Blocked:
            pass
        except Unsupported as error:
            self.errors.add(
                IrcError("op-unsupported", f"{proto.op_type}: {error}", self.b.loc, help=error.help)
            )
        except (ShapeError, VerifyException) as error:
            self.errors.add(misfit(self, proto, operands, error))
        finally:
            self.b.loc = outer

    def _convert_one(
        self, proto: onnx.NodeProto, operands: list[Value | None], scope: Scope
    ) -> Sequence[Value]:
        return self.convert_node(proto, operands, scope, self.version_of(proto.domain))

    def convert_node(
        self, proto: onnx.NodeProto, operands: list[Value | None], scope: Scope, version: int
    ) -> Sequence[Value]:
        """Convert one node, read in the meaning of an opset, on these operands."""
        node = Node(self, proto, operands, version, _attributes(proto), scope)
        try:
            return self._convert_given(node)
        except REFUSALS:
            raise
        except FAILURES as error:
            raise misused(node, error) from error

    def _convert_given(self, original: Node) -> Sequence[Value]:
        from irc.frontends.onnx.table import CONVERTERS

        proto = original.proto
        check_operand_types(original)
        node = modernise(original)
        if proto.domain in DOMAINS and (values := fold(node)) is not None:
            return values
        outer, self.errors = self.errors, ErrorCollector()
        try:
            try:
                results = _as_list(_converter(node, CONVERTERS)(node))
            except REFUSALS as error:
                inner, self.errors = self.errors, outer
                # A body that breaks the specification is wrong in the library too.
                library_results = (
                    None if inner.has("onnx-invalid") else left_to_library(node, error)
                )
                if library_results is None:
                    inner.move_to(outer)
                    raise
                results = library_results
            else:
                self.errors.move_to(outer)
        finally:
            self.errors = outer
        values = [r if isinstance(r, Value) else Value.of(r) for r in results]
        for value in values:
            self.check_volume(value.shape)
            value.loc = value.loc or self.b.loc
        return values

    def version_of(self, domain: str) -> int:
        """Return the opset of a domain; 1 where the model does not say."""
        return self._versions.get("" if domain in DOMAINS else domain, 1)

    def unbacked(self, kind: str) -> Dim:
        """Return a fresh size, which a library op decides when it runs."""
        return self.sizes.dim("", f"{kind.lower()}_{self.fresh()}")

    def _lookup(self, scope: Scope, name: str) -> Value | None:
        if name not in scope:
            raise IrcError("onnx-invalid", f"value '{name}' is read before it is made")
        return scope[name]

    def array(self, tensor: onnx.TensorProto) -> Array:
        """Return the numbers of a tensor that an attribute holds."""
        return to_array(tensor, self.source)

    def _stored(self, tensor: onnx.TensorProto) -> Value | None:
        try:
            return self.stored(tensor)
        except IrcError as error:
            name = printable(f"{self.source.name}: tensor '{tensor.name}'")
            self.errors.add(IrcError(error.code, error.message, name, error.because, error.help))
            return None

    def stored(self, tensor: onnx.TensorProto) -> Value:
        """Return an initializer as a value.

        Raises:
            IrcError: as `to_array`.
        """
        if self.dynamic and tensor.data_type not in DTYPES:
            return opaque_value(tensor, self.source)
        return Value.of_array(to_array(tensor, self.source), role="parameter", name=tensor.name)

    def check_volume(self, shape: Sequence[Dim]) -> None:
        """Refuse tensors that no machine holds, before anything tries.

        Raises:
            Unsupported: with the number of elements.
        """
        count = prod(dim for dim in shape if isinstance(dim, int))
        if count > MAX_ELEMENTS:
            raise Unsupported(f"a tensor of {count} elements")

    def check_table(self, count: int) -> None:
        """Refuse tables of indices or weights, computed here, that take more than a model does.

        Raises:
            Unsupported: with the number of elements.
        """
        if count > MAX_TABLE:
            raise Unsupported(f"a table of {count} elements; {MAX_TABLE} are computed at most")

    def check_growth(self, count: int) -> None:
        """Count nodes of unrolled bodies, and refuse programs that grow without end.

        Raises:
            Unsupported: past the limit.
        """
        self._unrolled += count
        if self._unrolled > MAX_OPS:
            raise Unsupported(f"unrolling gives over {MAX_OPS} nodes")


def _converter(node: Node, table: Mapping[str, Converter]) -> Converter:
    """Return the converter of a node.

    Raises:
        IrcError: ``op-unsupported`` where there is none.
        Unsupported: where an operand is no tensor of flow.
    """
    proto = node.proto
    if (key := key_of(proto.op_type, proto.domain)) not in table:
        raise no_converter(proto)
    if proto.op_type not in ANY_OPERANDS and any(v and v.dtype == OPAQUE for v in node.inputs):
        raise Unsupported("an operand that is not a tensor of flow")
    return table[key]


def _as_list(results: Any) -> list[SSAValue | Value]:
    return list(results) if isinstance(results, list | tuple) else [results]


def _attributes(proto: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: _attribute(attribute) for attribute in proto.attribute}


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    match value:
        case bytes():
            return value.decode("utf-8", "replace")
        case list() if value and isinstance(value[0], bytes):
            return [item.decode("utf-8", "replace") for item in value]
        case _:
            return value

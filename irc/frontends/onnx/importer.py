"""From a checked ONNX graph to a flow program: one walk over the nodes, one converter per op type.

A node whose operands are all known shapes and constants is folded (`fold`); otherwise its converter
(`table`) appends flow ops. A node that cannot be converted is noted, and what depends on it is
passed over in silence, so that one look reports everything.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.utils.exceptions import VerifyException

from irc.dialects.builder import FlowBuilder, argument_attrs, finish_function
from irc.dialects.flow import ConcatOp
from irc.dialects.size import Dim, Size, symbol, terms_of
from irc.dialects.types import OpaqueType, TensorType
from irc.errors import ErrorCollector, IrcError, printable
from irc.frontends.onnx.at_run import at_run, runs
from irc.frontends.onnx.elementwise import Converter
from irc.frontends.onnx.evaluate import evaluate
from irc.frontends.onnx.external import DTYPES, NUMPY_NAMES, Array, dtype_of, to_array, to_torch
from irc.frontends.onnx.fold import fold
from irc.frontends.onnx.node import (
    OPAQUE,
    Blocked,
    NeedsSize,
    Node,
    Unsupported,
    Value,
    size_names,
)
from irc.frontends.onnx.old import modernise
from irc.frontends.onnx.opaque import opaque_value, stored_opaque
from irc.frontends.onnx.prepare import nodes
from irc.frontends.onnx.read import DOMAINS, Source
from irc.frontends.onnx.sizes import SizeTable
from irc.ops.infer import ShapeError
from irc.program import Program
from irc.runtime.onnx_ops.run import key_of

if TYPE_CHECKING:
    import torch

LITERAL = 64
MAX_ELEMENTS = 1 << 40
MAX_OPS = 500_000

ANY_OPERANDS = frozenset({"If", "Loop", "Scan"})
"""Ops whose converters take operands that are no tensors of flow."""

Scope = ChainMap[str, "Value | None"]
"""Values by name; None for what a node that could not be converted would have given."""


class Importer:
    """Builds one program.

    Args:
        source: the model, with functions expanded.
        sizes: numbers for named sizes.
        constants: the values of inputs that are the same in every call.
        dynamic: also take what only an interpreter runs: sizes that are known when it runs,
            sequences, strings, element types that flow lacks.
    """

    def __init__(
        self,
        source: Source,
        sizes: Mapping[str, int] | None = None,
        constants: Mapping[str, Array] | None = None,
        *,
        dynamic: bool = False,
    ) -> None:
        self.source = source
        self.dynamic = dynamic
        self.backed_by: dict[str, SSAValue] = {}
        self.library_nodes = 0
        self._frozen = dict(constants or {})
        self.sizes = SizeTable(sizes)
        self.block = Block()
        self.b = FlowBuilder(self.block)
        self.errors = ErrorCollector()
        self.tensors: dict[str, torch.Tensor] = {}
        self._arg_attrs: list[DictionaryAttr] = []
        self._fresh = 0
        self._unrolled = 0
        self._content: dict[SSAValue, torch.Tensor] = {}
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
        stored = {tensor.name for tensor in (*graph.initializer, *self.source.stored)}
        for given in graph.input:
            if given.name not in stored:
                scope[given.name] = self._input(given)
        for tensor in self.source.stored:
            scope[tensor.name] = self._stored(tensor)
        self.convert(graph, scope, "node")
        self.sizes.check_used()
        results = self._outputs(graph, scope)
        self.errors.check()
        self._sweep(results)
        attrs = [argument_attrs("output", printable(out.name)) for out in graph.output]
        func = finish_function(
            "forward", self.block, results, arg_attrs=self._arg_attrs, res_attrs=attrs
        )
        program = Program(ModuleOp([func]), self.tensors, printable(self.source.name))
        program.module.verify()
        return program

    def convert(self, graph: onnx.GraphProto, scope: Scope, place: str) -> None:
        """Convert the initializers and nodes of a graph into the current block."""
        for tensor in graph.initializer:
            scope[tensor.name] = self._stored(tensor)
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
            operands = [self._lookup(scope, given) if given else None for given in proto.input]
            if not any(
                given and value is None for given, value in zip(proto.input, operands, strict=True)
            ):
                found = self._convert_one(proto, operands, scope)
                for result, value in zip(proto.output, found, strict=False):
                    scope[result] = value
        except IrcError as error:
            where = error.where or self.b.loc
            self.errors.add(IrcError(error.code, error.message, where, error.because, error.help))
        except NeedsSize as error:
            self.errors.add(self._unbound(error.names, f"{proto.op_type} needs sizes as numbers"))
        except Blocked:
            pass
        except Unsupported as error:
            self.errors.add(
                IrcError("op-unsupported", f"{proto.op_type}: {error}", self.b.loc, help=error.help)
            )
        except (ShapeError, VerifyException) as error:
            self.errors.add(self._misfit(proto, operands, error))
        finally:
            self.b.loc = outer

    def _convert_one(
        self, proto: onnx.NodeProto, operands: list[Value | None], scope: Scope
    ) -> Sequence[Value]:
        from irc.frontends.onnx.table import CONVERTERS

        version, attributes = self.version_of(proto.domain), _attributes(proto)
        node = modernise(Node(self, proto, operands, version, attributes, scope))
        if proto.domain in DOMAINS and (values := fold(node)) is not None:
            return values
        outer, self.errors = self.errors, ErrorCollector()
        try:
            try:
                results = _as_list(_converter(node, CONVERTERS)(node))
            except (Unsupported, NeedsSize, ShapeError, VerifyException, IrcError) as error:
                inner, self.errors = self.errors, outer
                found = self._at_run(node, error)
                if found is None:
                    inner.move_to(outer)
                    raise
                results = found
            else:
                self.errors.move_to(outer)
        finally:
            self.errors = outer
        values = [r if isinstance(r, Value) else Value.of(r) for r in results]
        for value in values:
            self.check_volume(value.shape)
            value.loc = value.loc or self.b.loc
        return values

    def _at_run(self, node: Node, error: Exception) -> Sequence[Value] | None:
        """Leave a node that was not converted to the library, or return None.

        A node that does not fit its operands is an error of the model, unless sizes or kinds that
        only the run knows are among them. A named size of an input is the user's to give.
        """
        names = size_names([d for v in node.inputs if v is not None for d in v.shape])
        loose = not names.isdisjoint(self.backed_by) or any(
            v is not None and v.dtype == OPAQUE for v in node.inputs
        )
        if isinstance(error, IrcError) and error.code != "op-unsupported":
            return None
        if isinstance(error, NeedsSize) and not self._library_may_bind(error.names):
            return None
        if isinstance(error, ShapeError | VerifyException) and not (loose and self.dynamic):
            return None
        if not runs(node):
            return None
        found = at_run(node, static=not self.dynamic)
        self.library_nodes += found is not None
        return found

    def _library_may_bind(self, names: frozenset[str]) -> bool:
        return self.dynamic and not names.isdisjoint(self.backed_by)

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

    # -- values

    def ssa(self, value: Value) -> SSAValue:
        """Return a value as SSA: known numbers become a literal or an argument."""
        if value.ssa is None:
            assert value.known is not None
            here, self.b.loc = self.b.loc, value.loc or self.b.loc
            if value.dtype == OPAQUE:
                value.ssa = stored_opaque(self, value)
            elif value.known.dtype == object:
                value.ssa = self._sizes(value.known, value.dtype)
            else:
                value.ssa = self._literal(value, value.known)
            self.b.loc = here
        return value.ssa

    def fresh(self) -> int:
        """Return a number that no earlier call gave."""
        self._fresh += 1
        return self._fresh

    def _literal(self, value: Value, array: Array) -> SSAValue:
        flat = array.reshape(-1)
        # Float vectors differ between layers that are otherwise alike: as arguments, the layers
        # stay one block. Numbers that shape the program are literals.
        weight = value.role == "parameter" and value.dtype[0] in "fb" and flat.size > 1
        if value.dtype[0] != "c" and flat.size and not weight:
            if flat.size <= LITERAL:
                return self.b.constant(flat.tolist(), value.shape, value.dtype)
            if flat.strides == (0,) or (flat == flat[0]).all():
                return self.b.constant(flat[:1].tolist(), value.shape, value.dtype)
        return self.argument(value.role, value.name or "constant", array, value.dtype)

    def argument(self, role: str, name: str, array: Array, dtype: str) -> SSAValue:
        """Add an argument that holds these numbers."""
        name, count = printable(name), 0
        unique = name
        while unique in self.tensors:
            count += 1
            unique = f"{name}.{count}"
        self.tensors[unique] = to_torch(array)
        ssa = self._argument(TensorType.of(array.shape, dtype), role, unique)
        self._content[ssa] = self.tensors[unique]
        return ssa

    def _argument(self, kind: Attribute, role: str, name: str) -> SSAValue:
        self._arg_attrs.append(argument_attrs(role, name))
        return self.block.insert_arg(kind, len(self.block.args))

    def _sizes(self, array: Array, dtype: str) -> SSAValue:
        parts = [self.b.reshape(self.size(dim, dtype), (1,)) for dim in array.reshape(-1).tolist()]
        joined = parts[0] if len(parts) == 1 else self.b.op(ConcatOp, parts, dim=0)
        return self.b.reshape(joined, array.shape)

    def size(self, dim: Dim, dtype: str) -> SSAValue:
        """Return a size as a scalar value; a named one is counted, as the sum of that many ones."""
        if isinstance(dim, int):
            return self.b.scalar(dim, dtype)
        total: SSAValue | None = None
        for monomial, coefficient in terms_of(dim):
            names = [symbol(name) for name, power in monomial for _ in range(power)]
            ones = self.b.constant([coefficient], names, "i64")
            term = self.b.reduce("sum", ones, range(len(names)), keep_dims=False) if names else ones
            total = term if total is None else self.b.pointwise("add", total, term)
        assert total is not None
        return self.b.cast(total, dtype)

    def constant(self, array: Array, role: str = "constant", name: str = "constant") -> SSAValue:
        """Return computed numbers (indices, interpolation weights) as a value."""
        return self.ssa(Value.of_array(array, role=role, name=name))

    def array(self, tensor: onnx.TensorProto) -> Array:
        """Return the numbers of a tensor that an attribute holds."""
        return to_array(tensor, self.source)

    def evaluate(self, value: Value) -> Array | None:
        """Compute a value that no input reaches, or return None."""
        if value.ssa is None:
            return None
        found = evaluate(value.ssa, self._content)
        return None if found is None else found.numpy()

    def content(self, value: SSAValue) -> tuple[Array, str] | None:
        """Return the numbers and name of an argument that holds weights."""
        if value not in self._content:
            return None
        attrs = self._arg_attrs[self.block.args.index(value)]
        return self._content[value].numpy(), attrs.data["name"].data

    def _sweep(self, results: Sequence[SSAValue]) -> None:
        """Drop ops and weights that nothing reads: constants that were looked at, or folded."""
        kept, needed = set(results), set[str]()
        for value in results:
            needed |= _names_of(value)
        for op in reversed(list(self.block.ops)):
            decides = any(self.backed_by.get(name) in op.results for name in needed)
            if not decides and not any(result.uses or result in kept for result in op.results):
                op.detach()
                op.erase()
                continue
            for result in op.results:
                needed |= _names_of(result)
        for index in reversed(range(len(self.block.args))):
            argument = self.block.args[index]
            if argument in self._content and not argument.uses and argument not in kept:
                name = self._arg_attrs.pop(index).data["name"]
                del self.tensors[name.data]
                self.block.erase_arg(argument)

    # -- boundary

    def _input(self, given: onnx.ValueInfoProto) -> Value | None:
        where = printable(f"{self.source.name}: input '{given.name}'")
        try:
            tensor = given.type.tensor_type
            known = given.type.HasField("tensor_type") and tensor.HasField("shape")
            if self.dynamic and not (known and tensor.elem_type in DTYPES):
                ssa = self._argument(OpaqueType(), "input", printable(given.name))
                return Value.of(ssa, kind=given.type)
            if not known:
                raise IrcError("op-unsupported", "an input that is not a tensor of known ndim")
            dtype = dtype_of(tensor.elem_type)
            shape = [self._input_dim(given.name, i, d) for i, d in enumerate(tensor.shape.dim)]
            self.check_volume(shape)
        except IrcError as error:
            self.errors.add(IrcError(error.code, error.message, where, error.because, error.help))
            return None
        if given.name in self._frozen:
            return self._freeze(given.name, shape, dtype)
        kind = TensorType.of(shape, dtype)
        ssa = self._argument(kind, "input", printable(given.name))
        return Value(tuple(shape), dtype, ssa=ssa)

    def _freeze(self, name: str, shape: Sequence[Dim], dtype: str) -> Value:
        array = self._frozen[name]
        fits = len(array.shape) == len(shape) and all(
            isinstance(dim, Size) or dim == size
            for dim, size in zip(shape, array.shape, strict=True)
        )
        if NUMPY_NAMES.get(array.dtype) != dtype or not fits:
            raise IrcError(
                "input-mismatch",
                f"the constant for input '{name}' is {list(array.shape)} {array.dtype}, "
                f"not [{', '.join(map(str, shape))}] {dtype}",
            )
        return Value.of_array(array, dtype, name=name)

    def _input_dim(self, name: str, index: int, dim: onnx.TensorShapeProto.Dimension) -> Dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value)
        found = self.sizes.dim(dim.dim_param, f"{name}_{index}")
        if isinstance(found, int) and found < 0:
            raise IrcError("onnx-invalid", f"size {index} is {found}: '{dim.dim_param}'")
        return found

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

    def _outputs(self, graph: onnx.GraphProto, scope: Scope) -> list[SSAValue]:
        results: list[SSAValue] = []
        for output in graph.output:
            self.b.loc = printable(f"{self.source.name}: output '{output.name}'")
            if output.name not in scope:
                self.errors.add(
                    IrcError("onnx-invalid", f"output '{output.name}' is never made", self.b.loc)
                )
            elif (value := scope[output.name]) is not None:
                results.append(self.ssa(value))
        return results

    # -- checks

    def check_volume(self, shape: Sequence[Dim]) -> None:
        """Refuse tensors that no machine holds, before anything tries.

        Raises:
            Unsupported: with the number of elements.
        """
        count = prod(dim for dim in shape if isinstance(dim, int))
        if count > MAX_ELEMENTS:
            raise Unsupported(f"a tensor of {count} elements")

    def check_growth(self, count: int) -> None:
        """Count nodes of unrolled bodies, and refuse programs that grow without end.

        Raises:
            Unsupported: past the limit.
        """
        self._unrolled += count
        if self._unrolled > MAX_OPS:
            raise Unsupported(f"unrolling gives over {MAX_OPS} nodes")

    def _unbound(self, names: frozenset[str], message: str) -> IrcError:
        known = self.sizes.names(names)
        return IrcError(
            "size-unbound",
            f"{message}: {', '.join(known)}",
            self.b.loc,
            help="give it a number: " + " ".join(f"--size {printable(name)}=1" for name in known),
        )

    def _misfit(
        self, proto: onnx.NodeProto, operands: Sequence[Value | None], error: Exception
    ) -> IrcError:
        names = frozenset[str]().union(*(size_names(v.shape) for v in operands if v is not None))
        if names:
            return self._unbound(
                names,
                f"{proto.op_type} does not fit its operands ({error}) unless these sizes agree",
            )
        shapes = ", ".join(
            "?" if v is None else f"[{', '.join(map(str, v.shape))}] {v.dtype}" for v in operands
        )
        return IrcError(
            "onnx-invalid", f"{proto.op_type} does not fit its operands: {error}", self.b.loc,
            because=f"its operands are {shapes}",
        )  # fmt: skip


def _converter(node: Node, table: Mapping[str, Converter]) -> Converter:
    """Return the converter of a node.

    Raises:
        IrcError: ``op-unsupported`` where there is none.
        Unsupported: where an operand is no tensor of flow.
    """
    proto = node.proto
    if (key := key_of(proto.op_type, proto.domain)) not in table:
        domain = "" if proto.domain in DOMAINS else f" of domain '{proto.domain}'"
        raise IrcError(
            "op-unsupported",
            f"no converter for op '{proto.op_type}'{domain}",
            help="export the model without it, or give it a function body in the model",
        )
    if proto.op_type not in ANY_OPERANDS and any(v and v.dtype == OPAQUE for v in node.inputs):
        raise Unsupported("an operand that is not a tensor of flow")
    return table[key]


def _as_list(found: Any) -> list[SSAValue | Value]:
    return list(found) if isinstance(found, list | tuple) else [found]


def _names_of(value: SSAValue) -> frozenset[str]:
    kind = value.type
    return size_names(kind.shape) if isinstance(kind, TensorType) else frozenset()


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

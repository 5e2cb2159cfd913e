"""Whether each node is what onnx's schema of its op says: operands, results, attributes.

The checker of onnx says the same, but it stops at the first op that no schema knows. Converters
count on it: they take operands and attributes without asking whether they are there, and the type
inference of onnx indexes with them, in C++ that does not look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx.defs
from onnx import AttributeProto

from irc.errors import IrcError, printable
from irc.frontends.onnx.complaints import no_converter
from irc.frontends.onnx.read import DOMAINS, Source
from irc.frontends.onnx.table import CONVERTERS
from irc.runtime.onnx_ops.run import kernels, key_of

MAX_OPERANDS = 4096
"""Of one node: passes look at every pair of operands now and then."""
MAX_NDIM = 64
"""No tensor has more dims: an axis beyond is refused before anything counts with it."""

AXES = frozenset({"axis", "axes", "batch_dims", "batch_axis", "time_axis", "scan_input_axes",
                  "scan_output_axes", "perm"})  # fmt: skip
COUNTED_FROM_FRONT = frozenset({"batch_dims", "batch_axis", "time_axis", "perm"})

Versions = Mapping[str, int]


def check_nodes(source: Source) -> None:
    """Check the nodes of a model, of its subgraphs and of its functions.

    Raises:
        IrcError: ``onnx-invalid``, at the node; ``op-unsupported`` at one of a subgraph whose op
            nothing knows.
    """
    model = source.model
    own = {function.name for function in model.functions if function.domain in DOMAINS}
    _check(model.graph.node, _versions(model.opset_import), source.name, "node")
    for function in model.functions:
        place = f"function '{function.name}' node"
        _check(function.node, _versions(function.opset_import), source.name, place)
    # No converter sees a branch that is never taken.
    for node in _inside(model.graph.node):
        if node.op_type not in own and not _known(node):
            raise no_converter(node, source.name)


def _versions(imports: Iterable[onnx.OperatorSetIdProto]) -> Versions:
    return {"" if each.domain in DOMAINS else each.domain: each.version for each in imports}


def _inside(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of subgraphs."""
    for node in nodes:
        for graph in _subgraphs(node):
            yield from graph.node
            yield from _inside(graph.node)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _known(node: onnx.NodeProto) -> bool:
    """True for an op that a schema, a converter or a kernel knows, or of another domain."""
    return (
        node.domain not in DOMAINS
        or onnx.defs.has(node.op_type)
        or node.op_type in CONVERTERS
        or key_of(node.op_type, node.domain) in kernels()
    )


def _check(nodes: Iterable[onnx.NodeProto], versions: Versions, file: str, place: str) -> None:
    for index, node in enumerate(nodes):
        if problem := _problem(node, versions):
            raise IrcError(
                "onnx-invalid",
                f"{printable(node.op_type)} {problem}",
                where=printable(f"{file}:{place} {index}"),
                because=f"the schema of the op says otherwise; at most {MAX_OPERANDS} are compiled",
            )
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _check(graph.node, versions, file, f"{place} {index} {attribute.name} node")


def _problem(node: onnx.NodeProto, versions: Versions) -> str:
    names = [attribute.name for attribute in node.attribute]
    if twice := next((name for name in names if names.count(name) > 1), None):
        return f"has attribute '{twice}' twice"
    if max(len(node.input), len(node.output)) > MAX_OPERANDS:
        return f"has {max(len(node.input), len(node.output))} operands or results"
    domain = "" if node.domain in DOMAINS else node.domain
    # A file may be of a newer opset than a schema says; numbers beyond int32 are no version.
    version = versions.get(domain, 1)
    if not domain and onnx.defs.has(node.op_type) and not onnx.defs.has(node.op_type, version):
        return f"is no op of opset {version}"
    if not 1 <= version < 2**31 or not onnx.defs.has(node.op_type, version, domain=domain):
        return _axis_problem(node)
    schema = onnx.defs.get_schema(node.op_type, version, domain=domain)
    return (
        _arity_problem("operands", node.input, schema.inputs, schema.min_input, schema.max_input)
        or _arity_problem(
            "results", node.output, schema.outputs, schema.min_output, schema.max_output
        )
        or _attribute_problem(node, schema)
        or _axis_problem(node)
    )


def _arity_problem(
    what: str,
    names: Sequence[str],
    formals: Sequence[onnx.defs.OpSchema.FormalParameter],
    least: int,
    most: int,
) -> str:
    if not least <= len(names) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}" if most < 2**31 - 1 else (
            f"at least {least}"
        )  # fmt: skip
        return f"has {len(names)} {what}, not {wanted}"
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    for index, (name, formal) in enumerate(zip(names, formals, strict=False)):
        if not name and what == "operands" and formal.option == single:
            return f"has no operand {index} ({formal.name})"
    return ""


def _attribute_problem(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> str:
    for name, wanted in schema.attributes.items():
        if wanted.required and not any(attribute.name == name for attribute in node.attribute):
            return f"has no attribute '{name}'"
    for attribute in node.attribute:
        wanted = schema.attributes.get(attribute.name)
        if wanted is None:
            return f"has an attribute '{attribute.name}' that its schema does not know"
        if attribute.type != wanted.type.value:
            known = attribute.type in AttributeProto.AttributeType.values()
            kind = AttributeProto.AttributeType.Name(attribute.type) if known else attribute.type
            return f"has attribute '{attribute.name}' of type {kind}, not {wanted.type.name}"
    return ""


def _axis_problem(node: onnx.NodeProto) -> str:
    for attribute in node.attribute:
        if attribute.name == "num_outputs" and attribute.i != len(node.output):
            return f"has num_outputs {attribute.i} and {len(node.output)} results"
        if attribute.name not in AXES or attribute.ref_attr_name:
            continue
        numbers = [attribute.i] if attribute.type == AttributeProto.INT else attribute.ints
        least = 0 if attribute.name in COUNTED_FROM_FRONT else -MAX_NDIM
        for number in numbers:
            if not least <= number < MAX_NDIM:
                return f"has {attribute.name} {number}, a dim that no tensor has"
    return ""

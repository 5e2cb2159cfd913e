"""Between reading and conversion: check the graph, and expand functions that have no converter.

The checker and the inliner of onnx are C++ that takes serialized models of at most 2 GB, so they
see a skeleton: the model with typed inputs in place of its large initializers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx
import onnx.checker
import onnx.defs
import onnx.inliner
import onnx.shape_inference
from onnx import TensorProto, helper

from irc.errors import IrcError, printable
from irc.frontends.onnx.order import sort_nodes
from irc.frontends.onnx.read import DOMAINS, Source
from irc.frontends.onnx.schema import check_nodes
from irc.frontends.onnx.table import CONVERTERS

LARGE_BYTES = 1024
MAX_NODES = 250_000
MAX_EXPANSIONS = 8


def prepare(source: Source) -> Source:
    """Check a model and expand functions.

    Raises:
        IrcError: ``onnx-invalid`` with what the checker of onnx says.
    """
    check_functions(source)
    skeleton, large = strip(source.model)
    if source.inputs:
        typed = {formal.name: formal for formal in source.inputs}
        for formal in skeleton.graph.input:
            formal.CopyFrom(typed.get(formal.name, formal))
    sort_nodes(skeleton.graph)
    check(skeleton, source)
    check_nodes(source)
    expanded = expand(skeleton, source)
    model = onnx.ModelProto()
    model.CopyFrom(expanded)
    # A value that the file holds is no input of a call, whether or not it is listed as one.
    known = {tensor.name for tensor in (*source.constants, *model.graph.initializer)}
    inputs = [formal for formal in model.graph.input if formal.name not in large | known]
    model.graph.initializer.extend(source.constants)
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    stored = tuple(t for t in source.model.graph.initializer if t.name in large)
    return replace(source, model=model, stored=stored)


def strip(model: onnx.ModelProto) -> tuple[onnx.ModelProto, frozenset[str]]:
    """Return the model with typed inputs for its large initializers, and their names."""
    stored = model.graph.initializer
    large = {t.name: t for t in stored if t.ByteSize() > LARGE_BYTES or t.data_location}
    skeleton, graph = onnx.ModelProto(), onnx.GraphProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy(skeleton, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name == "initializer":
            graph.initializer.extend(t for t in value if t.name not in large)
        elif field.name == "input":
            graph.input.extend(formal for formal in value if formal.name not in large)
        else:
            _copy(graph, field.name, value)
    graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type or TensorProto.FLOAT, list(t.dims))
        for t in large.values()
    )
    skeleton.graph.CopyFrom(graph)
    return skeleton, frozenset(large)


def _copy(target: onnx.ModelProto | onnx.GraphProto, name: str, value: object) -> None:
    field = getattr(target, name)
    if hasattr(field, "MergeFrom"):
        field.MergeFrom(value)
    else:
        setattr(target, name, value)


def check(skeleton: onnx.ModelProto, source: Source) -> None:
    """Run the checker of onnx, which knows the schema of every op.

    Raises:
        IrcError: ``onnx-invalid``.
    """
    unknown = {o.domain for o in skeleton.opset_import} - {*DOMAINS}
    shaped = onnx.ModelProto()
    shaped.CopyFrom(skeleton)
    for output in shaped.graph.output:
        # Exporters leave output types and shapes out; the checker wants them, and compares neither.
        if not output.HasField("type"):
            output.type.tensor_type.elem_type = TensorProto.FLOAT
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(shaped)
    except onnx.checker.ValidationError as error:
        text = printable(str(error))
        if unknown and "No opset import" not in text and "No Op registered" in text:
            return
        # An op that no schema knows is reported with all the others, by the converters.
        if "No Op registered for" in text or "is not registered" in text:
            return
        first, *rest = [line for line in text.splitlines() if line.strip()] or ["it is malformed"]
        raise IrcError(
            "onnx-invalid",
            f"the checker of onnx refuses the model: {first[:300]}",
            where=source.name,
            because=[line[:200] for line in rest[:3]],
        ) from None
    except (MemoryError, RuntimeError, ValueError) as error:
        raise IrcError(
            "onnx-invalid", f"the checker of onnx fails: {printable(str(error))[:300]}", source.name
        ) from None


def expand(skeleton: onnx.ModelProto, source: Source) -> onnx.ModelProto:
    """Expand the functions of the model, then those of onnx whose op has no converter."""
    model = skeleton
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except (MemoryError, RuntimeError, ValueError) as error:
            raise IrcError(
                "onnx-invalid",
                f"functions of the model cannot be expanded: {printable(str(error))[:300]}",
                where=source.name,
            ) from None
    # A body may call further functions; where one cannot be expanded, its op will be reported.
    for _ in range(MAX_EXPANSIONS):
        wanted = sorted({n.op_type for n in nodes(model.graph) if needs_body(n, model)})
        if not wanted:
            break
        if model is skeleton:
            model = onnx.ModelProto()
            model.CopyFrom(skeleton)
        for node in nodes(model.graph):
            if node.op_type in wanted:
                fill_defaults(node, model)
        try:
            typed = onnx.shape_inference.infer_shapes(model, data_prop=True)
            model = onnx.inliner.inline_selected_functions(
                typed, [("", kind) for kind in wanted], inline_schema_functions=True
            )
        except (onnx.shape_inference.InferenceError, MemoryError, RuntimeError, ValueError):
            break
    return model


def needs_body(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    """True for ops of onnx without a converter whose schema gives a body."""
    if node.domain not in DOMAINS or node.op_type in CONVERTERS:
        return False
    version = next((o.version for o in model.opset_import if o.domain in DOMAINS), 0)
    if not onnx.defs.has(node.op_type, version):
        return False
    schema = onnx.defs.get_schema(node.op_type, version)
    return schema.has_function or schema.has_context_dependent_function


def fill_defaults(node: onnx.NodeProto, model: onnx.ModelProto) -> None:
    """Write out the attributes that a node leaves to their defaults, which its body refers to."""
    version = next(o.version for o in model.opset_import if o.domain in DOMAINS)
    if node.domain not in DOMAINS or not onnx.defs.has(node.op_type, version):
        return
    stated = {attribute.name for attribute in node.attribute}
    for name, attribute in onnx.defs.get_schema(node.op_type, version).attributes.items():
        if name not in stated and attribute.default_value.type:
            node.attribute.append(attribute.default_value)


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes(attribute.g)
            for inner in attribute.graphs:
                yield from nodes(inner)


def check_functions(source: Source) -> None:
    """Refuse functions that call themselves, or that expand to more nodes than can be compiled.

    Raises:
        IrcError: ``onnx-invalid``.
    """
    model = source.model
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size_of(body: Iterable[onnx.NodeProto], path: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in body:
            key = (node.domain, node.op_type)
            if key in path:
                raise IrcError(
                    "onnx-invalid", f"function '{node.op_type}' calls itself", where=source.name
                )
            if key in bodies and key not in sizes:
                if len(path) > 100:
                    raise IrcError(
                        "onnx-invalid", "functions nest over 100 deep", where=source.name
                    )
                sizes[key] = size_of(bodies[key], (*path, key))
            total += sizes.get(key, 1)
            total += sum(size_of(a.g.node, path) for a in node.attribute if a.HasField("g"))
        return total

    count = size_of(model.graph.node, ())
    if count > MAX_NODES:
        raise IrcError(
            "onnx-invalid", f"the model has {count} nodes; {MAX_NODES} are compiled at most",
            where=source.name,
        )  # fmt: skip

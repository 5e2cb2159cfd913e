"""What can be taken away of an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import helper

from irc.frontends.onnx.order import reads
from irc.pipeline.failure import Failure
from irc.reproduce.smallest import Smallest

SMALL = 64
"""Weights of so many elements stay what they are: shapes, axes, scales."""


def smallest_model(
    model: onnx.ModelProto,
    failure: Failure,
    failure_of: Callable[[onnx.ModelProto], Failure | None],
    seconds: float,
) -> Smallest[onnx.ModelProto]:
    """Search for a small model that fails as this one does.

    Args:
        model: self-contained, its nodes in order; not changed.
        failure: how it fails.
        failure_of: how another fails.
        seconds: that the search may take.
    """
    is_checked = _passes_checker(model)

    def fails(candidate: onnx.ModelProto) -> bool:
        if is_checked and not _passes_checker(candidate):
            return False
        now = failure_of(candidate)
        return now is not None and now.is_like(failure)

    smallest = Smallest(model, fails, size_of, seconds)
    smallest.search((_last_nodes, _outputs, _nodes, _bypasses, _weights))
    return smallest


def size_of(model: onnx.ModelProto) -> tuple[int, ...]:
    """Return nodes, bytes of weights, and inputs, outputs and weights."""
    graph = model.graph
    weights = sum(each.ByteSize() for each in graph.initializer)
    return (
        len(graph.node),
        weights,
        len(graph.output) + len(graph.initializer) + len(graph.input) + len(graph.value_info),
    )


def _passes_checker(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # an error of its own, or of the size of a message
        return False
    return True


def _types(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the types of values that onnx infers."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # nothing is known then, and no value can become an input
        return {}
    known = {each.name: each for each in (*graph.value_info, *graph.output, *graph.input)}
    return {name: each for name, each in known.items() if _is_tensor(each)}


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    return bool(kind.elem_type) and kind.HasField("shape")


def with_nodes(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    renamed: dict[str, str] | None = None,
) -> onnx.ModelProto | None:
    """Return a model of some nodes, and of what they need.

    Args:
        model: that they are of.
        nodes: in order; those that nothing reads are left out.
        outputs: names of values.
        renamed: what is read in place of a value.

    Returns:
        None where a value that becomes an input or an output has no type that is known.
    """
    types = _types(model)
    copies = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    for node in copies:
        for index, name in enumerate(node.input):
            node.input[index] = (renamed or {}).get(name, name)
    needed = {(renamed or {}).get(name, name) for name in outputs}
    kept: list[onnx.NodeProto] = []
    ends = sorted(needed)
    for node in reversed(copies):
        if needed & set(node.output):
            kept.append(node)
            needed |= {name for name in reads(node) if name}
    kept.reverse()
    computed = {name for node in kept for name in node.output}
    stored = {each.name for each in model.graph.initializer}
    missing = needed - computed - stored
    if not kept or not missing <= types.keys() or not set(ends) <= types.keys() & computed:
        return None
    graph = helper.make_graph(
        kept,
        model.graph.name or "graph",
        [
            *(each for each in model.graph.input if each.name in needed),
            *(types[name] for name in sorted(missing - {v.name for v in model.graph.input})),
        ],
        [types[name] for name in ends],
        [each for each in model.graph.initializer if each.name in needed],
    )
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.CopyFrom(graph)
    return copy


def _names(model: onnx.ModelProto) -> list[str]:
    return [each.name for each in model.graph.output]


def _last_nodes(smallest: Smallest[onnx.ModelProto]) -> None:
    """The last nodes: what they read of others is an output in their place."""
    length = len(smallest.subject.graph.node) // 2
    while length:
        model = smallest.subject
        nodes = list(model.graph.node)
        first, last = nodes[: len(nodes) - length], nodes[len(nodes) - length :]
        known = {name for node in first for name in node.output if name}
        wanted = {name for node in last for name in reads(node)} | set(_names(model))
        if not smallest.offer(with_nodes(model, first, sorted(wanted & known))):
            length //= 2
        length = min(length, len(smallest.subject.graph.node))


def _outputs(smallest: Smallest[onnx.ModelProto]) -> None:
    def without(model: onnx.ModelProto, part: range) -> onnx.ModelProto | None:
        kept = [name for i, name in enumerate(_names(model)) if i not in part]
        return with_nodes(model, model.graph.node, kept) if kept else None

    smallest.without_parts(lambda model: len(model.graph.output), without)


def _nodes(smallest: Smallest[onnx.ModelProto]) -> None:
    """Nodes: what others read of them is an input."""

    def without(model: onnx.ModelProto, part: range) -> onnx.ModelProto | None:
        kept = [node for i, node in enumerate(model.graph.node) if i not in part]
        known = {name for node in kept for name in node.output}
        outputs = [name for name in _names(model) if name in known]
        return with_nodes(model, kept, outputs) if outputs else None

    smallest.without_parts(lambda model: len(model.graph.node), without)


def _bypasses(smallest: Smallest[onnx.ModelProto]) -> None:
    """A node whose result has the type of what it reads: that is read in its place."""
    index = 0
    while index < len(smallest.subject.graph.node):
        model = smallest.subject
        node, types = model.graph.node[index], _types(model)
        result = node.output[0] if len(node.output) == 1 else ""
        alike = [
            name
            for name in node.input
            if name in types and result in types and types[name].type == types[result].type
        ]
        others = [each for i, each in enumerate(model.graph.node) if i != index]
        if not any(
            smallest.offer(with_nodes(model, others, _names(model), {result: name}))
            for name in alike
        ):
            index += 1


def _weights(smallest: Smallest[onnx.ModelProto]) -> None:
    """Large weights: they become inputs, which are drawn."""

    def large(model: onnx.ModelProto) -> list[str]:
        return [w.name for w in model.graph.initializer if _count(w) > SMALL]

    def without(model: onnx.ModelProto, part: range) -> onnx.ModelProto | None:
        gone = set(large(model)[part.start : part.stop])
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        weights = list(copy.graph.initializer)
        del copy.graph.initializer[:]
        copy.graph.initializer.extend(each for each in weights if each.name not in gone)
        known = {each.name for each in copy.graph.input}
        copy.graph.input.extend(
            helper.make_tensor_value_info(each.name, each.data_type, each.dims)
            for each in weights
            if each.name in gone and each.name not in known
        )
        return copy

    smallest.without_parts(lambda model: len(large(model)), without)


def _count(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count

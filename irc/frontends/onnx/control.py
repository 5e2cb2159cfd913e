"""Control flow at import: branches are chosen or selected from, loops are unrolled.

What only the run decides becomes functions (:mod:`irc.frontends.onnx.run_time_control`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from xdsl.ir import SSAValue

from irc.dialects.flow import ConcatOp
from irc.errors import IrcError
from irc.frontends.onnx.elementwise import Converter
from irc.frontends.onnx.node import Blocked, Node, Unsupported, Value, check_axis, static
from irc.frontends.onnx.shapes import cut

MAX_TRIPS = 1024


def run_graph(
    node: Node, graph: onnx.GraphProto, operands: Sequence[Value], place: str
) -> list[Value]:
    """Convert a subgraph into the current block, in a scope inside the node's own."""
    owner = node.owner
    owner.check_growth(len(graph.node))
    scope = node.scope.new_child()
    for formal, value in zip(graph.input, operands, strict=False):
        scope[formal.name] = value
    owner.convert(graph, scope, f"{place} node")
    results: list[Value] = []
    for output in graph.output:
        value = scope.get(output.name)
        if value is None:
            raise Blocked(f"'{output.name}' in the {place} could not be converted")
        results.append(value)
    return results


def convert_if(node: Node) -> list[Value]:
    """Take a branch whose condition is known; else compute both and select, where types agree."""
    names = ("else_branch", "then_branch")
    try:
        condition = node.numbers(0)
    except Unsupported:
        condition = None
    if condition is not None:
        name = names[bool(condition.reshape(-1)[0])]
        return run_graph(node, node.attr(name), [], name.replace("_", " "))
    before = node.owner.library_nodes
    try:
        no, yes = (run_graph(node, node.attr(n), [], n.replace("_", " ")) for n in names)
    except Blocked:
        raise Unsupported(
            "a condition that depends on inputs, with a branch that cannot be computed",
            "if the condition is the same in every call, give its input by `constants`",
        ) from None
    if node.owner.library_nodes > before and node.owner.dynamic:
        # What only the run knows may fail in the branch that is not taken.
        raise Unsupported("a branch with nodes that run as they are")
    b, results = node.b, list[Value]()
    chosen = b.reshape(node[0], ())
    for left, right in zip(yes, no, strict=True):
        if left.dtype != right.dtype:
            raise IrcError(
                "onnx-invalid",
                f"branches of different types: {left.dtype} and {right.dtype}",
                help="ONNX wants the results of both branches to be of one element type",
            )
        if (left.shape, left.dtype) != (right.shape, right.dtype):
            raise Unsupported(
                f"a condition that depends on inputs, with branches of different types: "
                f"{list(map(str, left.shape))} {left.dtype} and "
                f"{list(map(str, right.shape))} {right.dtype}",
                "both branches are computed and one selected, so their results need one type",
            )
        one, other = node.owner.ssa(left), node.owner.ssa(right)
        results.append(Value.of(b.pointwise("where", chosen, one, other)))
    return results


def known_scalar(node: Node, value: Value | None) -> int | None:
    """Return a constant scalar, or None where it depends on inputs."""
    if value is None:
        return None
    array = value.known if value.known is not None else node.owner.evaluate(value)
    if array is None or array.dtype == object:
        return None
    return int(array.reshape(-1)[0])


def convert_loop(node: Node) -> list[Value]:
    """Unroll a loop whose trip count and conditions are constants."""
    body: onnx.GraphProto = node.attr("body")
    trips = known_scalar(node, node.optional(0))
    if node.has(0) and trips is None:
        raise Unsupported("a loop whose trip count depends on inputs or named sizes", _loops())
    going = known_scalar(node, node.optional(1)) if node.has(1) else 1
    carried = [node.operand(i) for i in range(2, len(node.inputs))]
    columns: list[list[SSAValue]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    trip = 0
    while True:
        if going is None:
            raise Unsupported("a loop whose condition depends on inputs", _loops())
        if not going or (trips is not None and trip >= trips):
            break
        if trip >= MAX_TRIPS:
            raise Unsupported(f"a loop of over {MAX_TRIPS} trips", _loops())
        operands = [
            Value.of_array(np.array(trip, np.int64)),
            Value.of_array(np.array(True)),
            *carried,
        ]
        condition, *results = run_graph(node, body, operands, f"loop trip {trip}")
        going = known_scalar(node, condition)
        carried = results[: len(carried)]
        for column, value in zip(columns, results[len(carried) :], strict=True):
            column.append(node.owner.ssa(value))
        trip += 1
    return [*carried, *(stack(node, column, 0) for column in columns)]


def convert_scan(node: Node) -> list[Value]:
    """Unroll a scan (from opset 9) over dims of known size."""
    body: onnx.GraphProto = node.attr("body")
    count = int(node.attr("num_scan_inputs"))
    states = len(node.inputs) - count
    carried = [node.operand(i) for i in range(states)]
    outputs = len(body.output) - states
    axes = [
        check_axis(a, node.ndim(states + i))
        for i, a in enumerate(node.attr("scan_input_axes") or [0] * count)
    ]
    backwards = node.attr("scan_input_directions") or [0] * count
    (trips,) = set(static([node.shape(states + i)[a] for i, a in enumerate(axes)]))
    if trips > MAX_TRIPS:
        raise Unsupported(f"a scan of over {MAX_TRIPS} steps", _loops())
    columns: list[list[SSAValue]] = [[] for _ in range(outputs)]
    for trip in range(trips):
        operands = list(carried)
        for i, axis in enumerate(axes):
            at = trips - 1 - trip if backwards[i] else trip
            operands.append(Value.of(row(node, node[states + i], axis, at)))
        results = run_graph(node, body, operands, f"scan step {trip}")
        carried = results[:states]
        for column, value in zip(columns, results[states:], strict=True):
            column.append(node.owner.ssa(value))
    turned = node.attr("scan_output_directions") or [0] * outputs
    places = node.attr("scan_output_axes") or [0] * outputs
    return [
        *carried,
        *(
            stack(node, column[::-1] if turn else column, axis)
            for column, turn, axis in zip(columns, turned, places, strict=True)
        ),
    ]


def row(node: Node, x: SSAValue, axis: int, at: int) -> SSAValue:
    """Return one slice of a dim, without the dim."""
    one = cut(node, x, axis, at, at + 1)
    shape = Value.of(one).shape
    return node.b.reshape(one, [*shape[:axis], *shape[axis + 1 :]])


def stack(node: Node, values: Sequence[SSAValue], axis: int) -> Value:
    """Join values along a new dim."""
    if not values:
        raise Unsupported("a loop that never runs, whose collected results have no shape")
    kind = Value.of(values[0])
    axis = check_axis(axis, len(kind.shape) + 1)
    shape = [*kind.shape[:axis], 1, *kind.shape[axis:]]
    parts = [node.b.reshape(value, shape) for value in values]
    return Value.of(parts[0] if len(parts) == 1 else node.b.op(ConcatOp, parts, dim=axis))


def _loops() -> str:
    return (
        f"on a mesh and on a GPU loops are unrolled: the count must be constant, and {MAX_TRIPS} "
        "at most; compiled for one CPU, the plan holds the loop"
    )


CONVERTERS: Mapping[str, Converter] = {
    "If": convert_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
}

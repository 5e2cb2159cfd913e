"""If, Loop and Scan whose branch or count only the run knows: bodies as functions of the program.

A value that a loop carries from trip to trip has one type. It starts as that of the initial value;
a size that differs after a trip gets a name of its own inside the body, and the body is imported
again. Sizes that start equal share a name as long as they change alike (two caches that grow
together), so that ops on both still fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import onnx
from onnx import TypeProto
from xdsl.ir import Attribute, SSAValue

from irc.dialects.size import Dim
from irc.dialects.types import OpaqueType, TensorType
from irc.errors import IrcError
from irc.frontends.onnx.body_function import Body, import_body, is_local, joined
from irc.frontends.onnx.node import Node, Unsupported, Value, check_axis
from irc.frontends.onnx.result_types import inferred, type_of

MAX_IMPORTS = 16
"""So often a body is imported with more of its sizes open."""

Kind: TypeAlias = "tuple[Attribute, TypeProto | None]"
"""A flow type, and ONNX's where it is opaque."""


def convert_control(node: Node) -> list[Value]:
    """Append an op that calls bodies, and return its results.

    Raises:
        Blocked: where a body cannot be converted.
        Unsupported: for a Scan before opset 9, whose operands have a batch of their own.
    """
    match node.kind:
        case "If":
            return _if(node)
        case "Loop":
            return _loop(node)
        case _:
            return _scan(node)


def _if(node: Node) -> list[Value]:
    names = ("then_branch", "else_branch")
    bodies = {
        name: import_body(node.owner, node.attr(name), node.scope, [], name.replace("_", " "))
        for name in names
    }
    local = frozenset[str]().union(*(body.local for body in bodies.values()))
    types = Types(node, local)
    for pair in zip(*(body.results for body in bodies.values()), strict=True):
        types.add([_type(value) for value in pair])
    return _append(node, bodies, types)


def _loop(node: Node) -> list[Value]:
    graph: onnx.GraphProto = node.attr("body")
    carried = [node.operand(i) for i in range(2, len(node.inputs))]
    counters: list[Kind] = [(TensorType.of((), "i64"), None), (TensorType.of((), "i1"), None)]
    body = _stable(node, graph, counters, carried, [], "loop body", skipped=1)
    states, rows = body.results[1 : 1 + len(carried)], body.results[1 + len(carried) :]
    types = Types(node, body.local)
    for before, after in zip(carried, states, strict=True):
        types.add([_type(before), _type(after)])
    trips = types.fresh() if rows else 0
    for row in rows:
        types.add([_type(row)], trips=trips)
    return _append(node, {"body": body}, types)


def _scan(node: Node) -> list[Value]:
    if node.version < 9:
        raise Unsupported(
            "a Scan of batches, before opset 9, over a length that only the run knows"
        )
    graph: onnx.GraphProto = node.attr("body")
    count = int(node.attr("num_scan_inputs"))
    states = [node.operand(i) for i in range(len(node.inputs) - count)]
    scanned = [node.operand(i) for i in range(len(states), len(node.inputs))]
    stated_axes = node.attr("scan_input_axes") or [0] * count
    axes = [check_axis(a, len(x.shape)) for a, x in zip(stated_axes, scanned, strict=True)]
    rows: list[Kind] = [
        (TensorType.of([*x.shape[:a], *x.shape[a + 1 :]], x.dtype), None)
        if isinstance(_type(x), TensorType)
        else (OpaqueType(), None)
        for x, a in zip(scanned, axes, strict=True)
    ]
    body = _stable(node, graph, [], states, rows, "scan body")
    types = Types(node, body.local)
    for before, after in zip(states, body.results, strict=False):
        types.add([_type(before), _type(after)])
    scan_outputs = body.results[len(states) :]
    places = node.attr("scan_output_axes") or [0] * len(scan_outputs)
    for row, axis in zip(scan_outputs, places, strict=True):
        types.add([_type(row)], trips=scanned[0].shape[axes[0]], axis=axis)
    return _append(node, {"body": body}, types)


class Types:
    """The types of what an op gives, as far as its bodies tell.

    Args:
        node: the op.
        local: names of sizes that mean something in the bodies only.

    Attributes:
        all: one for each result.
        decided: names of sizes that the op decides.
    """

    def __init__(self, node: Node, local: frozenset[str]) -> None:
        self.all: list[Attribute] = []
        self.decided: list[str] = []
        self._node, self._local = node, local

    def fresh(self) -> Dim:
        """Return a size that the op decides."""
        size = self._node.owner.unbacked(self._node.kind)
        self.decided.append(str(size))
        return size

    def add(self, types: Sequence[Attribute], trips: Dim | None = None, axis: int = 0) -> None:
        """Add a result that has one of some types; sizes that vary get fresh names.

        Args:
            types: those that it may have.
            trips: how many are put together along a new dim, where they are.
            axis: the new dim.
        """
        dims, first = joined(types), types[0]
        if dims is None or not isinstance(first, TensorType):
            self.all.append(OpaqueType())
            return
        shape = [
            self.fresh() if dim is None or is_local(dim, self._local) else own
            for dim, own in zip(dims, first.shape, strict=True)
        ]
        if trips is not None:
            shape.insert(check_axis(axis, len(shape) + 1), trips)
        self.all.append(TensorType.of(shape, first.dtype))


def _stable(
    node: Node,
    graph: onnx.GraphProto,
    before: Sequence[Kind],
    carried: Sequence[Value],
    after: Sequence[Kind],
    place: str,
    skipped: int = 0,
) -> Body:
    """Import a body with types of what it carries that hold before and after every trip.

    Args:
        node: the loop.
        graph: its body.
        before: types of inputs before the carried ones.
        carried: initial values.
        after: types of inputs after them.
        place: for locations.
        skipped: results before the carried ones.

    Raises:
        Blocked: where the body cannot be converted.
        IrcError: ``op-unsupported`` where the types do not settle.
    """
    first = [_type(value) for value in carried]
    opaque = {i for i, kind in enumerate(first) if not isinstance(kind, TensorType)}
    shared: dict[tuple[int, int], str] = {}
    names: dict[str, Dim] = {}
    for _ in range(MAX_IMPORTS):
        for key in shared.values():
            if key not in names:
                names[key] = node.owner.unbacked(f"{node.kind}_carried")
        formals: list[Kind] = []
        for i, (value, kind) in enumerate(zip(carried, first, strict=True)):
            if i in opaque or not isinstance(kind, TensorType):
                formals.append((OpaqueType(), _unsized(value)))
                continue
            dims = [names[shared[i, d]] if (i, d) in shared else dim
                    for d, dim in enumerate(kind.shape)]  # fmt: skip
            formals.append((TensorType.of(dims, kind.dtype), None))
        body = import_body(node.owner, graph, node.scope, [*before, *formals, *after], place)
        body.opened = frozenset(map(str, names.values()))
        results = [_type(value) for value in body.results[skipped : skipped + len(carried)]]
        changed = False
        # What a size becomes says which sizes change alike.
        becomes: dict[tuple[int, int], str] = {}
        for i, ((kind, _), result_type) in enumerate(zip(formals, results, strict=True)):
            if i in opaque or not isinstance(kind, TensorType):
                continue
            dims = joined([kind, result_type])
            if dims is None:
                opaque.add(i)
                shared = {key: name for key, name in shared.items() if key[0] != i}
                changed = True
                continue
            assert isinstance(result_type, TensorType)
            for d, dim in enumerate(dims):
                if (i, d) in shared or dim is None:
                    changed = changed or (i, d) not in shared
                    start = shared.get((i, d)) or f"{carried[i].shape[d]}"
                    becomes[i, d] = f"{start} -> {_shown(result_type.shape[d], body)}"
        if not changed and _partition(becomes) == _partition(shared):
            return body
        shared = becomes
    raise IrcError(
        "op-unsupported",
        f"the sizes of what the {place} carries do not settle in {MAX_IMPORTS} imports",
    )


def _shown(dim: Dim, body: Body) -> str:
    """Return a size after a trip; one that the body decides is different from all others."""
    return f"{dim}" if not is_local(dim, frozenset(body.backed_by)) else f"{dim} (decided)"


def _partition(names: dict[tuple[int, int], str]) -> set[frozenset[tuple[int, int]]]:
    groups: dict[str, set[tuple[int, int]]] = {}
    for key, name in names.items():
        groups.setdefault(name, set()).add(key)
    return {frozenset(keys) for keys in groups.values()}


def _type(value: Value) -> Attribute:
    if value.ssa is not None:
        return value.ssa.type
    return OpaqueType() if value.dtype == "opaque" else TensorType.of(value.shape, value.dtype)


def _unsized(value: Value) -> TypeProto | None:
    """Return the ONNX type of a carried value without what may differ from trip to trip."""
    kind = type_of(value)
    if kind is None or not kind.HasField("tensor_type"):
        return kind
    unsized = TypeProto()
    unsized.tensor_type.elem_type = kind.tensor_type.elem_type
    return unsized


def _append(node: Node, bodies: dict[str, Body], types: Types) -> list[Value]:
    from irc.frontends.onnx.at_run import append
    from irc.frontends.onnx.bodies import plain
    from irc.runtime.onnx_ops.run import key_of

    owner, proto = node.owner, node.proto
    operands: list[SSAValue] = []
    positions: list[dict[str, int] | None] = []
    for value in node.inputs:
        positions.append(None if value is None else {"operand": len(operands)})
        operands += [] if value is None else [owner.ssa(value)]
    attributes: dict[str, object] = {
        attribute.name: plain(onnx.helper.get_attribute_value(attribute))
        for attribute in proto.attribute
        if attribute.name not in bodies
    }
    assert owner.bodies is not None
    for attribute, body in bodies.items():
        name = owner.bodies.fresh(node.kind if len(bodies) == 1 else attribute)
        captured = body.finish(name)
        places = list(range(len(operands), len(operands) + len(captured)))
        operands += [owner.ssa(value) for value in captured]
        attributes[attribute] = {"function": name, "captures": places}
        owner.library_nodes += body.library_nodes
    options: dict[str, object] = {
        "version": node.version, "attributes": attributes, "captures": [],
    }  # fmt: skip
    stated = inferred(node)
    key = key_of(proto.op_type, proto.domain)
    results = append(node, key, operands, positions, options, types.all)
    for name in types.decided:
        owner.backed_by[name] = results[0]
    return [
        Value.of(ssa, kind=kind if isinstance(ssa.type, OpaqueType) else None)
        for ssa, kind in zip(results, stated, strict=False)
    ]

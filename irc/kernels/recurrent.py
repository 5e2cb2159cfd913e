"""RNN, GRU and LSTM of ONNX become kernels of template ``recurrent``, their weights packed once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import (
    ConcatOp,
    ExternOp,
    FlowOp,
    PadOp,
    SliceOp,
    TransposeOp,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.recurrent import INPUTS, KernelRecurrentOp
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.dialects.types import TensorType
from irc.kernels.holds import shape_of
from irc.kernels.lower import Lowered
from irc.kernels.quantized.cell import byte_weights, is_bytes
from irc.kernels.schedule import schedule
from irc.kernels.trace import GroupError, Stored
from irc.kernels.weights.fixed import Fixed
from irc.ops.names import RECURRENT
from irc.ops.recurrent import (
    FUNCTIONS,
    GATES,
    MOST_ROWS,
    SIMPLE,
    UNIT,
    columns,
    loop_of,
    padded,
    rows,
    simple,
)

TARGET = RECURRENT
"""What an op calls that reads packed weights; it is in no program, a kernel is made of it."""
BYTES = "onnx::DynamicQuantizeLSTM"
CELLS = ("onnx::RNN", "onnx::GRU", "onnx::LSTM", BYTES)
ROLES = ("x", "w", "r", "bias", "lengths", "h", "c", "peepholes",
         "w_scale", "w_zero", "r_scale", "r_zero")  # fmt: skip
"""The operands of these, in their order; the last four are of weights of 8 bits."""
WEIGHTS = ("w", "r", "bias", *ROLES[8:])
FLOATS = ("x", "bias", "lengths", "h", "c")
"""What an LSTM of 8 bits has as one of float32 does."""


@dataclass(frozen=True)
class _Cell:
    """An op of ONNX: its operands by role, and what it computes.

    Attributes:
        kind: of loop.
        operands: those that it has.
        hidden: units.
        directions: one or two.
        backwards: a single direction goes from the end.
        activations: flow's names, of each direction.
        in_bytes: its weights are of 8 bits.
    """

    kind: str
    operands: dict[str, SSAValue]
    hidden: int
    directions: int
    backwards: bool
    activations: tuple[str, ...]
    in_bytes: bool

    @staticmethod
    def of(op: ExternOp) -> _Cell | None:
        """Read an op; None where its options are not those of a kernel."""
        positions, options = json.loads(op.arguments)
        operands: dict[str, SSAValue] = {
            role: op.operands[place["operand"]]
            for role, place in zip(ROLES, positions, strict=False)
            if place is not None
        }
        plain = options["clip"] is None and not (options["input_forget"] or options["layout"])
        names: Sequence[str] = options["activations"]
        if not plain or "peepholes" in operands or not simple(names):
            return None
        own = "LSTM" if op.target == BYTES else op.target.removeprefix("onnx::")
        kind = loop_of(own, resets_after=bool(options["linear_before_reset"]))
        each = FUNCTIONS[kind]
        if len(names) % each or any(names[i] != names[i % each] for i in range(len(names))):
            return None
        return _Cell(
            kind, operands, options["hidden"], len(names) // each,
            options["direction"] == "reverse", tuple(SIMPLE[name] for name in names[:each]),
            op.target == BYTES,
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        """True where all operands have the sizes and dtypes of a kernel's."""
        shapes = {role: shape_of(value) for role, value in self.operands.items()}
        steps, batch, inputs = shapes["x"]
        d, wide = self.directions, GATES[self.kind] * self.hidden
        state = (d, batch, self.hidden)
        if self.in_bytes:
            if not is_bytes(self.operands, d, self.hidden, inputs):
                return False
            shapes = {role: shape for role, shape in shapes.items() if role in FLOATS}
        wanted = {
            "x": (steps, batch, inputs), "w": (d, wide, inputs), "r": (d, wide, self.hidden),
            "bias": (d, 2 * wide), "lengths": (batch,), "h": state, "c": state,
        }  # fmt: skip
        return 0 not in (steps, batch, inputs, self.hidden) and all(
            shape == wanted[role]
            and tensor(self.operands[role]).dtype == ("i32" if role == "lengths" else "f32")
            for role, shape in shapes.items()
        )


def is_recurrent(op: Operation, target: str, fixed: Fixed, *, any_rows: bool = False) -> bool:
    """True for a recurrent cell that a kernel computes: of weights that stay from call to call.

    Not there: peepholes, clipping, activations with parameters, batches first, large batches of
    float32, which a library does faster.

    Args:
        op: any.
        target: of the kernels.
        fixed: which values stay.
        any_rows: the batch decides nothing.
    """
    if target != "cpu" or not isinstance(op, ExternOp) or op.target not in CELLS:
        return False
    if not all(isinstance(v.type, TensorType) for v in (*op.operands, *op.results)):
        return False
    cell = _Cell.of(op)
    if cell is None or not cell.fits:
        return False
    weights = (cell.operands[role] for role in WEIGHTS if role in cell.operands)
    few = any_rows or cell.in_bytes or shape_of(cell.operands["x"])[1] <= MOST_ROWS
    return few and all(map(fixed, weights))


@dataclass(frozen=True)
class PackedCell:
    """A cell that reads packed weights.

    Attributes:
        weights: the ops that pack, in order, before the op in its block.
        op: of target :data:`TARGET`; it stands after them.
    """

    weights: tuple[FlowOp, ...]
    op: FlowOp


def packed_cell(op: ExternOp) -> PackedCell:
    """Write a cell for which :func:`is_recurrent` holds anew, before it in its block."""
    cell, block = _Cell.of(op), op.parent_block()
    assert cell is not None and block is not None
    first = op.prev_op
    b = FlowBuilder(block, prefix=f"{id_of(op)}_", before=op)
    b.loc = loc_of(op)
    operands = {"x": cell.operands["x"], **_weights(b, cell)}
    operands |= {role: v for role in ("lengths", "h", "c") if (v := cell.operands.get(role))}
    arguments: dict[str, Any] = {
        "kind": cell.kind, "hidden": cell.hidden, "backwards": cell.backwards,
        "activations": cell.activations, "roles": list(operands),
    }  # fmt: skip
    packed = ExternOp.make(
        list(operands.values()), [value.type for value in op.outputs],
        target=TARGET, arguments=json.dumps(arguments, sort_keys=True), loc=loc_of(op),
    )  # fmt: skip
    packed.attributes["id"] = StringAttr(id_of(op))
    packs: list[FlowOp] = []
    each = op.prev_op
    while each is not first:
        assert isinstance(each, FlowOp)
        packs.insert(0, each)
        each = each.prev_op
    block.insert_op_before(packed, op)
    return PackedCell(tuple(packs), packed)


def _weights(b: FlowBuilder, cell: _Cell) -> dict[str, SSAValue]:
    """Append what packs the weights of a cell, as :mod:`irc.ops.recurrent` has them."""
    own = byte_weights(b, cell.operands, cell.hidden) if cell.in_bytes else _matrices(b, cell)
    return _in_order({**own, **_added(b, cell)})


def _units(b: FlowBuilder, cell: _Cell, value: SSAValue, *, last: int, count: int) -> SSAValue:
    """[d, count * hidden, n] to [d, count, P, last], padded with zeros."""
    n, hidden, whole = shape_of(value)[-1], cell.hidden, padded(cell.hidden)
    apart = b.reshape(value, (cell.directions, count, hidden, n))
    if whole == hidden and last == n:
        return apart
    high = (0, 0, whole - hidden, last - n)
    return b.op(PadOp, [apart], low=(0, 0, 0, 0), high=high, value=0.0)


def _matrices(b: FlowBuilder, cell: _Cell) -> dict[str, SSAValue]:
    """Append what packs both weights of float32."""
    gates, hidden, d = GATES[cell.kind], cell.hidden, cell.directions
    whole, long = padded(hidden), rows(cell.kind, hidden)
    width, inputs = columns(cell.kind, hidden), shape_of(cell.operands["x"])[2]

    def turned(value: SSAValue, shape: Sequence[int], perm: Sequence[int]) -> SSAValue:
        return b.op(TransposeOp, [b.reshape(value, shape)], perm=tuple(perm))

    w = _units(b, cell, cell.operands["w"], last=inputs, count=gates)
    r = _units(b, cell, cell.operands["r"], last=long, count=gates)
    return {
        "w": turned(w, (d, gates * whole // width, width, inputs), (0, 1, 3, 2)),
        "r": turned(r, (d, gates, whole // UNIT, UNIT, long), (0, 2, 1, 4, 3)),
    }


def _added(b: FlowBuilder, cell: _Cell) -> dict[str, SSAValue]:
    """Append what is added to the products."""
    gates, hidden, d, whole = GATES[cell.kind], cell.hidden, cell.directions, padded(cell.hidden)
    bias = cell.operands.get("bias")
    if bias is None:
        none = {"added": b.constant([0.0], (d, gates * whole), "f32")}
        return none | (
            {"inner": b.constant([0.0], (d, whole), "f32")} if cell.kind == "GRU" else {}
        )
    rows_of_one = b.reshape(bias, (d, 2 * gates * hidden, 1))
    every = _units(b, cell, rows_of_one, last=1, count=2 * gates)
    parts = b.reshape(every, (d, 2 * gates, whole))

    def cut(start: int, stop: int) -> SSAValue:
        return b.op(SliceOp, [parts], starts=(0, start, 0), stops=(d, stop, whole), steps=(1, 1, 1))

    inner = 1 if cell.kind == "GRU" else 0
    total = b.pointwise("add", cut(0, gates - inner), cut(gates, 2 * gates - inner))
    if not inner:
        return {"added": total}
    total = b.op(ConcatOp, [total, cut(gates - 1, gates)], dim=1)
    return {"added": total, "inner": cut(2 * gates - 1, 2 * gates)}


def _in_order(weights: dict[str, SSAValue]) -> dict[str, SSAValue]:
    return {role: weights[role] for role in INPUTS if role in weights}


def recurrent_kernel(op: ExternOp, source: Callable[[SSAValue], Stored]) -> Lowered:
    """Return the kernel of an op of :func:`packed_cell`.

    Args:
        op: the op.
        source: where a value from outside lies.

    Raises:
        GroupError: with the operands that must be copied first.
    """
    arguments = json.loads(op.arguments)
    roles: list[str] = arguments["roles"]
    operands = dict(zip(roles, op.inputs, strict=True))
    stored = {role: source(value) for role, value in operands.items()}
    copies = [
        (operands[role], ()) for role, (_, view) in stored.items()
        if role != "x" and not view.is_plain
    ]  # fmt: skip
    _, view = stored["x"]
    steps, batch, inputs = shape_of(operands["x"])
    if view.strides is None or (inputs > 1 and view.strides[2] != 1):
        copies.append((operands["x"], ()))
    if copies:
        raise GroupError("operands of a recurrent cell do not lie as it reads them", copies)
    assert view.strides is not None
    sizes = {place[0]: place[1].size for place in stored.values()}
    roots = list(sizes)
    kinds = [BufferType.of(size, tensor(value).dtype) for value, size in sizes.items()]
    result_kinds = [tensor(value) for value in op.outputs]
    kinds += [BufferType.of(prod(kind.static_shape()), kind.dtype) for kind in result_kinds]
    block = Block(arg_types=kinds)
    buffers = [block.args[roots.index(stored[role][0])] for role in roles]
    buffers += block.args[len(roots) :]
    outputs = ("y", "last", "last_cell")[: len(op.outputs)]
    block.add_op(
        KernelRecurrentOp.make(
            buffers, [], loc=loc_of(op), id=id_of(op), kind=arguments["kind"],
            activations=tuple(arguments["activations"]), backwards=arguments["backwards"],
            roles=(*roles, *outputs), offset=view.offset, strides=tuple(view.strides[:2]),
        )
    )  # fmt: skip
    hidden, gates = arguments["hidden"], GATES[arguments["kind"]]
    directions = shape_of(op.outputs[1])[0]
    space = (directions, batch, steps, hidden, gates, inputs + hidden)
    kernel = KernelOp.make(
        arguments["kind"].lower().replace(" ", "_") + ("_bytes" if "w_scale" in roles else ""),
        block,
        template="recurrent",
        space=space,
        parallel=2,
        num_inputs=len(roots),
        mapping=schedule("rows", space, 2, "cpu").mapping,
        sources=[id_of(op)],
        loc=loc_of(op),
    )
    kernel.attributes["loc"] = StringAttr(loc_of(op))
    return Lowered(kernel, tuple(roots))

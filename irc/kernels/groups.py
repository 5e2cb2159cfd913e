"""Which ops become one kernel: the decisions of pass ``fuse``.

Ops are met in program order; each tries to join the units that make its operands. A union stands if
it is acyclic, is one loop nest (:mod:`irc.kernels.nest` is the judge), and pays
(:meth:`Grouping.declined`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.flow import (
    ContractOp,
    FlowOp,
    PackedContractOp,
    PointwiseOp,
    ReduceOp,
    phase_of,
    tensor,
)
from irc.dialects.types import ITEM_BYTES
from irc.kernels.holds import COMPUTE_OPS, FREE_OPS, SHAPE_OPS, has_kernel, shape_of
from irc.kernels.nest import Nest, nest_of
from irc.kernels.trace import GroupError, Stored, leaf_set
from irc.kernels.units import Unit, link, makes_cycle, merge
from irc.kernels.view import View
from irc.ops.pointwise import POINTWISE

MAX_OPS = 64
"""Ops of a kernel: bounds registers, and the time to judge a union."""
MAX_BUFFERS = 24
"""Arguments of a kernel."""
MIN_TASKS = 16
"""Rows below which a large kernel with reductions would leave cores idle."""
LARGE = 1 << 16
"""Points from which idle cores cost more than another pass over memory (about 50 us)."""
CHEAP = 4
"""Operations a point that may be done again for each point of a dim that they do not have."""


def anchor(value: SSAValue) -> SSAValue:
    """Follow shape ops up to the value whose elements they rearrange."""
    while isinstance(value.owner, FlowOp) and value.owner.name in SHAPE_OPS:
        value = value.owner.inputs[0]
    return value


def is_literal(value: SSAValue) -> bool:
    """True for a constant of one value, or an iota: a kernel makes its own."""
    op = value.owner
    return (
        isinstance(op, FlowOp)
        and op.name in FREE_OPS
        and (op.name == "flow.iota" or len(op.plain["value"]) == 1)
    )


def _is_sliced(value: SSAValue) -> bool:
    while isinstance(value.owner, FlowOp) and value.owner.name in SHAPE_OPS:
        if value.owner.name == "flow.slice":
            return True
        value = value.owner.inputs[0]
    return False


def whole(value: SSAValue) -> Stored:
    """A value from outside as the grouping sees it: contiguous (a view only adds strides)."""
    return value, View.contiguous(shape_of(value))


class Grouping:
    """The units of one block."""

    def __init__(self, block: Block) -> None:
        self.position: dict[Operation, int] = {op: i for i, op in enumerate(block.ops)}
        self.owner: dict[Operation, Unit] = {}
        for op in block.ops:
            if isinstance(op, ReturnOp) or (
                isinstance(op, FlowOp) and op.name in SHAPE_OPS | FREE_OPS
            ):
                continue
            self._add(op)

    @property
    def units(self) -> list[Unit]:
        """All units, by first op."""
        return list(dict.fromkeys(self.owner.values()))

    # What a group holds.

    def members(self, compute: Iterable[Operation]) -> list[FlowOp]:
        """Return the ops of a kernel: compute ops, the shape ops between them, their literals."""
        inside = set(compute)
        found: set[Operation] = set(inside)
        for op in inside:
            for value in op.operands:
                if self._is_inner(op, value, inside):
                    while value.owner not in inside and isinstance(value.owner, FlowOp):
                        found.add(value.owner)
                        if not value.owner.inputs:
                            break
                        value = value.owner.inputs[0]
        ordered = sorted(found, key=lambda op: self.position[op])
        return [op for op in ordered if isinstance(op, FlowOp)]

    def _is_inner(self, op: Operation, value: SSAValue, inside: set[Operation]) -> bool:
        source = anchor(value).owner
        if source in inside:
            return True
        if not (
            isinstance(source, FlowOp) and is_literal(source.outputs[0]) and has_kernel(source)
        ):
            return False
        # A reduction of a literal varies along nothing; it reads the literal from memory.
        if op.name == "flow.pointwise":
            return source.name == "flow.constant" or not _is_sliced(value)
        return op.name == "flow.take" and op.operands[1] is value and not _is_sliced(value)

    def outputs(self, ops: Sequence[FlowOp]) -> list[SSAValue]:
        """Return the values of a group that others read."""
        inside = set(ops)
        made = [v for op in ops if op.name in COMPUTE_OPS for v in op.outputs]
        return [value for value in made if self._escapes(value, inside)]

    def _escapes(self, value: SSAValue, inside: set[FlowOp]) -> bool:
        for use in value.uses:
            op = use.operation
            if isinstance(op, FlowOp) and op.name in SHAPE_OPS:
                if self._escapes(op.outputs[0], inside):
                    return True
            elif op not in inside:
                return True
        return False

    # How groups grow.

    def _add(self, op: Operation) -> None:
        reads = list(dict.fromkeys(self._reads(op)))
        if not (isinstance(op, FlowOp) and op.name in COMPUTE_OPS and has_kernel(op)):
            self._own(Unit("library", [op]), op, reads)
            return
        if isinstance(op, ContractOp | PackedContractOp):
            template = nest_of([op], [op.outputs[0]], whole).template
            self._own(Unit(template, [op]), op, reads)
            return
        for union in self._unions(op, reads):
            if makes_cycle(union, reads):
                continue
            compute = [*(o for unit in union for o in unit.ops), op]
            kind = "matmul" if union[0].kind == "matmul" else "rows"
            if self.declined(compute, kind) is None:
                joined = merge(union, kind, self.owner)
                self._own(joined, op, [u for u in reads if u not in union])
                return
        self._own(Unit("rows", [op]), op, reads)

    def _own(self, unit: Unit, op: Operation, reads: Iterable[Unit]) -> None:
        self.owner[op] = unit
        if op not in unit.ops:
            unit.ops.append(op)
        link(unit, reads)

    def _reads(self, op: Operation) -> Iterable[Unit]:
        for value in op.operands:
            owner = anchor(value).owner
            if isinstance(owner, Operation) and owner in self.owner:
                yield self.owner[owner]

    def _unions(self, op: FlowOp, reads: Sequence[Unit]) -> Iterable[list[Unit]]:
        """Yield what an op may join, best first: a matmul, all row groups at once, each alone."""
        # A kernel of forward that took backward ops along would make early what is kept for long.
        same = [unit for unit in reads if _is_forward(unit.ops[0]) == _is_forward(op)]
        latest = sorted(same, key=lambda unit: -self.position[unit.ops[-1]])
        if isinstance(op, PointwiseOp):
            for unit in latest:
                if unit.kind == "matmul" and self._continues(op, unit):
                    yield [unit]
        rows = [unit for unit in latest if unit.kind == "rows"]
        if len(rows) > 1:
            yield rows
        for unit in rows:
            yield [unit]

    def _continues(self, op: FlowOp, unit: Unit) -> bool:
        """True where ``op`` alone reads a matmul's value (a return may: it saves it for later)."""
        inside = set(unit.ops)
        for value in op.inputs:
            root = anchor(value)
            if root.owner in inside and root.owner is unit.ops[-1]:
                return all(user is op or isinstance(user, ReturnOp) for user in _users(root))
        return False

    def declined(self, compute: Sequence[Operation], kind: str) -> str | None:
        """Say why ops should not be one kernel, None where they should."""
        ops = self.members(compute)
        if len(ops) > MAX_OPS:
            return f"over {MAX_OPS} ops"
        outputs = self.outputs(ops)
        if not outputs:
            return "nothing reads it"
        try:
            nest = nest_of(ops, outputs, whole)
        except GroupError as error:
            return str(error)
        roots = {node.stored[0] for node in nest.nodes if node.stored}
        if len(roots) + len(outputs) > MAX_BUFFERS:
            return f"over {MAX_BUFFERS} buffers"
        if nest.template != kind:
            return "a matmul that would lose its tiles"
        return _wasteful(nest)


def _is_forward(op: Operation) -> bool:
    return phase_of(op) in ("", "forward")


def _users(value: SSAValue) -> Iterable[Operation]:
    for use in value.uses:
        if isinstance(use.operation, FlowOp) and use.operation.name in SHAPE_OPS:
            yield from _users(use.operation.outputs[0])
        else:
            yield use.operation


def _wasteful(nest: Nest) -> str | None:
    """Say what a legal kernel would waste."""
    tasks, everything = frozenset(nest.tasks), frozenset((*nest.tasks, *nest.reduced))
    for node in nest.nodes:
        if node.kind != "pointwise" or POINTWISE[node.attrs["fn"]].flops <= CHEAP:
            continue
        wanted = everything if node in nest.full else tasks
        if not leaf_set(node.axes) >= wanted:
            return f"{node.attrs['fn']} would be computed again for each point of a dim"
    if nest.template == "matmul" or not nest.reduced:
        return None
    # A lone reduction is as it is; with others it takes them along.
    if nest.num_tasks < MIN_TASKS and nest.num_points > LARGE:
        return f"{nest.num_tasks} rows would keep the other cores idle"
    stores_full = any(node in nest.full for _, node, _ in nest.outputs)
    if stores_full and _reduces_columns(nest):
        return "a store down the columns of a reduction"
    return None


def _reduces_columns(nest: Nest) -> bool:
    """True where the dim that lies together in memory is not among the reduced ones."""
    for node, access in nest.accesses.items():
        if node.kind == "load" and node in nest.full and not node.operands:
            steps = {abs(s): axis for axis, s in access.strides.items() if s}
            return bool(steps) and steps[min(steps)] not in nest.reduced
    return False


def saved_bytes(ops: Sequence[FlowOp], outputs: Sequence[SSAValue]) -> int:
    """Count the bytes of intermediates that a kernel neither writes nor reads back."""
    kept = set(outputs)
    inner = [v for op in ops if op.name in COMPUTE_OPS for v in op.outputs if v not in kept]
    return sum(2 * tensor_bytes(value) for value in inner)


def tensor_bytes(value: SSAValue) -> int:
    """Count the bytes of a tensor."""
    count = ITEM_BYTES[tensor(value).dtype]
    for size in shape_of(value):
        count *= size
    return count


def describe(kind: str, ops: Sequence[FlowOp], outputs: Sequence[SSAValue]) -> str:
    """Say in a line why a group is one kernel."""
    compute = [op for op in ops if op.name in COMPUTE_OPS]
    if len(compute) <= 1:
        return "one op"
    saved = saved_bytes(ops, outputs)
    if kind == "matmul":
        names = [op.plain["fn"] for op in compute if isinstance(op, PointwiseOp)]
        return f"{', '.join(names)} where the matmul leaves its result: {saved} bytes less to move"
    reductions = sum(isinstance(op, ReduceOp) for op in compute)
    text = f"{len(compute)} ops in one pass"
    if reductions:
        text += f" over rows, {reductions} reductions"
    return f"{text}: {saved} bytes less to move"

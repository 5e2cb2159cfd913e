"""Which ops become one kernel: the decisions of pass ``fuse``.

Ops are met in program order; each tries to join the units that make its operands. A union stands if
it is acyclic, is one loop nest (:mod:`irc.kernels.nest` is the judge), and pays
(:meth:`Grouping.declined`). Then kernels of one level that read the same tensor join, as nothing
lies between them. What a user asks (:mod:`irc.kernels.fusion.wishes`) goes before profit, never
before what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.flow import ContractOp, FlowOp, PointwiseOp, ReduceOp, ShapeOp, SliceOp
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import ConstantOp, IotaOp
from irc.dialects.packed_products import GroupedContractOp, GroupedOuterOp, PackedContractOp
from irc.dialects.windows import ConvolutionOp
from irc.kernels.fusion.profit import tensor_bytes, wasteful
from irc.kernels.fusion.reasons import Reason
from irc.kernels.fusion.unions import (
    against_matmul,
    impossible,
    is_forward,
    kind_of,
    store_orders,
    users_of,
)
from irc.kernels.fusion.units import Unit, link, makes_cycle, merge
from irc.kernels.fusion.wishes import Wish, Wishes
from irc.kernels.holds import COMPUTE_OPS, CPU_OPS, FREE_OPS, SHAPE_OPS, has_kernel, shape_of
from irc.kernels.nest import nest_of
from irc.kernels.trace import GroupError, Stored
from irc.kernels.view import View

MAX_OPS = 64
"""Ops of a kernel: bounds registers, and the time to judge a union."""
MAX_BUFFERS = 24
"""Arguments of a kernel."""
MIN_SHARED_BYTES = 1 << 12
"""Bytes of a shared operand below which kernels are left alone: it stays in the first cache."""


def anchor(value: SSAValue) -> SSAValue:
    """Follow shape ops up to the value whose elements they rearrange."""
    while isinstance(value.owner, ShapeOp):
        value = value.owner.x
    return value


def is_literal(value: SSAValue) -> bool:
    """True for a constant of one value, or an iota: a kernel makes its own."""
    op = value.owner
    return isinstance(op, IotaOp) or (isinstance(op, ConstantOp) and len(op.value) == 1)


def _is_sliced(value: SSAValue) -> bool:
    while isinstance(value.owner, ShapeOp):
        if isinstance(value.owner, SliceOp):
            return True
        value = value.owner.x
    return False


def _cuts_own(ops: Sequence[FlowOp]) -> bool:
    """True where a slice is of what the ops compute: tracing would find it too, but late.

    Each tap of a window gradient is a slice of one value and would be traced with all before it.
    """
    inside = {op for op in ops if op.name in COMPUTE_OPS}
    return any(isinstance(op, SliceOp) and anchor(op.x).owner in inside for op in ops)


def whole(value: SSAValue) -> Stored:
    """A value from outside as the grouping sees it: contiguous (a view only adds strides)."""
    return value, View.contiguous(shape_of(value))


class Grouping:
    """The units of one block.

    With ``any_rows`` the numbers of open sizes decide nothing.

    Raises:
        IrcError: ``fusion-impossible`` for a wish that no kernel can fulfil.
    """

    def __init__(
        self,
        block: Block,
        wishes: Iterable[Wish] = (),
        target: str = "cpu",
        fixed: Callable[[SSAValue], bool] = lambda _: False,
        *,
        any_rows: bool = False,
    ) -> None:
        self.fixed, self.any_rows = fixed, any_rows
        self.block, self.wishes, self.target = block, Wishes(wishes), target
        self.position: dict[Operation, int] = {op: i for i, op in enumerate(block.ops)}
        self.owner: dict[Operation, Unit] = {}
        for op in block.ops:
            if isinstance(op, ReturnOp) or (
                isinstance(op, FlowOp) and op.name in SHAPE_OPS | FREE_OPS
            ):
                continue
            self._add(op)
        self._join_siblings()
        self._join_readers()
        for wish in wishes:
            if wish.verb == "fuse":
                self._force(wish)

    @property
    def units(self) -> list[Unit]:
        """All units, by first op."""
        return list(dict.fromkeys(self.owner.values()))

    # What a group holds.

    def members(self, compute: Iterable[Operation]) -> list[FlowOp]:
        """Return the ops of a kernel: compute ops, the shape ops between them, their literals."""
        inside = set(compute)
        members: set[Operation] = set(inside)
        for op in inside:
            for value in op.operands:
                if self._is_inner(op, value, inside):
                    while value.owner not in inside and isinstance(value.owner, FlowOp):
                        members.add(value.owner)
                        if not isinstance(value.owner, ShapeOp):
                            break
                        value = value.owner.x
        ordered = sorted(members, key=lambda op: self.position[op])
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
        if isinstance(op, PointwiseOp):
            return isinstance(source, ConstantOp) or not _is_sliced(value)
        return isinstance(op, TakeOp) and op.operands[1] is value and not _is_sliced(value)

    def outputs(self, ops: Sequence[FlowOp]) -> list[SSAValue]:
        """Return the values of a group that others read."""
        inside = set(ops)
        values = [v for op in ops if op.name in COMPUTE_OPS for v in op.outputs]
        return [value for value in values if self._escapes(value, inside)]

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
        if not (isinstance(op, FlowOp) and op.name in COMPUTE_OPS and self._has_kernel(op)):
            self._own(Unit("library", [op]), op, reads)
            return
        if isinstance(op, GroupedOuterOp) or (isinstance(op, ConvolutionOp) and op.of_kernel):
            self._own(Unit("outer", [op]), op, reads)
            return
        if isinstance(op, ContractOp | PackedContractOp | GroupedContractOp | ConvolutionOp):
            template = nest_of([op], [op.outputs[0]], whole).template
            self._own(Unit(template, [op]), op, reads)
            return
        for union, forced in self._offers(op, reads):
            if makes_cycle(union, reads):
                continue
            compute = [*(o for unit in union for o in unit.ops), op]
            kind = kind_of(union)
            if self.declined(compute, kind, forced=forced) is None:
                joined = merge(union, kind, self.owner)
                self._own(joined, op, [u for u in reads if u not in union])
                return
        self._own(Unit("rows", [op]), op, reads)

    def _has_kernel(self, op: Operation) -> bool:
        return has_kernel(op) and not (op.name in CPU_OPS and self.target != "cpu")

    def _offers(self, op: FlowOp, reads: Sequence[Unit]) -> Iterable[tuple[list[Unit], bool]]:
        """Yield what an op may join: what the user asks for, then what pays."""
        for wish in self.wishes.of(op):
            known = [self.owner[other] for other in wish.ops if other in self.owner]
            units = [unit for unit in dict.fromkeys(known) if unit.kind != "library"]
            if units:
                yield units, True
        for union in self._unions(op, reads):
            yield union, False

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
        same = [unit for unit in reads if is_forward(unit.ops[0]) == is_forward(op)]
        if not self.fixed(op.outputs[0]):
            # A sum of a weight is made once; joined, it would be made at each call.
            same = [unit for unit in same if not self._is_fixed_sum(unit)]
        latest = sorted(same, key=lambda unit: -self.position[unit.ops[-1]])
        if isinstance(op, PointwiseOp):
            for unit in latest:
                if unit.kind == "matmul" and self._continues(op, unit):
                    if widening := [other for other in latest if self._is_widening(other, op)]:
                        yield [unit, *widening]
                    yield [unit]
        rows = [unit for unit in latest if unit.kind == "rows"]
        if len(rows) > 1:
            yield rows
        for unit in rows:
            yield [unit]

    def _is_fixed_sum(self, unit: Unit) -> bool:
        return any(isinstance(op, ReduceOp) and self.fixed(op.outputs[0]) for op in unit.ops)

    def _continues(self, op: FlowOp, unit: Unit) -> bool:
        """True where ``op`` alone reads a matmul's value (a return may: it saves it for later)."""
        inside = set(unit.ops)
        for value in op.inputs:
            root = anchor(value)
            if root.owner in inside and root.owner is unit.ops[-1]:
                return all(user is op or isinstance(user, ReturnOp) for user in users_of(root))
        return False

    def _is_widening(self, unit: Unit, op: FlowOp) -> bool:
        """True for pointwise ops that ``op`` alone reads, whose operands are fewer bytes.

        A dequantised residual is one: where a matmul leaves its result, the bytes are read.
        """
        if unit.kind != "rows" or not all(isinstance(each, PointwiseOp) for each in unit.ops):
            return False
        inside = {*unit.ops, op}
        results = [each.results[0] for each in unit.ops]
        if any(user not in inside for value in results for user in users_of(value)):
            return False
        read = dict.fromkeys(anchor(v) for each in unit.ops for v in each.operands)
        operands = [v for v in read if v.owner not in inside and not is_literal(v)]
        largest = max(map(tensor_bytes, results))
        return not any(map(self.fixed, results)) and sum(map(tensor_bytes, operands)) < largest

    def _join_siblings(self) -> None:
        """Let kernels of one level that read the same tensor read it once.

        No path joins units of one level, so no cycle can arise. Each only tries the one before.
        """
        readers: dict[SSAValue, list[Unit]] = {}
        for op in self.position:
            unit = self.owner.get(op)
            if unit is None or unit.kind != "rows":
                continue
            for value in dict.fromkeys(map(anchor, op.operands)):
                # The owner of an argument is a block, which no unit owns.
                if not is_literal(value) and self.owner.get(value.owner) is not unit:  # type: ignore[arg-type]
                    readers.setdefault(value, []).append(unit)
        for value, units in readers.items():
            if tensor_bytes(value) < MIN_SHARED_BYTES and not self.any_rows:
                continue
            ops = [unit.ops[0] for unit in dict.fromkeys(units)]
            for first, second in pairwise(ops):
                pair = self.owner[first], self.owner[second]
                if pair[0] is not pair[1] and self._are_siblings(*pair):
                    self._join(pair)

    def _are_siblings(self, one: Unit, other: Unit) -> bool:
        if one.level != other.level or is_forward(one.ops[0]) != is_forward(other.ops[0]):
            return False
        compute = [*one.ops, *other.ops]
        return self.declined(compute, "rows", siblings=True) is None

    def _join_readers(self) -> None:
        """Let a matmul take the one kernel that holds all readers of its value (siblings may)."""
        for op in list(self.owner):
            unit = self.owner[op]
            if unit.kind != "matmul" or op is not unit.ops[-1]:
                continue
            users = [user for user in users_of(op.results[0]) if not isinstance(user, ReturnOp)]
            readers = list(dict.fromkeys(self.owner[user] for user in users))
            if len(readers) == 1 and len(users) > 1 and readers[0].kind == "rows":
                pair = (unit, readers[0])
                if self.refusal(pair) is None:
                    self._join(pair)

    def _join(self, units: Sequence[Unit]) -> None:
        joined = merge(units, kind_of(units), self.owner)
        joined.ops.sort(key=lambda op: self.position[op])

    def _force(self, wish: Wish) -> None:
        """Make the ops of a statement one kernel.

        Raises:
            IrcError: ``fusion-impossible``, with the rule against it.
        """
        ops = sorted(wish.ops, key=lambda op: self.position[op])
        units = list(dict.fromkeys(self.owner[op] for op in ops if op in self.owner))
        if len(units) < 2:
            return
        reason = self.refusal(units, forced=True)
        if reason is not None:
            raise impossible(wish, reason, [unit.ops[0] for unit in units])
        self._join(units)

    def refusal(self, units: Sequence[Unit], *, forced: bool = False) -> Reason | None:
        """Say by which rule whole units are not one kernel; None where they could be.

        Args:
            units: at least two.
            forced: leave profit aside.
        """
        compute = [op for unit in units for op in unit.ops]
        if any(unit.kind == "library" for unit in units):
            return Reason("library")
        if (wish := self.wishes.parted(compute)) is not None:
            return Reason("apart", f"'{wish.text}', {wish.where}")
        if makes_cycle(units, ()):
            return Reason("cycle")
        if not forced and len({is_forward(unit.ops[0]) for unit in units}) > 1:
            return Reason("phase")
        if (rule := against_matmul(units)) is not None:
            return Reason(rule)
        kind = kind_of(units)
        if (message := self.declined(compute, kind, forced=forced)) is not None:
            return Reason.of(message)
        if kind == "matmul" and not forced and not self._is_continued(units):
            return Reason("matmul-shared")
        return None

    def _is_continued(self, units: Sequence[Unit]) -> bool:
        """True where a matmul's value is read by the others' ops alone."""
        inside = {op for unit in units for op in unit.ops}
        (matmul,) = [unit for unit in units if unit.kind == "matmul"]
        users = users_of(matmul.ops[-1].results[0])
        return all(user in inside or isinstance(user, ReturnOp) for user in users)

    def declined(
        self,
        compute: Sequence[Operation],
        kind: str,
        *,
        forced: bool = False,
        siblings: bool = False,
    ) -> str | None:
        """Say why ops should not be one kernel, None where they should.

        Args:
            compute: the ops.
            kind: what the kernel is to be.
            forced: only say why they cannot be.
            siblings: none reads another; their stores must go the same way through memory.
        """
        if self.wishes.parted(compute) is not None:
            return "a constraint keeps them apart"
        ops = self.members(compute)
        if len(ops) > MAX_OPS:
            return f"over {MAX_OPS} ops"
        if _cuts_own(ops):
            return "a slice of a value that the kernel computes"
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
        if siblings and len(store_orders(nest)) > 1:
            return "outputs over different dims"
        return None if forced else wasteful(nest, any_rows=self.any_rows)

"""Launching a group of ops as one kernel, after the copies and packed weights that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute, Operation, SSAValue

from irc.dialects.flow import FlowOp, TransposeOp, carry, loc_of, tensor
from irc.dialects.launches import LaunchOp
from irc.dialects.literals import ConstantOp
from irc.dialects.noted import noted_placements, result_id
from irc.dialects.types import ALIGNMENT, ITEM_BYTES, TensorType
from irc.errors import IrcError
from irc.kernels.attention import is_attention, result_orders
from irc.kernels.attention_backward import is_attention_backward
from irc.kernels.holds import LIBRARY_DTYPES, has_kernel, shape_of
from irc.kernels.launches.kernel_table import KernelTable
from irc.kernels.launches.places import Places
from irc.kernels.lower import Lowered
from irc.kernels.orders import Orders, channels_last, ordered_view, orders_of, stored_id
from irc.kernels.trace import GroupError, Stored
from irc.kernels.view import View

MAX_COPIES = 4
"""Rounds of copying, besides one for each operand, before a kernel counts as impossible.

A round mends one known reason, which names the operands that it is about: each of a packed
matmul's weight, scales, zeros and rows may be the subject of a round of its own.
"""


class Launcher:
    """Writes the launches of one function, and keeps where their results lie."""

    def __init__(self, table: KernelTable, places: Places) -> None:
        self.table, self.places = table, places
        self._panels: dict[tuple[SSAValue, str], SSAValue] = {}

    def stored(self, value: SSAValue) -> Stored:
        """Return the contiguous tensor that holds a value, and where in it.

        A constant that no kernel holds is written here, where it is first read.
        """
        op = value.owner
        if value not in self.places.views and isinstance(op, ConstantOp) and has_kernel(op):
            self.launch([op], [value], {}, op)
        return self.places.stored(value)

    def launch(
        self,
        ops: Sequence[FlowOp],
        outputs: Sequence[SSAValue],
        arguments: Mapping[SSAValue, SSAValue],
        origin: FlowOp,
        *,
        free: bool = True,
        named: Mapping[SSAValue, SSAValue] | None = None,
        turned: Orders | None = None,
    ) -> list[SSAValue]:
        """Make a kernel and launch it, after the copies that it needs.

        Args:
            ops: the group, in order.
            outputs: which of its results are read outside of it.
            arguments: the values outside that the group's own arguments stand for.
            origin: the op of the program that the launch takes its place and names from.
            free: store the results in the order of dims that suits them.
            named: where ``ops`` are written anew, the results of the program that theirs are.
            turned: the order of dims of results for which no other suits better.

        Returns:
            A value for each of ``outputs``, with the dims in the program's order.

        Raises:
            IrcError: ``fusion-illegal``, where the group is not one kernel.
        """

        def outside(value: SSAValue) -> SSAValue:
            return arguments.get(value, value)

        def source(value: SSAValue) -> Stored:
            return self.stored(outside(value))

        operands = {value for op in ops for value in op.inputs}
        for _ in range(MAX_COPIES + len(operands)):
            orders: Orders = self._orders(ops, outputs, source) if free else {}
            orders = {**(turned or {}), **orders}
            try:
                lowered = self.table.lower(ops, outputs, source, loc_of(origin), orders)
                break
            except GroupError as error:
                wanted = [(outside(value), order) for value, order in error.copies]
                copied = [self.copy(value, order) for value, order in wanted]
                if not any(copied):
                    raise _illegal(origin, str(error)) from error
        else:
            raise _illegal(origin, "it needs more copies than it has operands")
        lowered = self._packed(lowered)
        launch = LaunchOp.make(
            lowered.operands,
            [_stored_type(v, orders.get(v)) for v in outputs],
            kernel=SymbolRefAttr(self.table.add(lowered.kernel).sym_name.data),
        )
        carry(launch, origin)
        known = [named.get(v, v) for v in outputs] if named else outputs
        kept = [orders.get(value, ()) for value in outputs]
        names = [stored_id(result_id(v), order) for v, order in zip(known, kept, strict=True)]
        launch.attributes["results"] = ArrayAttr([StringAttr(name) for name in names])
        if (placed := noted_placements(known)) is not None:
            launch.attributes["sbp"] = placed
        self.places.insert(launch)
        results: list[SSAValue] = list(launch.outputs)
        for i, value in enumerate(outputs):
            if value in orders:
                results[i] = self._logical(value, results[i], orders[value])
            self.places.views[value] = self.stored(results[i])
        return results

    def _orders(
        self,
        ops: Sequence[FlowOp],
        outputs: Sequence[SSAValue],
        source: Callable[[SSAValue], Stored],
    ) -> Orders:
        target = self.table.target
        if is_attention(ops[0], target) or is_attention_backward(ops[0], target):
            return result_orders(ops[0])
        return orders_of(ops, outputs, source, self.places.spread)

    def _logical(self, value: SSAValue, stored: SSAValue, order: tuple[int, ...]) -> SSAValue:
        """Return the view of a result, stored in another order of dims, as the program names it."""
        view = ordered_view(shape_of(value), order)
        shown = self.places.view(value, stored, view)
        if order == channels_last(len(order)):
            self.places.spread.add(stored)
        self.places.views[shown], self.places.written[shown] = (stored, view), shown
        return shown

    def _packed(self, lowered: Lowered) -> Lowered:
        """Let a matmul read its weight in panels, after the launch that packs it."""
        packed = self.table.packed(lowered)
        if packed is None:
            return lowered
        weight = lowered.operands[packed.source]
        kernel = self.table.add(packed.pack)
        place = (weight, kernel.sym_name.data)
        if place not in self._panels:
            kind = TensorType.of([packed.elements], tensor(weight).dtype)
            launch = LaunchOp.make([weight], [kind], kernel=SymbolRefAttr(kernel.sym_name.data))
            launch.attributes["loc"] = packed.pack.attributes["loc"]
            launch.attributes["id"] = StringAttr(f"{kernel.sym_name.data}_{len(self._panels)}")
            self.places.insert(launch)
            self._panels[place] = launch.outputs[0]
        operands = list(lowered.operands)
        if packed.argument == len(operands):
            operands.append(weight)
        operands[packed.argument] = self._panels[place]
        return Lowered(packed.kernel, tuple(operands))

    def copy(self, value: SSAValue, order: tuple[int, ...]) -> bool:
        """Make a value contiguous with its dims in ``order``; False where it is so already.

        No order, ``()``, is that of the program.
        """
        shape, kind = shape_of(value), tensor(value)
        order = order or tuple(range(len(shape)))
        inverse = tuple(order.index(d) for d in range(len(order)))
        wanted = View.contiguous([shape[d] for d in order]).transpose(inverse)
        if self.stored(value)[1] == wanted:
            return False
        turn = TransposeOp.make(
            [value], [TensorType.of([shape[d] for d in order], kind.dtype)], perm=order
        )
        if isinstance(value.owner, Operation):
            carry(turn, value.owner)
            turn.attributes["id"] = StringAttr(stored_id(result_id(value), order))
            if (placed := noted_placements([value])) is not None:
                turn.attributes["sbp"] = placed
        if kind.dtype in LIBRARY_DTYPES:
            turn.operands[0] = self.operand(value, strided=True)
            self.places.insert(turn)
            self.places.views[value] = (turn.outputs[0], wanted)
            return True
        turned = turn.outputs[0]
        (result,) = self.launch([turn], [turned], {}, turn, free=False)
        self.places.views[value] = (result, wanted)
        turn.erase()
        return True

    def operand(self, value: SSAValue, *, strided: bool) -> SSAValue:
        """Return what an op that is no kernel reads: the value itself, a view, or a copy.

        Args:
            value: as the program names it.
            strided: it may have gaps; otherwise it is dense, and begins at an aligned place.
        """
        if not isinstance(value.type, TensorType):
            return value
        root, view = self.stored(value)
        if root is value:
            return value
        dense = view.is_dense and view.offset * ITEM_BYTES[tensor(value).dtype] % ALIGNMENT == 0
        if view.strides is None or not (strided or dense):
            self.copy(value, ())
            root, view = self.stored(value)
        if root.type == value.type and view.is_plain:
            return root
        return self.places.view(value, root, view)


def _stored_type(value: SSAValue, order: tuple[int, ...] | None) -> Attribute:
    if order is None:
        return value.type
    shape = shape_of(value)
    return TensorType.of([shape[d] for d in order], tensor(value).dtype)


def _illegal(op: FlowOp, reason: str) -> IrcError:
    kind: Attribute | None = op.properties.get("kind")
    return IrcError(
        "fusion-illegal",
        f"{op.name} {kind or ''} is not one kernel: {reason}",
        where=loc_of(op),
        because="one loop nest must fit all its ops",
        help="split the flow.fusion where the message says, or let pass fuse make the groups",
    )

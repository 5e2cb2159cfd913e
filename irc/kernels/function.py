"""A function of flow ops becomes one of launches and views: the body of pass ``map-tasks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from irc.dialects.flow import (
    ConstantOp,
    FlowOp,
    FusionOp,
    PadOp,
    PointwiseOp,
    TransposeOp,
    carry,
    id_of,
    loc_of,
    noted_placements,
    result_id,
    tensor,
)
from irc.dialects.task import KernelOp, LaunchOp, ViewOp
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.kernels.along import along_kernel, is_along
from irc.kernels.attention import attention_kernel, is_attention, result_orders
from irc.kernels.attention_backward import (
    attention_backward_kernel,
    gradients,
    is_attention_backward,
)
from irc.kernels.attention_parts import part, parts_of
from irc.kernels.holds import (
    COMPUTE_OPS,
    CPU_OPS,
    FREE_OPS,
    LIBRARY_DTYPES,
    SHAPE_OPS,
    has_kernel,
    require_static,
    shape_of,
)
from irc.kernels.lower import Lowered, lower
from irc.kernels.names import hint, identity
from irc.kernels.nest import nest_of
from irc.kernels.orders import (
    Orders,
    channels_last,
    has_channels_last,
    is_depthwise,
    margins_of,
    ordered_view,
    orders_of,
    reads_lines,
    stored_id,
    taps_first,
)
from irc.kernels.trace import GroupError, Stored
from irc.kernels.view import View, contiguous_strides
from irc.kernels.weights.fixed import Fixed
from irc.kernels.weights.panels import Packed, packed, weight_of
from irc.kernels.weights.windows import packed_windows
from irc.kernels.wide_sums import wide_sums

MAX_COPIES = 4
"""Rounds of copying, besides one for each operand, before a kernel counts as impossible.

A round mends one known reason, which names the operands that it is about: each of a packed
matmul's weight, scales, zeros and rows may be the subject of a round of its own.
"""

MOVES = frozenset({"flow.reshape", "flow.transpose"})
"""Shape ops that a kernel's gradient is written with."""


class KernelTable:
    """The kernels of a module: equal ones are made once.

    With ``any_rows`` the number of rows decides nothing, as long as it is above one.
    """

    def __init__(self, target: str, fixed: Fixed, *, any_rows: bool = False) -> None:
        self.target, self.fixed, self.any_rows = target, fixed, any_rows
        self._known: dict[str, KernelOp] = {}

    @property
    def kernels(self) -> list[KernelOp]:
        """All kernels, in order of their names."""
        return list(self._known.values())

    def lower(
        self,
        ops: Sequence[FlowOp],
        outputs: Sequence[SSAValue],
        source: _Source,
        loc: str,
        orders: Orders,
    ) -> Lowered:
        """Return the kernel of a group, not one of the table yet.

        Raises:
            GroupError: where the group is no kernel.
        """
        if is_attention(ops[0], self.target):
            return attention_kernel(ops[0], source, orders, self.target, any_rows=self.any_rows)
        if is_along(ops[0], self.target):
            return along_kernel(ops[0], source)
        if is_attention_backward(ops[0], self.target):
            return attention_backward_kernel(ops[0], source, orders, self.target)
        nest = nest_of(ops, outputs, source, orders)
        sources = [id_of(op) for op in ops if op.name in COMPUTE_OPS | FREE_OPS]
        return lower(nest, name=hint(nest), target=self.target, loc=loc, sources=sources)

    def packed(self, made: Lowered) -> Packed | None:
        """Return a matmul as it reads a packed weight, where packing pays: the weight stays.

        A convolution always does: packing costs less than what it saves in one call.
        """
        if self.target == "cpu" and (found := packed_windows(made.kernel)) is not None:
            return found
        argument = weight_of(made.kernel, self.any_rows) if self.target == "cpu" else None
        if argument is None or not self.fixed(made.operands[argument]):
            return None
        return packed(made.kernel, argument, any_rows=self.any_rows)

    def add(self, kernel: KernelOp) -> KernelOp:
        """Return an equal kernel that is known, or name and keep this one."""
        key = identity(kernel)
        known = self._known.get(key)
        if known is None:
            kernel.properties["sym_name"] = StringAttr(
                f"k{len(self._known)}_{kernel.sym_name.data}"
            )
            self._known[key] = kernel
            return kernel
        merged = dict.fromkeys([*_sources(known), *_sources(kernel)])
        known.properties["sources"] = ArrayAttr([StringAttr(s) for s in merged])
        return known


def _sources(kernel: KernelOp) -> list[str]:
    return [] if kernel.sources is None else [s.data for s in kernel.sources]


class _Source:
    """Where a value of a group lies: fusion arguments stand for the operands outside."""

    def __init__(self, mapper: _Mapper, arguments: dict[SSAValue, SSAValue]) -> None:
        self.mapper, self.arguments = mapper, arguments

    def outside(self, value: SSAValue) -> SSAValue:
        """Return the operand behind a fusion argument."""
        return self.arguments.get(value, value)

    def __call__(self, value: SSAValue) -> Stored:
        return self.mapper.stored(self.outside(value))


def map_function(func: FuncOp, table: KernelTable) -> None:
    """Rewrite one function in place."""
    if func.is_declaration:
        return
    require_static(func)
    mapper = _Mapper(table)
    if any(each.name == "flow.convolution" for each in func.body.walk()):
        # Images that are given channels last, of which the program sees the dims in their order.
        mapper.spread.update(func.body.block.args)
    for op in list(func.body.block.ops):
        mapper.rewrite(op)
    for op in reversed(mapper.gone):
        op.detach()
        op.erase()


class _Mapper:
    """The state of one function: where values lie, and which ops are gone."""

    def __init__(self, table: KernelTable) -> None:
        self.table = table
        self.views: dict[SSAValue, Stored] = {}
        self.written: dict[SSAValue, SSAValue] = {}
        self.gone: list[Operation] = []
        self.panels: dict[tuple[SSAValue, str], SSAValue] = {}
        self.spread: set[SSAValue] = set()
        self.at: Operation | None = None

    def rewrite(self, op: Operation) -> None:
        """Rewrite one op; operands have been rewritten before."""
        self.at = op
        if isinstance(op, FusionOp):
            self._fusion(op)
        elif isinstance(op, FlowOp) and op.name in SHAPE_OPS:
            self._shape_op(op)
        elif isinstance(op, ConstantOp) and has_kernel(op):
            self.gone.append(op)  # a kernel holds its own; others get it where they first read it
        elif isinstance(op, FlowOp) and op.name in self._own_ops() and has_kernel(op):
            self._lone(op)
        elif isinstance(op, FlowOp) and is_attention(op, self.table.target):
            self._whole(op)
        elif isinstance(op, FlowOp) and is_attention_backward(op, self.table.target):
            self._gradients(op)
        elif is_along(op, self.table.target):
            self._along(op)
        else:
            strided = isinstance(op, FlowOp) and op.name.startswith("flow.")
            for index, value in enumerate(op.operands):
                op.operands[index] = self._operand(value, strided=strided)

    def _own_ops(self) -> frozenset[str]:
        """The ops that kernels of the target compute."""
        ops = COMPUTE_OPS | FREE_OPS
        return ops if self.table.target == "cpu" else ops - CPU_OPS

    def stored(self, value: SSAValue) -> Stored:
        """Return the contiguous tensor that holds a value, and where in it."""
        if value not in self.views:
            if isinstance(op := value.owner, ConstantOp) and has_kernel(op):
                self._launch([op], [value], {}, op)
            else:
                self.views[value] = (value, View.contiguous(shape_of(value)))
        return self.views[value]

    # Kernels.

    def _fusion(self, op: FusionOp) -> None:
        block = op.body.block
        arguments: dict[SSAValue, SSAValue] = dict(zip(block.args, op.inputs, strict=True))
        *ops, end = [each for each in block.ops if isinstance(each, FlowOp)]
        results = self._launch(ops, list(end.inputs), arguments, op)
        for old, new in zip(op.outputs, results, strict=True):
            old.replace_all_uses_with(new)
        self.gone.append(op)

    def _lone(self, op: FlowOp) -> None:
        literals = [
            v.owner for v in dict.fromkeys(op.inputs)
            if isinstance(op, PointwiseOp) and isinstance(v.owner, ConstantOp)
            and has_kernel(v.owner) and len(v.owner.plain["value"]) == 1
        ]  # fmt: skip
        (result,) = self._launch([*literals, op], [op.outputs[0]], {}, op)
        op.outputs[0].replace_all_uses_with(result)
        self.gone.append(op)

    def _whole(self, op: FlowOp) -> None:
        """Launch the kernel of an op that has a template of its own."""
        parts = 1 if self.table.any_rows else parts_of(op, self.table.target)
        if parts > 1:
            results = self._in_parts(op, parts)
        else:
            results = self._launch([op], list(op.outputs), {}, op)
        for old, new in zip(op.outputs, results, strict=True):
            old.replace_all_uses_with(new)
        self.gone.append(op)

    def _along(self, op: Operation) -> None:
        """Launch the kernel of an op along a dim; its results lie as the program says."""
        assert isinstance(op, FlowOp)
        made, results = wide_sums(op) or [op], list[SSAValue]()
        for each in made:
            results = self._launch([each], list(each.outputs), {}, each, free=False)
        for each in reversed(made):
            if each is not op:
                each.erase()
        for old, new in zip(op.outputs, results, strict=True):
            old.replace_all_uses_with(new)
        self.gone.append(op)

    def _in_parts(self, op: FlowOp, parts: int) -> list[SSAValue]:
        """Launch attention with its keys in parts, and what joins them."""
        made = part(op, parts)
        self._launch([made.partial], list(made.partial.outputs), {}, made.partial)
        named = dict(zip((made.y, made.sums), op.outputs, strict=False))
        wanted = [made.weights, made.sums][: len(op.outputs)]
        _, *sums = self._launch(made.weigh, wanted, {}, made.partial, named=named)
        results = [*self._launch(made.join, [made.y], {}, op, named=named), *sums]
        made.erase()
        return results

    def _gradients(self, op: FlowOp) -> None:
        """Launch the kernels of attention's derivative."""
        made = gradients(op, self.table.target)
        for old, new in zip(op.outputs, made.results, strict=True):
            old.replace_all_uses_with(new)
        found: dict[SSAValue, SSAValue] = {}
        named = dict(zip(made.results, op.outputs, strict=True))
        for ops, outputs in made.kernels:
            origin = op if made.results[0] in outputs else ops[-1]
            results = self._launch(ops, outputs, {}, origin, named=named)
            found.update(zip(outputs, results, strict=True))
        for value in made.results:
            value.replace_all_uses_with(found[value])
        made.erase()
        self.gone.append(op)

    def _launch(
        self,
        ops: Sequence[FlowOp],
        outputs: Sequence[SSAValue],
        arguments: dict[SSAValue, SSAValue],
        origin: FlowOp,
        *,
        free: bool = True,
        named: Mapping[SSAValue, SSAValue] | None = None,
    ) -> list[SSAValue]:
        """Make a kernel and launch it, after the copies that it needs.

        Its results are stored in the order of dims that suits them if ``free``. Where ``ops`` are
        written anew, ``named`` says of which results of the program theirs are.
        """
        source = _Source(self, arguments)
        self._turn_images(ops, source)
        operands = {value for op in ops for value in op.inputs}
        for _ in range(MAX_COPIES + len(operands)):
            orders: Orders = self._orders(ops, outputs, source) if free else {}
            try:
                made = self.table.lower(ops, outputs, source, loc_of(origin), orders)
                break
            except GroupError as error:
                wanted = [(source.outside(value), order) for value, order in error.copies]
                copied = [self._copy(value, order) for value, order in wanted]
                if not any(copied):
                    raise _illegal(origin, str(error)) from error
        else:
            raise _illegal(origin, "it needs more copies than it has operands")
        made = self._packed(made)
        launch = LaunchOp.make(
            made.operands,
            [_stored_type(v, orders.get(v)) for v in outputs],
            kernel=SymbolRefAttr(self.table.add(made.kernel).sym_name.data),
        )
        carry(launch, origin)
        known = [named.get(v, v) for v in outputs] if named else outputs
        kept = [orders.get(value, ()) for value in outputs]
        names = [stored_id(result_id(v), order) for v, order in zip(known, kept, strict=True)]
        launch.attributes["results"] = ArrayAttr([StringAttr(name) for name in names])
        if (placed := noted_placements(known)) is not None:
            launch.attributes["sbp"] = placed
        self._insert(launch)
        results: list[SSAValue] = list(launch.outputs)
        for i, value in enumerate(outputs):
            if value in orders:
                results[i] = self._logical(value, results[i], orders[value])
            self.views[value] = self.stored(results[i])
        return results

    def _orders(
        self, ops: Sequence[FlowOp], outputs: Sequence[SSAValue], source: _Source
    ) -> Orders:
        target = self.table.target
        if is_attention(ops[0], target) or is_attention_backward(ops[0], target):
            return result_orders(ops[0])
        return orders_of(ops, outputs, source, self.spread)

    def _logical(self, value: SSAValue, stored: SSAValue, order: tuple[int, ...]) -> SSAValue:
        """Return the view of a result, stored in another order of dims, as the program names it."""
        view = ordered_view(shape_of(value), order)
        shown = self._view(value, stored, view)
        if order == channels_last(len(order)):
            self.spread.add(stored)
        self.views[shown], self.written[shown] = (stored, view), shown
        return shown

    def _turn_images(self, ops: Sequence[FlowOp], source: _Source) -> None:
        """Copy what convolutions read so that its channels lie side by side."""
        for op in ops:
            if op.name == "flow.convolution" and op.plain.get("of_kernel"):
                self._turn_factors(op, source)
            elif op.name == "flow.convolution":
                image, weight = (source.outside(value) for value in op.inputs[:2])
                if lines := reads_lines(op):
                    self._surround(image, margins_of(op))
                if not has_channels_last(self.stored(image)[1]):
                    self._copy(image, channels_last(len(shape_of(image))))
                if is_depthwise(op):
                    self._copy(weight, taps_first(len(shape_of(weight))))
                elif lines:
                    self._copy(weight, channels_last(len(shape_of(weight))))

    def _turn_factors(self, op: FlowOp, source: _Source) -> None:
        """Copy image and gradient, whose dims have changed places, channels side by side."""
        for value in map(source.outside, op.inputs[:2]):
            moved, origin = list[FlowOp](), value
            while isinstance(origin.owner, FlowOp) and origin.owner.name in MOVES:
                moved.append(origin.owner)
                origin = origin.owner.inputs[0]
                if len(shape_of(origin)) == len(shape_of(value)):
                    break
            if has_channels_last(self.stored(origin)[1]):
                continue
            self._copy(origin, channels_last(len(shape_of(origin))))
            for each in reversed(moved):
                root, view = self.stored(each.inputs[0])
                found = view.apply(each.name, each.plain, shape_of(each.outputs[0]))
                assert found is not None, "dims that change places are a view"
                self.views[each.outputs[0]] = (root, found)

    def _surround(self, image: SSAValue, margins: tuple[tuple[int, int], ...]) -> None:
        """Copy an image with zeros around it, channels last, unless it lies in such a copy."""
        known = self.stored(image)[1].margins or [(0, 0)] * len(margins)
        pairs = list(zip(margins, known, strict=True))
        if all(low <= before and high <= after for (low, high), (before, after) in pairs):
            return
        shape, dtype, order = shape_of(image), tensor(image).dtype, channels_last(len(margins))
        lows, highs = zip(*margins, strict=True)
        wide = [low + n + high for n, (low, high) in zip(shape, margins, strict=True)]
        kinds = [TensorType.of(wide, dtype), TensorType.of([wide[d] for d in order], dtype)]
        padded = PadOp.make([image], kinds[:1], low=lows, high=highs, value=0.0)
        turn = TransposeOp.make([padded.outputs[0]], kinds[1:], perm=order)
        if isinstance(image.owner, Operation):
            carry(padded, image.owner)
            carry(turn, image.owner)
            turn.attributes["id"] = StringAttr(f"{id_of(image.owner)}.padded")
        (result,) = self._launch([padded, turn], [turn.outputs[0]], {}, turn, free=False)
        self.views[image] = (result, ordered_view(wide, order).within(margins))
        turn.erase()
        padded.erase()

    def _packed(self, made: Lowered) -> Lowered:
        """Let a matmul read its weight in panels, after the launch that packs it."""
        found = self.table.packed(made)
        if found is None:
            return made
        weight = made.operands[found.source]
        kernel = self.table.add(found.pack)
        place = (weight, kernel.sym_name.data)
        if place not in self.panels:
            kind = TensorType.of([found.elements], tensor(weight).dtype)
            launch = LaunchOp.make([weight], [kind], kernel=SymbolRefAttr(kernel.sym_name.data))
            launch.attributes["loc"] = found.pack.attributes["loc"]
            launch.attributes["id"] = StringAttr(f"{kernel.sym_name.data}_{len(self.panels)}")
            self._insert(launch)
            self.panels[place] = launch.outputs[0]
        operands = list(made.operands)
        if found.argument == len(operands):
            operands.append(weight)
        operands[found.argument] = self.panels[place]
        return Lowered(found.kernel, tuple(operands))

    def _copy(self, value: SSAValue, order: tuple[int, ...]) -> bool:
        """Make a value contiguous with its dims in ``order``; False where it is so already."""
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
            turn.operands[0] = self._operand(value, strided=True)
            self._insert(turn)
            self.views[value] = (turn.outputs[0], wanted)
            return True
        turned = turn.outputs[0]
        (result,) = self._launch([turn], [turned], {}, turn, free=False)
        self.views[value] = (result, wanted)
        turn.erase()
        return True

    # Views.

    def _shape_op(self, op: FlowOp) -> None:
        self.gone.append(op)
        shape = shape_of(op.outputs[0])
        for _ in range(2):
            root, view = self.stored(op.inputs[0])
            found = view.apply(op.name, op.plain, shape)
            if found is not None and not (found.strides is None and _is_library(op.inputs[0])):
                self.views[op.outputs[0]] = (root, found)
                return
            self._copy(op.inputs[0], ())
        raise AssertionError(f"{op.name} of a contiguous value is a view")

    def _operand(self, value: SSAValue, *, strided: bool) -> SSAValue:
        """Return what an op that is no kernel reads: the value itself, a view, or a copy."""
        if not isinstance(value.type, TensorType):
            return value
        root, view = self.stored(value)
        if root is value:
            return value
        if view.strides is None or not (strided or view.is_plain):
            self._copy(value, ())
            root, view = self.stored(value)
        if root.type == value.type and view.is_plain:
            return root
        return self._view(value, root, view)

    def _view(self, value: SSAValue, root: SSAValue, view: View) -> SSAValue:
        if value not in self.written:
            strides = contiguous_strides(shape_of(value)) if view.is_plain else view.strides
            assert strides is not None
            op = ViewOp.make([root], [value.type], offset=view.offset, strides=strides)
            if isinstance(value.owner, Operation):
                carry(op, value.owner)
                op.attributes["id"] = StringAttr(result_id(value))
                if (placed := noted_placements([value])) is not None:
                    op.attributes["sbp"] = placed
            self._insert(op)
            self.written[value] = op.outputs[0]
        return self.written[value]

    def _insert(self, op: Operation) -> None:
        assert self.at is not None and self.at.parent is not None
        self.at.parent.insert_op_before(op, self.at)


def _is_library(value: SSAValue) -> bool:
    """True for what no kernel computes with: a copy of it is the library's, which needs strides."""
    return tensor(value).dtype in LIBRARY_DTYPES


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

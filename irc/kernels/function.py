"""A function of flow ops becomes one of launches and views: the body of pass ``map-tasks``."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from irc.dialects.flow import (
    ConstantOp,
    FlowOp,
    FusionOp,
    PointwiseOp,
    TransposeOp,
    carry,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.task import KernelOp, LaunchOp, ViewOp
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.kernels.holds import (
    COMPUTE_OPS,
    FREE_OPS,
    SHAPE_OPS,
    has_kernel,
    require_static,
    shape_of,
)
from irc.kernels.lower import Lowered, lower
from irc.kernels.names import hint, identity
from irc.kernels.nest import nest_of
from irc.kernels.trace import GroupError, Stored
from irc.kernels.view import View, contiguous_strides

MAX_COPIES = 4
"""Rounds of copying before a kernel counts as impossible; one round mends each known reason."""


class KernelTable:
    """The kernels of a module: equal ones are made once."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._known: dict[str, KernelOp] = {}

    @property
    def kernels(self) -> list[KernelOp]:
        """All kernels, in order of their names."""
        return list(self._known.values())

    def lower(
        self, ops: Sequence[FlowOp], outputs: Sequence[SSAValue], source: _Source, loc: str
    ) -> Lowered:
        """Return the kernel of a group, perhaps one made before.

        Raises:
            GroupError: where the group is no kernel.
        """
        nest = nest_of(ops, outputs, source)
        sources = [id_of(op) for op in ops if op.name in COMPUTE_OPS | FREE_OPS]
        name = f"k{len(self._known)}_{hint(nest)}"
        made = lower(nest, name=name, target=self.target, loc=loc, sources=sources)
        known = self._known.setdefault(identity(made.kernel), made.kernel)
        if known is not made.kernel:
            old = [] if known.sources is None else [s.data for s in known.sources]
            merged = dict.fromkeys([*old, *sources])
            known.properties["sources"] = ArrayAttr([StringAttr(s) for s in merged])
        return Lowered(known, made.operands)


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
        elif isinstance(op, FlowOp) and op.name in COMPUTE_OPS | FREE_OPS and has_kernel(op):
            self._lone(op)
        else:
            strided = isinstance(op, FlowOp) and op.name.startswith("flow.")
            for index, value in enumerate(op.operands):
                op.operands[index] = self._operand(value, strided=strided)

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

    def _launch(
        self,
        ops: Sequence[FlowOp],
        outputs: Sequence[SSAValue],
        arguments: dict[SSAValue, SSAValue],
        origin: FlowOp,
    ) -> list[SSAValue]:
        """Make a kernel and launch it, after the copies that it needs."""
        source = _Source(self, arguments)
        for _ in range(MAX_COPIES):
            try:
                made = self.table.lower(ops, outputs, source, loc_of(origin))
                break
            except GroupError as error:
                wanted = [(source.outside(value), order) for value, order in error.copies]
                copied = [self._copy(value, order) for value, order in wanted]
                if not any(copied):
                    raise _illegal(origin, str(error)) from error
        else:
            raise _illegal(origin, "it needs more copies than it has operands")
        names = [id_of(v.owner) if isinstance(v.owner, Operation) else "" for v in outputs]
        launch = LaunchOp.make(
            made.operands,
            [v.type for v in outputs],
            kernel=SymbolRefAttr(made.kernel.sym_name.data),
        )
        carry(launch, origin)
        launch.attributes["results"] = ArrayAttr([StringAttr(name) for name in names])
        if "sbp" in origin.attributes:
            launch.attributes["sbp"] = origin.attributes["sbp"]
        self._insert(launch)
        for value, result in zip(outputs, launch.outputs, strict=True):
            self.views[value] = self.stored(result)
        return list(launch.outputs)

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
            if "sbp" in value.owner.attributes and order == tuple(range(len(order))):
                turn.attributes["sbp"] = value.owner.attributes["sbp"]
        turned = turn.outputs[0]
        (result,) = self._launch([turn], [turned], {}, turn)
        self.views[value] = (result, wanted)
        turn.erase()
        return True

    # Views.

    def _shape_op(self, op: FlowOp) -> None:
        self.gone.append(op)
        shape = shape_of(op.outputs[0])
        for _ in range(2):
            root, view = self.stored(op.inputs[0])
            if (found := view.apply(op.name, op.plain, shape)) is not None:
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
                if "sbp" in value.owner.attributes:
                    op.attributes["sbp"] = value.owner.attributes["sbp"]
            self._insert(op)
            self.written[value] = op.outputs[0]
        return self.written[value]

    def _insert(self, op: Operation) -> None:
        assert self.at is not None and self.at.parent is not None
        self.at.parent.insert_op_before(op, self.at)


def _illegal(op: FlowOp, reason: str) -> IrcError:
    kind: Attribute | None = op.properties.get("kind")
    return IrcError(
        "fusion-illegal",
        f"{op.name} {kind or ''} is not one kernel: {reason}",
        where=loc_of(op),
        because="one loop nest must fit all its ops",
        help="split the flow.fusion where the message says, or let pass fuse make the groups",
    )

"""A function of flow ops becomes one of launches and views: the body of pass ``map-tasks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from irc.dialects.flow import ExternOp, FlowOp, FusionOp, PointwiseOp, ShapeOp, tensor
from irc.dialects.literals import ConstantOp
from irc.dialects.windows import ConvolutionOp
from irc.kernels.along import is_along
from irc.kernels.attention import is_attention
from irc.kernels.attention_backward import gradients, is_attention_backward
from irc.kernels.attention_parts import part, parts_of
from irc.kernels.holds import (
    COMPUTE_OPS,
    CPU_OPS,
    FREE_OPS,
    LIBRARY_DTYPES,
    has_kernel,
    require_static,
    shape_of,
)
from irc.kernels.launches.images import turn_images
from irc.kernels.launches.kernel_table import KernelTable
from irc.kernels.launches.launcher import Launcher
from irc.kernels.launches.places import Places
from irc.kernels.orders import Orders, returned_order, stores_anyhow
from irc.kernels.recurrent import is_recurrent, packed_cell
from irc.kernels.wide_sums import wide_sums


def map_function(func: FuncOp, table: KernelTable) -> None:
    """Rewrite one function in place.

    Args:
        func: of static shapes.
        table: the kernels of its module; new ones are added.

    Raises:
        IrcError: ``fusion-illegal``, where a group of ops is not one kernel.
    """
    if func.is_declaration:
        return
    require_static(func)
    walk = _Walk(table)
    if any(isinstance(each, ConvolutionOp) for each in func.body.walk()):
        # Images that are given channels last, of which the program sees the dims in their order.
        walk.places.spread.update(func.body.block.args)
    for op in list(func.body.block.ops):
        walk.rewrite(op)
    for op in reversed(walk.gone):
        op.detach()
        op.erase()


class _Walk:
    """The ops of one function, in order: each becomes a launch, a view, or stays."""

    def __init__(self, table: KernelTable) -> None:
        self.table, self.places = table, Places()
        self.launcher = Launcher(table, self.places)
        self.gone: list[Operation] = []

    def rewrite(self, op: Operation) -> None:
        """Rewrite one op; operands have been rewritten before."""
        self.places.at = op
        if isinstance(op, FusionOp):
            self._fusion(op)
        elif isinstance(op, ShapeOp):
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
        elif is_recurrent(op, self.table.target, self.table.fixed, any_rows=self.table.any_rows):
            self._recurrent(op)
        else:
            strided = isinstance(op, FlowOp) and op.dialect_name() == "flow"
            for index, value in enumerate(op.operands):
                op.operands[index] = self.launcher.operand(value, strided=strided)

    def _own_ops(self) -> frozenset[str]:
        """The ops that kernels of the target compute."""
        ops = COMPUTE_OPS | FREE_OPS
        return ops if self.table.target == "cpu" else ops - CPU_OPS

    def _fusion(self, op: FusionOp) -> None:
        block = op.body.block
        arguments: dict[SSAValue, SSAValue] = dict(zip(block.args, op.inputs, strict=True))
        *ops, end = [each for each in block.ops if isinstance(each, FlowOp)]
        turn_images(ops, arguments, self.launcher)
        turned = _turned(ops, dict(zip(end.inputs, op.outputs, strict=True)))
        self._replace(op, self.launcher.launch(ops, list(end.inputs), arguments, op, turned=turned))

    def _lone(self, op: FlowOp) -> None:
        literals = [
            v.owner for v in dict.fromkeys(op.inputs)
            if isinstance(op, PointwiseOp) and isinstance(v.owner, ConstantOp)
            and has_kernel(v.owner) and len(v.owner.value) == 1
        ]  # fmt: skip
        turn_images([op], {}, self.launcher)
        turned = _turned([op], {op.outputs[0]: op.outputs[0]})
        (result,) = self.launcher.launch([*literals, op], [op.outputs[0]], {}, op, turned=turned)
        op.outputs[0].replace_all_uses_with(result)
        self.gone.append(op)

    def _whole(self, op: FlowOp) -> None:
        """Launch the kernel of an op that has a template of its own."""
        parts = 1 if self.table.any_rows else parts_of(op, self.table.target)
        if parts > 1:
            results = self._in_parts(op, parts)
        else:
            results = self.launcher.launch([op], list(op.outputs), {}, op)
        self._replace(op, results)

    def _along(self, op: Operation) -> None:
        """Launch the kernel of an op along a dim; its results lie as the program says."""
        assert isinstance(op, FlowOp)
        ops, results = wide_sums(op) or [op], list[SSAValue]()
        for each in ops:
            results = self.launcher.launch([each], list(each.outputs), {}, each, free=False)
        for each in reversed(ops):
            if each is not op:
                each.erase()
        self._replace(op, results)

    def _recurrent(self, op: Operation) -> None:
        """Launch the kernel of a recurrent cell, and before it what packs the cell's weights."""
        assert isinstance(op, ExternOp)
        packed = packed_cell(op)
        for each in packed.weights:
            self.rewrite(each)
        self.places.at = op
        named: dict[SSAValue, SSAValue] = dict(zip(packed.op.outputs, op.outputs, strict=True))
        results = self.launcher.launch(
            [packed.op], list(packed.op.outputs), {}, op, free=False, named=named
        )
        self.gone.append(packed.op)
        self._replace(op, results)

    def _in_parts(self, op: FlowOp, parts: int) -> list[SSAValue]:
        """Launch attention with its keys in parts, and what joins them."""
        parted = part(op, parts)
        self.launcher.launch([parted.partial], list(parted.partial.outputs), {}, parted.partial)
        named = dict(zip((parted.y, parted.sums), op.outputs, strict=False))
        wanted = [parted.weights, parted.sums][: len(op.outputs)]
        _, *sums = self.launcher.launch(parted.weigh, wanted, {}, parted.partial, named=named)
        results = [*self.launcher.launch(parted.join, [parted.y], {}, op, named=named), *sums]
        parted.erase()
        return results

    def _gradients(self, op: FlowOp) -> None:
        """Launch the kernels of attention's derivative."""
        derivative = gradients(op, self.table.target)
        for old, new in zip(op.outputs, derivative.results, strict=True):
            old.replace_all_uses_with(new)
        launched: dict[SSAValue, SSAValue] = {}
        named = dict(zip(derivative.results, op.outputs, strict=True))
        for ops, outputs in derivative.kernels:
            origin = op if derivative.results[0] in outputs else ops[-1]
            results = self.launcher.launch(ops, outputs, {}, origin, named=named)
            launched.update(zip(outputs, results, strict=True))
        for value in derivative.results:
            value.replace_all_uses_with(launched[value])
        derivative.erase()
        self.gone.append(op)

    def _shape_op(self, op: ShapeOp) -> None:
        self.gone.append(op)
        shape = shape_of(op.outputs[0])
        for _ in range(2):
            root, view = self.launcher.stored(op.x)
            result_view = view.apply(op.name, op.plain, shape)
            if result_view is not None and not (result_view.strides is None and _is_library(op.x)):
                self.places.views[op.outputs[0]] = (root, result_view)
                return
            self.launcher.copy(op.x, ())
        raise AssertionError(f"{op.name} of a contiguous value is a view")

    def _replace(self, op: FlowOp, results: Sequence[SSAValue]) -> None:
        """Let what reads an op read these values; the op is gone."""
        for old, new in zip(op.outputs, results, strict=True):
            old.replace_all_uses_with(new)
        self.gone.append(op)


def _turned(ops: Sequence[FlowOp], results: Mapping[SSAValue, SSAValue]) -> Orders:
    """Return the orders in which a kernel stores what the program returns turned.

    Args:
        ops: of the kernel.
        results: of the program, by those of the kernel.
    """
    if not stores_anyhow(ops):
        return {}
    orders = {inner: returned_order(outer) for inner, outer in results.items()}
    return {inner: order for inner, order in orders.items() if order is not None}


def _is_library(value: SSAValue) -> bool:
    """True for what no kernel computes with: a copy of it is the library's, which needs strides."""
    return tensor(value).dtype in LIBRARY_DTYPES

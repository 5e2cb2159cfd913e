"""The programs that slices of an output layer are: see :mod:`irc.training.vocabulary`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import (
    FlowBuilder,
    argument_attrs,
    arguments,
    entry,
    finish_function,
    functions,
    results,
)
from irc.dialects.flow import ConcatOp, ContractOp, SliceOp, TransposeOp, loc_of, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import IotaOp
from irc.dialects.types import TensorType
from irc.ops.linear_loss import LOSS, accumulating, operand_roles
from irc.training.head import Mean, loss_of, mean_of, weight_chain
from irc.training.slices import Sliced, slice_name
from irc.training.stages import BOUNDARY, with_called

LOWEST = -1e30
"""What stands for the largest logit of a slice in which all are minus infinity."""
LEAST = 1e-30
"""What stands for the sum of their exponentials."""


class Cutter:
    """An output layer while it is cut."""

    def __init__(self, head: ModuleOp, count: int) -> None:
        self.head, self.count = head, count
        self.func = entry(head)
        self.op = loss_of(self.func.body.block)
        roles = operand_roles(LOSS, self.op.arguments)
        self.operands = dict(zip(roles, self.op.inputs, strict=True))
        self.classes = tensor(self.operands["w"]).static_shape()[0]
        self.mean: Mean | None = mean_of(self.func.body.block, self.operands)
        self.names = {value: (role, name) for role, name, value in arguments(self.func)}
        self.bounds = bounds_of(self.classes, count)
        self.weights = dict(self._weight(r) for r in ("w", "bias") if r in self.operands)

    def _weight(self, role: str) -> tuple[str, Sliced]:
        """Return a weight's name, and how it is cut."""
        value, chain = weight_chain(self.operands[role])
        dim, name = 0, self.names[value][1]
        for op in chain:
            dim = op.perm[dim] if isinstance(op, TransposeOp) else dim
        starts, stops = zip(*self.bounds, strict=True)
        names = tuple(slice_name(name, *bounds) for bounds in self.bounds)
        return name, Sliced(names, dim, starts, stops)

    def part(
        self, number: int, hidden: str, sent: Sequence[str], read: Mapping[int, str],
        products: str = "",
    ) -> ModuleOp:  # fmt: skip
        """Return a slice's program with the loss behind it.

        Args:
            number: of the slice.
            hidden: name of the hidden rows.
            sent: names of its sums.
            read: names of the others' sums.
            products: name of its products, where it gives them.
        """
        at = Program(self)
        own = at.slice(number, hidden)
        sums = [
            own if i == number else at.argument(tensor(own), BOUNDARY, read[i])
            for i in range(self.count)
        ]
        outputs = {**dict.fromkeys(sent, own), **({products: at.products()} if products else {})}
        loss = at.loss(sums)
        return at.finish([loss, *outputs.values()], [self._loss, *map(_boundary, outputs)])

    def alone(self, number: int, hidden: str, sent: Sequence[str], products: str = "") -> ModuleOp:
        """Return a slice's program from hidden rows to sums, and products; see :meth:`part`."""
        at = Program(self)
        own = at.slice(number, hidden)
        outputs = {**dict.fromkeys(sent, own), **({products: at.products()} if products else {})}
        return at.finish(list(outputs.values()), list(map(_boundary, outputs)))

    def tail(self, names: Sequence[str] = (), products: Sequence[str] = ()) -> ModuleOp:
        """Return the program from the sums of all slices to the loss.

        Args:
            names: of the sums, by default ``sums.0`` and so on.
            products: names of further arguments, the slices' products.
        """
        at = Program(self)
        rows = tensor(self.op.outputs[0])
        kind = TensorType.of((2 if self.mean is None else 3, *rows.shape), rows.dtype)
        names = names or [f"sums.{i}" for i in range(self.count)]
        sums = [at.argument(kind, BOUNDARY, name) for name in names]
        count, width = tensor(self.operands["h"]).static_shape()
        height = 2 * count + (self.mean is not None)
        for name in products:
            at.argument(
                TensorType.of((height, width), tensor(self.operands["h"]).dtype), BOUNDARY, name
            )
        return at.finish([at.loss(sums)], [self._loss])

    @property
    def _loss(self) -> DictionaryAttr:
        return argument_attrs(*results(self.func)[0])


class Program:
    """One program of an output layer while it is written."""

    def __init__(self, cutter: Cutter) -> None:
        self.cut, self.block = cutter, Block()
        self.b = FlowBuilder(self.block, "vocabulary")
        self.b.loc = loc_of(cutter.op)
        self.values: dict[SSAValue, SSAValue] = {}
        self.attrs: list[DictionaryAttr] = []
        self.kept: tuple[int, SSAValue, SSAValue, SSAValue, SSAValue]

    def argument(self, kind: TensorType, role: str, name: str) -> SSAValue:
        """Append an argument."""
        self.attrs.append(argument_attrs(role, name))
        return self.block.insert_arg(kind, len(self.block.args))

    def slice(self, number: int, hidden: str) -> SSAValue:
        """Append what makes the sums of a slice, [2 or 3, rows]: see the module."""
        cut, b = self.cut, self.b
        start, stop = cut.bounds[number]
        h = self.values[cut.operands["h"]] = self.argument(
            tensor(cut.operands["h"]), BOUNDARY, hidden
        )
        weight = self._sliced("w", number)
        x = b.op(ContractOp, [h, weight], spec="nd,vd->nv")
        if "bias" in cut.operands:
            bias = b.reshape(self._sliced("bias", number), (1, stop - start))
            x = b.pointwise("add", x, bias)
        wide = accumulating(tensor(h).dtype)
        x = b.cast(x, wide)
        top = b.reduce("max", x, [1], keep_dims=True)
        near = b.pointwise("maximum", b.pointwise("floor", top), b.scalar(LOWEST, wide))
        powers = b.pointwise("exp", b.pointwise("sub", x, near))
        total = b.pointwise(
            "maximum", b.reduce("sum", powers, [1], keep_dims=True), b.scalar(LEAST, wide)
        )
        log = b.pointwise("add", b.pointwise("log", total), near)
        index = self.copy(cut.operands["index"])
        kind = tensor(index).dtype
        place = b.op(IotaOp, [], result=TensorType.of((1, stop - start), kind), dim=1)
        place = b.pointwise("add", place, b.scalar(start, kind))
        (rows,) = tensor(index).static_shape()
        self.kept = number, weight, powers, total, index
        mine = b.pointwise("eq", b.reshape(index, (rows, 1)), place)
        picked = b.reduce(
            "sum", b.pointwise("where", mine, x, b.scalar(0, wide)), [1], keep_dims=True
        )
        sums = [log, picked]
        if cut.mean is not None:
            share = b.scalar(cut.classes, wide)
            sums.append(b.pointwise("div", b.reduce("sum", x, [1], keep_dims=True), share))
        return b.op(ConcatOp, [b.reshape(each, (1, rows)) for each in sums], dim=0)

    def products(self) -> SSAValue:
        """Append what the gradient of the hidden rows is made of, [2 rows (+ 1), d], after a slice.

        The softmax within the slice times the weight; of each row the weight of its class, or
        nothing where that is in another slice; and the mean of the weight over all classes' number.
        """
        cut, b = self.cut, self.b
        number, weight, powers, total, index = self.kept
        start, stop = cut.bounds[number]
        kind, dtype = tensor(index).dtype, tensor(weight).dtype
        (rows,), (_, width) = tensor(index).static_shape(), tensor(weight).static_shape()
        chances = b.cast(b.pointwise("div", powers, total), dtype)
        products = [b.op(ContractOp, [chances, weight], spec="nv,vd->nd")]
        moved = b.pointwise("sub", index, b.scalar(start, kind))
        zero, last = b.scalar(0, kind), b.scalar(stop - start - 1, kind)
        inside = b.pointwise("minimum", b.pointwise("maximum", moved, zero), last)
        mine = b.reshape(b.pointwise("eq", moved, inside), (rows, 1))
        taken = b.op(TakeOp, [weight, inside], dim=0)
        products.append(b.pointwise("where", mine, taken, b.scalar(0, dtype)))
        if cut.mean is not None:
            wide = tensor(powers).dtype
            mean = b.reduce("sum", b.cast(weight, wide), [0], keep_dims=True)
            mean = b.pointwise("div", mean, b.scalar(cut.classes, wide))
            products.append(b.reshape(b.cast(mean, dtype), (1, width)))
        return b.op(ConcatOp, products, dim=0)

    def _sliced(self, role: str, number: int) -> SSAValue:
        """Append a slice of a weight as the layer reads it: an argument, cast and transposed."""
        cut, b = self.cut, self.b
        start, stop = cut.bounds[number]
        weight, chain = weight_chain(cut.operands[role])
        where, name = cut.names[weight]
        own, shape = cut.weights[name], list(tensor(weight).static_shape())
        shape[own.dim] = stop - start
        kind = TensorType.of(shape, tensor(weight).dtype)
        value = self.argument(kind, where, own.names[number])
        for op in reversed(chain):
            if isinstance(op, TransposeOp):
                value = b.op(TransposeOp, [value], perm=op.perm)
            else:
                value = b.cast(value, tensor(op.outputs[0]).dtype)
        return value

    def loss(self, sums: Sequence[SSAValue]) -> SSAValue:
        """Append what makes the loss of the sums of all slices."""
        cut, b = self.cut, self.b

        def row(number: int) -> SSAValue:
            each = [_row(b, value, number) for value in sums]
            return b.op(ConcatOp, each, dim=0)

        logs = row(0)
        near = b.pointwise("floor", b.reduce("max", logs, [0], keep_dims=False))
        powers = b.pointwise("exp", b.pointwise("sub", logs, near))
        total = b.pointwise("log", b.reduce("sum", powers, [0], keep_dims=False))
        log = b.pointwise("add", total, near)
        picked = b.reduce("sum", row(1), [0], keep_dims=False)
        self.values[cut.op.outputs[0]] = b.pointwise("sub", log, picked)
        self.values[cut.op.outputs[1]] = log
        if cut.mean is not None:
            self.values[cut.mean.value] = b.reduce("sum", row(2), [0], keep_dims=False)
        end = cut.func.body.block.last_op
        assert end is not None
        return self.copy(end.operands[0])

    def copy(self, value: SSAValue) -> SSAValue:
        """Return a value of the layer here, with what makes it."""
        if value in self.values:
            return self.values[value]
        if isinstance(value, BlockArgument):
            kind = tensor(value)
            self.values[value] = self.argument(kind, *self.cut.names[value])
            return self.values[value]
        op = value.owner
        assert isinstance(op, Operation)
        for operand in op.operands:
            self.copy(operand)
        self.block.add_op(op.clone(self.values))
        return self.values[value]

    def finish(self, returned: Sequence[SSAValue], attrs: Sequence[DictionaryAttr]) -> ModuleOp:
        """Return the program."""
        func: FuncOp = finish_function(
            "forward", self.block, returned, arg_attrs=self.attrs, res_attrs=attrs
        )
        return with_called(func, functions(self.cut.head), dict(self.cut.head.attributes))


def _row(b: FlowBuilder, value: SSAValue, number: int) -> SSAValue:
    _, rows = tensor(value).static_shape()
    return b.op(SliceOp, [value], starts=(number, 0), stops=(number + 1, rows), steps=(1, 1))


def _boundary(name: str) -> DictionaryAttr:
    return argument_attrs(BOUNDARY, name)


def bounds_of(classes: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return the first class of each slice and the one behind its last, as equal as can be.

    >>> bounds_of(7, 3)
    ((0, 3), (3, 5), (5, 7))
    """
    size, rest = divmod(classes, count)
    starts = [i * size + min(i, rest) for i in range(count + 1)]
    return tuple(pairwise(starts))

"""Blocks that are called many times: each becomes a forward and a backward function, once.

The body is differentiated as one, then cut: what the backward half reads of the forward half is
*saved*, as further results of the forward function. Literals and views are not saved but made
again from what is saved or given anyway (a transposed weight is not kept beside the weight).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import cloned, finish_function
from irc.dialects.flow import (
    BroadcastOp,
    PointwiseOp,
    ReshapeOp,
    TransposeOp,
    carry,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.literals import ConstantOp, IotaOp
from irc.dialects.types import ITEM_BYTES
from irc.errors import ErrorCollector
from irc.training.pairs import FORWARD
from irc.training.sweep import Gradients, Sweep

FREE = (ConstantOp, IotaOp, ReshapeOp, TransposeOp, BroadcastOp)
"""Literals and views: they are made again rather than kept."""


@dataclass(frozen=True)
class Variant:
    """The two functions of a block, for one choice of gradients.

    Attributes:
        forward: name of the function that also returns what is saved.
        backward: name of the function that returns gradients.
        saved: types of the saved values.
        reads: what backward takes before the gradients: arguments, results or saved values, each by
            its number ``(kind, index)``.
        gradients: per operand of the call, which result of backward is its gradient.
    """

    forward: str
    backward: str
    saved: tuple[Attribute, ...]
    reads: tuple[tuple[str, int], ...]
    gradients: tuple[int | None, ...]


class Blocks:
    """The variants of a module's blocks; new functions are put before the entry."""

    def __init__(self, known: dict[str, FuncOp], add: Callable[[FuncOp], None]) -> None:
        self._known, self._insert = known, add
        self._variants: dict[tuple[object, ...], Variant] = {}
        self.errors = ErrorCollector()

    def sweep_call(self, op: CallOp, incoming: Gradients, sweep: Sweep) -> Gradients:
        """Replace a call by one of the forward variant, append one of backward."""
        callee = op.callee.string_value()
        wanted = tuple(value in sweep.active for value in op.operands)
        fixed = tuple(value in sweep.fixed for value in op.operands)
        key = (callee, wanted, fixed, tuple(g is not None for g in incoming))
        if key not in self._variants:
            self._variants[key] = self._make(callee, wanted, fixed, incoming)
        variant = self._variants[key]
        if all(index is None for index in variant.gradients):
            return [None] * len(op.operands)
        operands, count = list(op.operands), len(op.results)
        forward = CallOp(variant.forward, operands, [*(r.type for r in op.results), *variant.saved])
        carry(forward, op)
        forward.attributes["phase"] = StringAttr("forward")
        assert op.parent is not None
        op.parent.insert_op_before(forward, op)
        for old, new in zip(op.results, forward.results[:count], strict=True):
            old.replace_all_uses_with(new)
        values = {"argument": operands, "result": forward.results[:count],
                  "saved": forward.results[count:]}  # fmt: skip
        reads = [values[kind][index] for kind, index in variant.reads]
        reads += [g for g in incoming if g is not None]
        results = self._call_backward(sweep, op, variant, reads)
        op.detach()
        op.erase()
        return [None if i is None else results[i] for i in variant.gradients]

    def _make(
        self,
        callee: str,
        wanted: Sequence[bool],
        fixed: Sequence[bool],
        incoming: Gradients,
    ) -> Variant:
        region = self._known[callee].body.clone()
        block = region.detach_block(region.block)
        arguments: list[SSAValue] = list(block.args)
        end = block.last_op
        assert isinstance(end, ReturnOp)
        results = list(end.operands)
        sweep = Sweep(
            block,
            [a for a, use in zip(arguments, wanted, strict=True) if use],
            [a for a, use in zip(arguments, fixed, strict=True) if use],
            self.errors,
            self.sweep_call,
        )
        gradients = [
            None if g is None else block.insert_arg(result.type, len(block.args))
            for result, g in zip(results, incoming, strict=True)
        ]
        sweep.run(added_seeds(sweep, results, gradients))
        outgoing = [
            sweep.gradient(a) if use else None for a, use in zip(arguments, wanted, strict=True)
        ]
        results = list(end.operands)
        end.detach()
        end.erase()
        kept: list[SSAValue] = [g for g in gradients if g is not None]
        return self._cut(callee, block, (arguments, results, kept), outgoing)

    def _cut(
        self,
        callee: str,
        block: Block,
        values: tuple[list[SSAValue], list[SSAValue], list[SSAValue]],
        outgoing: list[SSAValue | None],
    ) -> Variant:
        """Move the backward half to a function of its own."""
        arguments, results, gradients = values
        returned = list(dict.fromkeys(value for value in outgoing if value is not None))
        cut = Cut(block, arguments, results, returned)
        back, copies = cut.backward(gradients)
        for argument in reversed(gradients):
            assert isinstance(argument, BlockArgument)
            block.erase_arg(argument)
        forward = self._add(f"{callee}_forward", block, [*results, *cut.saved])
        backward = self._add(f"{callee}_backward", back, [copies[v] for v in returned])
        self._known[backward].attributes[FORWARD] = StringAttr(forward)
        return Variant(
            forward,
            backward,
            tuple(value.type for value in cut.saved),
            tuple(cut.reads),
            tuple(None if value is None else returned.index(value) for value in outgoing),
        )

    def _add(self, name: str, block: Block, results: Sequence[SSAValue]) -> str:
        number = 0
        while (free := f"{name}_{number}" if number else name) in self._known:
            number += 1
        self._known[free] = finish_function(free, block, results)
        self._insert(self._known[free])
        return free

    def _call_backward(
        self, sweep: Sweep, op: CallOp, variant: Variant, operands: list[SSAValue]
    ) -> Sequence[SSAValue]:
        kinds = self._known[variant.backward].function_type.outputs.data
        call = CallOp(variant.backward, operands, list(kinds))
        call.attributes["loc"] = StringAttr(loc_of(op))
        call.attributes["id"] = StringAttr(f"{id_of(op)}.g")
        call.attributes["phase"] = StringAttr("backward")
        sweep.block.add_op(call)
        return call.results


def added_seeds(
    sweep: Sweep, results: Sequence[SSAValue], gradients: Gradients
) -> dict[SSAValue, SSAValue]:
    """Return the gradient of each value that is returned, added up where one is returned twice."""
    seeds: dict[SSAValue, SSAValue] = {}
    for result, g in zip(results, gradients, strict=True):
        if g is None or result not in sweep.active:
            continue
        if result in seeds and isinstance(result.owner, Operation):
            b = sweep.builder(result.owner, "r")
            b.part = "input"
            g = b.pointwise("add", seeds[result], g)
        seeds[result] = g
    return seeds


class Cut:
    """A differentiated body while it is cut in two."""

    def __init__(
        self,
        block: Block,
        arguments: list[SSAValue],
        results: list[SSAValue],
        returned: list[SSAValue],
    ) -> None:
        self._block = block
        self._arguments = {value: i for i, value in enumerate(arguments)}
        self._results = {value: i for i, value in reversed(list(enumerate(results)))}
        self._back = _needed([op for op in block.ops if _phase(op) == "backward"], returned)
        self.reads: list[tuple[str, int]] = []
        self.saved: list[SSAValue] = []
        self._taken: list[SSAValue] = []
        self._again: dict[Operation, None] = {}
        inside = {value for op in self._back for value in op.results}
        outside = [v for op in self._back for v in op.operands if v not in inside]
        for value in dict.fromkeys([*outside, *(v for v in returned if v not in inside)]):
            self._read(value)

    def _read(self, value: SSAValue) -> None:
        """Take a forward value over: as an operand of backward, or made again there."""
        op = value.owner
        if isinstance(op, Operation) and _is_cheap(op):
            if op not in self._again:
                for operand in op.operands:
                    self._read(operand)
                self._again[op] = None
            return
        if value in self._taken:
            return
        if value in self._arguments:
            self.reads.append(("argument", self._arguments[value]))
        elif value in self._results:
            self.reads.append(("result", self._results[value]))
        elif isinstance(value, BlockArgument):
            return  # a gradient: they follow
        else:
            self.reads.append(("saved", len(self.saved)))
            self.saved.append(value)
        self._taken.append(value)

    def backward(self, gradients: list[SSAValue]) -> tuple[Block, dict[SSAValue, SSAValue]]:
        """Move the backward half to a block of its own."""
        taken = [*self._taken, *gradients]
        block = Block(arg_types=[value.type for value in taken])
        values: dict[SSAValue, SSAValue] = dict(zip(taken, block.args, strict=True))
        for op in (*self._again, *self._back):
            copy = cloned(op, values)
            copy.attributes["phase"] = StringAttr("backward")
            if op in self._again:
                copy.attributes["id"] = StringAttr(f"{id_of(op)}.again")
            block.add_op(copy)
        for op in reversed([op for op in self._block.ops if _phase(op) == "backward"]):
            op.detach()
            op.erase()
        return block, values


def _phase(op: Operation) -> str:
    attr = op.attributes.get("phase")
    return attr.data if isinstance(attr, StringAttr) else ""


def _needed(ops: Sequence[Operation], returned: Sequence[SSAValue]) -> list[Operation]:
    """Return the ops that what is returned depends on, in order."""
    wanted, kept = set(returned), list[Operation]()
    for op in reversed(ops):
        if any(value in wanted for value in op.results):
            wanted.update(op.operands)
            kept.append(op)
    return kept[::-1]


def _is_cheap(op: Operation) -> bool:
    """True for literals and views, and for casts whose source is no larger than their result."""
    if isinstance(op, FREE):
        return True
    if not (isinstance(op, PointwiseOp) and op.fn == "cast"):
        return False
    source, result = tensor(op.a), tensor(op.outputs[0])
    return ITEM_BYTES[source.dtype] <= ITEM_BYTES[result.dtype]

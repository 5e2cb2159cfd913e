"""A function is cut in two at a collective in its middle, which then stands between two calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import finish_function
from irc.dialects.comm import CollectiveOp
from irc.dialects.flow import FlowOp, id_of
from irc.dialects.literals import ConstantOp
from irc.dialects.noted import noted_placement, noted_placements


def split_at(func: FuncOp, start: CollectiveOp, wait: FlowOp, calls: Iterable[CallOp]) -> None:
    """Cut a function, and put two calls around the collective in the place of each call of it.

    The first part makes the operand of the collective, and whatever is made on the way to it. All
    that can wait for the collective does, so that little is held meanwhile. Literals are in both.

    Args:
        func: of level spmd; the module has its two parts instead, ``_before`` and ``_behind``.
        start: a collective in it whose operand is no argument.
        wait: its wait.
        calls: all calls of it.
    """
    block = func.body.block
    end = block.last_op
    assert end is not None
    needed = _needed(start.x)
    first = [op for op in block.ops if op in needed]
    rest = [op for op in block.ops if op not in needed and op not in (start, wait, end)]
    read = {value for op in (*rest, end) for value in op.operands}
    literals = [op for op in first if isinstance(op, ConstantOp) and op.outputs[0] in read]
    again = {op.outputs[0] for op in literals}
    shared = [v for op in first for v in op.results if v in read and v not in again]
    before = _part(func, "before", first, list(dict.fromkeys([start.x, *shared])))
    later = {v for op in (*literals, *rest) for v in op.results}
    behind = _part(
        func, "behind", [*literals, *rest], [v for v in dict.fromkeys(end.operands) if v in later]
    )
    for call in calls:
        known: dict[SSAValue, SSAValue] = dict(zip(block.args, call.operands, strict=True))
        name = id_of(call)
        ops: list[Operation] = [before.call(known, call, f"{name}.{id_of(wait)}.before")]
        for each in (start, wait):
            ops.append(each.clone(known))
            ops[-1].attributes["id"] = StringAttr(f"{name}.{id_of(each)}")
            known |= zip(each.results, ops[-1].results, strict=True)
        ops.append(behind.call(known, call, name))
        assert call.parent is not None
        call.parent.insert_ops_before(ops, call)
        for old, value in zip(call.results, end.operands, strict=True):
            known[value].name_hint = old.name_hint
            old.replace_all_uses_with(known[value])
        call.detach()
        call.erase()
    assert func.parent is not None
    func.parent.insert_ops_before([before.func, behind.func], func)
    func.detach()
    func.erase()


@dataclass(frozen=True)
class _Part:
    """A part of a function.

    Attributes:
        func: that runs it.
        reads: values of the whole function that it is given, in order.
        gives: values of the whole function that it returns, in order.
    """

    func: FuncOp
    reads: Sequence[SSAValue]
    gives: Sequence[SSAValue]

    def call(self, known: dict[SSAValue, SSAValue], like: CallOp, name: str) -> CallOp:
        """Return a call in the place of one of the whole; its results are ``known`` then."""
        types = [value.type for value in self.gives]
        call = CallOp(self.func.sym_name.data, [known[value] for value in self.reads], types)
        call.attributes = {**like.attributes, "id": StringAttr(name)}
        call.attributes.pop("sbp", None)
        if (placed := noted_placements(self.gives)) is not None:
            call.attributes["sbp"] = placed
        known |= zip(self.gives, call.results, strict=True)
        return call


def _part(func: FuncOp, name: str, ops: Sequence[Operation], gives: Sequence[SSAValue]) -> _Part:
    own = {value for op in ops for value in op.results}
    reads = list(dict.fromkeys(v for op in ops for v in op.operands if v not in own))
    block = Block(arg_types=[value.type for value in reads])
    mapped: dict[SSAValue, SSAValue] = dict(zip(reads, block.args, strict=True))
    block.add_ops([op.clone(mapped) for op in ops])
    results = [mapped[value] for value in gives]
    part = finish_function(f"{func.sym_name.data}_{name}", block, results)
    if func.arg_attrs is not None:
        part.arg_attrs = _attributes(_placement(func.arg_attrs, value) for value in reads)
        part.res_attrs = _attributes(map(noted_placement, gives))
    return _Part(part, reads, gives)


def _needed(value: SSAValue) -> set[Operation]:
    """Return the ops of a block that a value is made by."""
    needed: set[Operation] = set()
    left = [value.owner]
    while left:
        op = left.pop()
        if isinstance(op, Operation) and op not in needed:
            needed.add(op)
            left += [operand.owner for operand in op.operands]
    return needed


def _placement(arg_attrs: ArrayAttr[DictionaryAttr], value: SSAValue) -> Attribute | None:
    """Return where a value of a function lies, given the attributes of its arguments."""
    if isinstance(value, BlockArgument):
        return arg_attrs.data[value.index].data.get("sbp")
    return noted_placement(value)


def _attributes(placed: Iterable[Attribute | None]) -> ArrayAttr[DictionaryAttr]:
    return ArrayAttr(DictionaryAttr({} if p is None else {"sbp": p}) for p in placed)

"""Backward calls of repeated blocks in two: gradients that others wait for, and those of weights.

What depends on no gradient of a weight goes first (Zero Bubble, arXiv:2401.10241, section 2): the
marks that ``differentiate`` leaves say which ops that is. The first function hands the second what
that reads of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import entry, finish_function, functions
from irc.dialects.flow import id_of, phase_of
from irc.dialects.noted import noted_placement, noted_placements
from irc.training.blocks import FREE


def is_cheap(op: Operation) -> bool:
    """True for what is made again rather than kept: literals and views."""
    return isinstance(op, FREE)


def closure(values: Iterable[SSAValue]) -> set[Operation]:
    """Return the ops that some values depend on."""
    ops: set[Operation] = set()
    todo = list(values)
    while todo:
        op = todo.pop().owner
        if isinstance(op, Operation) and op not in ops:
            ops.add(op)
            todo += op.operands
    return ops


def _part(op: Operation) -> str:
    attr = op.attributes.get("grad")
    return attr.data if isinstance(attr, StringAttr) else ""


def input_part(ops: Sequence[Operation], waited: Iterable[SSAValue]) -> set[Operation]:
    """Return the ops that belong to I: marked so, or what those and waiting values depend on."""
    marked = [v for op in ops if _part(op) == "input" for v in op.results]
    return closure([*waited, *marked])


def split_calls(module: ModuleOp) -> None:
    """Part each backward call of the entry in one of input gradients and one of weights."""
    known = functions(module)
    parts: dict[str, _Parted | None] = {}
    for op in list(entry(module).body.block.ops):
        if not isinstance(op, CallOp) or phase_of(op) != "backward":
            continue
        name = op.callee.string_value()
        if name not in parts:
            parts[name] = _parted(known[name], module)
        parted = parts[name]
        if parted is not None:
            _replace_call(op, parted)
    for name, parted in parts.items():
        if parted is not None:
            known[name].detach()
            known[name].erase()


@dataclass(frozen=True)
class _Parted:
    """A backward function in two.

    Attributes:
        first, second: their names; ``second`` computes weights' gradients.
        reads: by function, positions of the whole one's arguments; ``second`` then takes what
            ``first`` hands on.
        results: of each result of the whole, which function gives it, and where.
        placed: how the mesh holds each further result of ``first``.
        handed: their types.
    """

    first: str
    second: str
    reads: tuple[tuple[int, ...], tuple[int, ...]]
    results: tuple[tuple[int, int], ...]
    placed: tuple[Attribute | None, ...]
    handed: tuple[Attribute, ...]


def _parted(func: FuncOp, module: ModuleOp) -> _Parted | None:
    block = func.body.block
    end = block.last_op
    assert isinstance(end, ReturnOp)
    ops = [op for op in block.ops if op is not end]
    first = input_part(ops, ())
    rest = [op for op in ops if op not in first]
    if not first or not rest:
        part = "input" if first else "weight"
        _mark_calls(module, func, part)
        return None
    outputs = list(end.operands)
    owners = [0 if v.owner in first or isinstance(v.owner, Block) else 1 for v in outputs]
    again = _cheap_before(rest, [v for v, o in zip(outputs, owners, strict=True) if o], first)
    inside = {v for op in (*again, *rest) for v in op.results}
    read = [v for op in (*again, *rest) for v in op.operands]
    read += [v for v, o in zip(outputs, owners, strict=True) if o]
    handed = [v for v in dict.fromkeys(read) if v not in inside and isinstance(v.owner, Operation)]
    own = [[v for v, o in zip(outputs, owners, strict=True) if o == k] for k in (0, 1)]
    name = func.sym_name.data
    one = _function(f"{name}_input", [op for op in ops if op in first], [*own[0], *handed], [])
    kept = [op for op in ops if op in again or op not in first]
    two = _function(f"{name}_weight", kept, own[1], handed)
    for half in (one, two):
        module.body.block.insert_op_before(half.func, func)
    places = [0, 0]
    results: list[tuple[int, int]] = []
    for owner in owners:
        results.append((owner, places[owner]))
        places[owner] += 1
    return _Parted(
        one.func.sym_name.data,
        two.func.sym_name.data,
        (one.reads, two.reads),
        tuple(results),
        tuple(map(noted_placement, handed)),
        tuple(v.type for v in handed),
    )


def _cheap_before(
    ops: Sequence[Operation], returned: Sequence[SSAValue], first: set[Operation]
) -> set[Operation]:
    chosen: set[Operation] = set()
    todo = [v for op in ops for v in op.operands] + list(returned)
    while todo:
        op = todo.pop().owner
        if isinstance(op, Operation) and op in first and op not in chosen and is_cheap(op):
            chosen.add(op)
            todo += op.operands
    return chosen


def _mark_calls(module: ModuleOp, func: FuncOp, part: str) -> None:
    """Say of the calls of a function that is of one kind alone which it is."""
    for op in entry(module).body.block.ops:
        if isinstance(op, CallOp) and op.callee.string_value() == func.sym_name.data:
            op.attributes["grad"] = StringAttr(part)


@dataclass(frozen=True)
class _Made:
    func: FuncOp
    reads: tuple[int, ...]


def _function(
    name: str, ops: Sequence[Operation], outputs: Sequence[SSAValue], taken: Sequence[SSAValue]
) -> _Made:
    """Return a function of some ops, which takes arguments of theirs, then what is handed on."""
    inside = {v for op in ops for v in op.results}
    read = [v for op in ops for v in op.operands] + list(outputs)
    arguments = [
        v
        for v in dict.fromkeys(read)
        if isinstance(v, BlockArgument) and v not in inside and v not in taken
    ]
    arguments.sort(key=lambda v: v.index)
    block = Block(arg_types=[v.type for v in (*arguments, *taken)])
    values: dict[SSAValue, SSAValue] = dict(zip([*arguments, *taken], block.args, strict=True))
    for op in ops:
        block.add_op(op.clone(values))
    func = finish_function(name, block, [values[v] for v in outputs])
    return _Made(func, tuple(v.index for v in arguments))


def _replace_call(op: CallOp, parted: _Parted) -> None:
    block = op.parent
    assert block is not None
    operands = list(op.operands)
    kinds: list[list[SSAValue]] = [[], []]
    for value, (owner, _) in zip(op.results, parted.results, strict=True):
        kinds[owner].append(value)
    handed = parted.handed
    first = CallOp(
        parted.first,
        [operands[i] for i in parted.reads[0]],
        [*(v.type for v in kinds[0]), *handed],
    )
    second = CallOp(
        parted.second,
        [*(operands[i] for i in parted.reads[1]), *first.results[len(kinds[0]) :]],
        [v.type for v in kinds[1]],
    )
    placed = noted_placements(op.results)
    for call, part in ((first, "input"), (second, "weight")):
        call.attributes.update(op.attributes)
        call.attributes.pop("sbp", None)
        call.attributes["grad"] = StringAttr(part)
        block.insert_op_before(call, op)
    second.attributes["id"] = StringAttr(f"{id_of(op)}.w")
    if placed is not None and None not in parted.placed:
        own = [
            [p for p, (o, _) in zip(placed, parted.results, strict=True) if o == k] for k in (0, 1)
        ]
        first.attributes["sbp"] = ArrayAttr([*own[0], *(p for p in parted.placed if p is not None)])
        second.attributes["sbp"] = ArrayAttr(own[1])
    by_owner = [list(first.results), list(second.results)]
    for value, (owner, place) in zip(op.results, parted.results, strict=True):
        value.replace_all_uses_with(by_owner[owner][place])
    op.detach()
    op.erase()

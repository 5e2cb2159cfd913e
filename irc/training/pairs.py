"""A block's forward and backward functions as one body, and cut in two again.

``differentiate`` makes of each repeated block a function that also returns what is saved, and one
that takes it. To decide anew what is saved, both bodies are joined at their calls, changed, and cut
where the forward ops end; every call of the block then returns and takes the new saved values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import cloned, functions
from irc.dialects.flow import id_of
from irc.training.saving import is_forward

FORWARD = "irc.forward"
"""Attribute of a backward function: the name of its forward function."""


@dataclass
class Pair:
    """The two functions of a block, and their calls.

    Attributes:
        forward: the function that runs first.
        backward: the function that takes what is saved.
        calls: each call of the first, with the call of the second that belongs to it.
    """

    forward: FuncOp
    backward: FuncOp
    calls: list[tuple[CallOp, CallOp]] = field(default_factory=list[tuple[CallOp, CallOp]])


def pairs(module: ModuleOp) -> list[Pair]:
    """Return the pairs of a differentiated module whose calls are all matched."""
    known = functions(module)
    by_name: dict[str, Pair] = {}
    for name, func in known.items():
        attr = func.attributes.get(FORWARD)
        if isinstance(attr, StringAttr) and attr.data in known:
            by_name[name] = Pair(known[attr.data], func)
    times: dict[str, int] = {}
    for func in known.values():
        calls = [op for op in func.body.block.ops if isinstance(op, CallOp)]
        for call in calls:
            name = call.callee.string_value()
            times[name] = times.get(name, 0) + 1
            pair = by_name.get(name)
            first = None if pair is None else _first_of(call, calls, pair)
            if pair is not None and first is not None:
                pair.calls.append((first, call))
    return [p for n, p in by_name.items() if p.calls and len(p.calls) == times[n]]


def _first_of(call: CallOp, calls: Sequence[CallOp], pair: Pair) -> CallOp | None:
    """Return the forward call whose results a backward call reads, else the one of its id."""
    name = pair.forward.sym_name.data
    for value in call.operands:
        owner = value.owner
        if isinstance(owner, CallOp) and owner.callee.string_value() == name:
            return owner
    same = [c for c in calls if c.callee.string_value() == name and f"{id_of(c)}.g" == id_of(call)]
    return same[0] if len(same) == 1 else None


@dataclass
class Joint:
    """One body of a pair.

    Attributes:
        pair: what was joined.
        block: arguments of forward, then gradients; forward ops, then backward ops; no return.
        arguments: how many of the block's arguments are forward's.
        results: what forward returns, but for what only backward read.
        kept: the places of those among all that forward returned.
        returned: what backward returns.
        gradients: the places of the gradients among backward's operands.
    """

    pair: Pair
    block: Block
    arguments: int
    results: list[SSAValue]
    kept: list[int]
    returned: list[SSAValue]
    gradients: list[int]


def join(pair: Pair) -> Joint | None:
    """Put both bodies into one; None where their calls do not agree on what goes where."""
    sources = _sources(pair)
    if sources is None:
        return None
    first, second = pair.forward.body.block, pair.backward.body.block
    gradients = [arg for arg, source in zip(second.args, sources, strict=True) if source is None]
    block = Block(arg_types=[a.type for a in (*first.args, *gradients)])
    values: dict[SSAValue, SSAValue] = dict(zip((*first.args, *gradients), block.args, strict=True))
    _clone_into(block, first, values)
    end = _end(first)
    for arg, source in zip(second.args, sources, strict=True):
        if source is not None:
            kind, index = source
            values[arg] = values[first.args[index] if kind == "argument" else end.operands[index]]
    _clone_into(block, second, values)
    kept = [
        i
        for i in range(len(end.operands))
        if any(
            use.operation is not back for call, back in pair.calls for use in call.results[i].uses
        )
    ]
    return Joint(
        pair,
        block,
        len(first.args),
        [values[end.operands[i]] for i in kept],
        kept,
        [values[value] for value in _end(second).operands],
        [place for place, source in enumerate(sources) if source is None],
    )


def _end(block: Block) -> ReturnOp:
    end = block.last_op
    assert isinstance(end, ReturnOp)
    return end


def _clone_into(block: Block, source: Block, values: dict[SSAValue, SSAValue]) -> None:
    for op in source.ops:
        if not isinstance(op, ReturnOp):
            block.add_op(cloned(op, values))


def _sources(pair: Pair) -> list[tuple[str, int] | None] | None:
    """Say of each operand of backward which argument or result of forward it is, in every call.

    None stands for a gradient, which is neither.
    """
    candidates: list[list[tuple[str, int] | None]] = []
    for call, back in pair.calls:
        for place, value in enumerate(back.operands):
            here: list[tuple[str, int] | None] = [
                ("result", i) for i, result in enumerate(call.results) if result is value
            ]
            here += [("argument", i) for i, operand in enumerate(call.operands) if operand is value]
            here = here or [None]
            if place == len(candidates):
                candidates.append(here)
            else:
                candidates[place] = [source for source in candidates[place] if source in here]
    if not all(candidates):
        return None
    return [sources[0] for sources in candidates]


def split(joint: Joint) -> None:
    """Cut a body where its forward ops end, and call the two functions anew."""
    block, pair = joint.block, joint.pair
    ops = list(block.ops)
    back = [op for op in ops if not is_forward(op)]
    saved, reads = _frontier(joint, set(back))
    gradients = list(block.args[joint.arguments :])
    taken = [*(value for _, _, value in reads), *gradients]
    second = Block(arg_types=[value.type for value in taken])
    values: dict[SSAValue, SSAValue] = dict(zip(taken, second.args, strict=True))
    for op in back:
        second.add_op(cloned(op, values))
    returned = [values[value] for value in joint.returned]
    for op in reversed(back):
        op.detach()
        op.erase()
    for value in reversed(gradients):
        block.erase_arg(value)
    _drop_unread(block, {*joint.results, *saved})
    _replace_body(pair.forward, block, [*joint.results, *saved])
    _replace_body(pair.backward, second, returned)
    for call, old in pair.calls:
        _call_again(joint, call, old, saved, [(kind, index) for kind, index, _ in reads])


def _frontier(
    joint: Joint, back: set[Operation]
) -> tuple[list[SSAValue], list[tuple[str, int, SSAValue]]]:
    """Return what is saved, and where backward finds each value that it reads of forward."""
    own: Sequence[SSAValue] = joint.block.args[: joint.arguments]
    arguments: dict[SSAValue, int] = {value: i for i, value in enumerate(own)}
    results = {value: i for i, value in reversed(list(enumerate(joint.results)))}
    gradients = set(joint.block.args[joint.arguments :])
    saved: list[SSAValue] = []
    reads: list[tuple[str, int, SSAValue]] = []
    read = [v for op in joint.block.ops if op in back for v in op.operands]
    for value in dict.fromkeys([*read, *joint.returned]):
        if value in gradients or value.owner in back:
            continue
        if value in arguments:
            reads.append(("argument", arguments[value], value))
        elif value in results:
            reads.append(("result", results[value], value))
        else:
            reads.append(("result", len(joint.results) + len(saved), value))
            saved.append(value)
    return saved, reads


def _drop_unread(block: Block, read: set[SSAValue]) -> None:
    for op in reversed(list(block.ops)):
        if not any(value.first_use or value in read for value in op.results):
            op.detach()
            op.erase()


def _replace_body(func: FuncOp, block: Block, results: Sequence[SSAValue]) -> None:
    block.add_op(ReturnOp(*results))
    old = func.body.block
    func.body.detach_block(old)
    old.erase()
    func.body.add_block(block)
    func.properties["function_type"] = FunctionType.from_lists(
        [a.type for a in block.args], [r.type for r in results]
    )


def _call_again(
    joint: Joint,
    call: CallOp,
    old: CallOp,
    saved: Sequence[SSAValue],
    reads: Sequence[tuple[str, int]],
) -> None:
    """Replace the two calls of a block; their gradients stay what they were."""
    kinds = [call.results[i].type for i in joint.kept]
    new = CallOp(call.callee, list(call.operands), [*kinds, *(value.type for value in saved)])
    _replace(call, new, [(call.results[i], new.results[k]) for k, i in enumerate(joint.kept)])
    sources = {"argument": new.operands, "result": new.results}
    operands = [sources[kind][index] for kind, index in reads]
    operands += [old.operands[place] for place in joint.gradients]
    back = CallOp(old.callee, operands, [r.type for r in old.results])
    _replace(old, back, list(zip(old.results, back.results, strict=True)))
    old.erase()
    call.erase()


def _replace(old: CallOp, new: CallOp, values: Sequence[tuple[SSAValue, SSAValue]]) -> None:
    new.attributes.update(old.attributes)
    assert old.parent is not None
    old.parent.insert_op_before(new, old)
    for before, after in values:
        before.replace_all_uses_with(after)
    old.detach()

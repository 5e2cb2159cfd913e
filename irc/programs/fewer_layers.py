"""A program with fewer layers: of equal layers, which are calls of one block, the first stay.

What goes into a layer that is left out comes out of it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, SSAValue

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import loc_of
from irc.errors import IrcError

HELD = ("parameter", "buffer", "constant")
"""Roles of what belongs to one layer."""


@dataclass(frozen=True)
class Left:
    """What is left of a model.

    Attributes:
        kept: by name of the block, how many calls of it are left, and how many there were.
        gone: names of the weights that went with the others.
    """

    kept: Mapping[str, tuple[int, int]]
    gone: frozenset[str]

    @property
    def layers(self) -> tuple[int, int]:
        """How many layers are left, and how many there were."""
        pairs = self.kept.values()
        return sum(left for left, _ in pairs), sum(before for _, before in pairs)


def leave_layers(module: ModuleOp, most: int, stage_of: Mapping[str, int] | None = None) -> Left:
    """Leave the first layers of each block, in place.

    Args:
        module: a captured program, level flow; changed.
        most: calls of a block that are left, in each stage.
        stage_of: by name of a parameter, the stage that reads it first; None: one stage.

    Raises:
        IrcError: ``rehearsal-layers`` where the program has no equal layers, or one of them hands
            on more than one value.
    """
    func = entry(module)
    named = {value: (role, name) for role, name, value in arguments(func)}
    calls: dict[str, list[CallOp]] = {}
    for op in func.body.block.ops:
        if isinstance(op, CallOp):
            calls.setdefault(op.callee.root_reference.data, []).append(op)
    blocks = {name: own for name, own in calls.items() if len(own) > 1}
    if not blocks:
        raise IrcError(
            "rehearsal-layers",
            "the model has no equal layers of which some could be left out",
            because="equal layers are calls of one block in the plan's program, and it has none",
            help="rehearse the plan as it is: leave out --layers",
        )
    kept: dict[str, tuple[int, int]] = {}
    for name, own in blocks.items():
        carried = _carried(own)
        by_stage: dict[int, list[CallOp]] = {}
        for call in own:
            by_stage.setdefault(_stage(call, named, stage_of or {}), []).append(call)
        left_out = [call for each in by_stage.values() for call in each[most:]]
        kept[name] = (len(own) - len(left_out), len(own))
        for call in left_out:
            _leave_out(call, carried)
    return Left(kept, _erase_unread(func))


def _stage(
    call: CallOp, named: Mapping[SSAValue, tuple[str, str]], stage_of: Mapping[str, int]
) -> int:
    names = [named[value][1] for value in call.operands if value in named]
    return next((stage_of[name] for name in names if name in stage_of), 0)


def _carried(calls: Sequence[CallOp]) -> tuple[int, int]:
    """Return which operand of a block its layers hand on to the next, and as which result.

    Raises:
        IrcError: ``rehearsal-layers``.
    """
    read = sorted({i for call in calls for i, r in enumerate(call.results) if r.first_use})
    first = calls[0]
    for result in read if len(read) == 1 else ():
        kind = first.results[result].type
        differing = [
            i
            for i, value in enumerate(first.operands)
            if value.type == kind
            and len({call.operands[i] for call in calls}) > 1
            and not any(isinstance(call.operands[i], BlockArgument) for call in calls[1:])
        ]
        if len(differing) == 1:
            return differing[0], result
    raise IrcError(
        "rehearsal-layers",
        f"the layers of block '{first.callee.root_reference.data}' cannot be left out",
        where=loc_of(first),
        because="a layer can be whose one result has the shape and dtype of what goes into it",
        help="rehearse the plan as it is: leave out --layers",
    )


def _leave_out(call: CallOp, carried: tuple[int, int]) -> None:
    operand, result = carried
    call.results[result].replace_all_uses_with(call.operands[operand])
    call.detach()
    call.erase()


def _erase_unread(func: FuncOp) -> frozenset[str]:
    """Take off the weights that nothing reads now, and return their names."""
    known, gone = list(func.arg_attrs.data) if func.arg_attrs else [], dict[int, str]()
    for i, (role, name, value) in enumerate(arguments(func)):
        if role in HELD and value.first_use is None:
            gone[i] = name
    for i in sorted(gone, reverse=True):
        func.body.block.erase_arg(func.body.block.args[i])
        del known[i]
    func.arg_attrs = ArrayAttr(known)
    func.update_function_type()
    return frozenset(gone.values())

"""A few ops of a block by themselves, to be changed and timed."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import cloned
from irc.dialects.comm import PendingType

AROUND = 100
"""Ops before and behind what is changed that are looked at: what is further away does not wait."""


def copied(inside: Sequence[Operation]) -> tuple[Block, dict[SSAValue, SSAValue]]:
    """Return a copy of some ops that follow each other in a block, and its values.

    What ops elsewhere read is returned, and what they give is an argument.

    Args:
        inside: of level spmd; the last op of the block is none of them.
    """
    own = {value for op in inside for value in op.results}
    outer = list(dict.fromkeys(v for op in inside for v in op.operands if v not in own))
    copy = Block(arg_types=[value.type for value in outer])
    known: dict[SSAValue, SSAValue] = dict(zip(outer, copy.args, strict=True))
    copy.add_ops([cloned(op, known) for op in inside])
    members = set(inside)
    kept = [
        value
        for op in inside
        for value in op.results
        # What is awaited elsewhere is not: of collectives nothing but waits reads anything.
        if not isinstance(value.type, PendingType)
        and any(use.operation not in members for use in value.uses)
    ]
    copy.add_op(ReturnOp(*(known[value] for value in kept)))
    return copy, known

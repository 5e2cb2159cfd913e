"""Rules applied to a program until none fits, and the account of where they did and did not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import FlowOp, carry, id_of, loc_of, tensor
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.kernels.holds import is_unread
from irc.kernels.weights.fixed import Fixed
from irc.rewrite.build import MisfitError, build
from irc.rewrite.conditions import holds
from irc.rewrite.match import Found, Miss, matches
from irc.rewrite.operators import is_op
from irc.rewrite.terms import Rule

MOST = 64
"""Times that rules may be applied one after another to the same place."""


@dataclass(frozen=True)
class Place:
    """A rule at an op.

    Attributes:
        reason: why it was not applied, empty where it was.
        ops: how many of the program's ops fit its form.
        fits: the whole form was there; only its condition or its replacement was against it.
    """

    rule: str
    op: str
    loc: str
    reason: str = ""
    ops: int = 0
    fits: bool = False


def rewrite(module: ModuleOp, rules: Sequence[Rule]) -> list[Place]:
    """Apply rules to all functions of a module and return where they were tried.

    Raises:
        IrcError: ``rewrite-endless`` where rules undo each other.
    """
    places: list[Place] = []
    fixed = Fixed(module)
    for func in module.body.block.ops:
        if isinstance(func, FuncOp) and not func.is_declaration:
            _rewrite_block(func.body.block, rules, fixed, places)
    return places


def _rewrite_block(block: Block, rules: Sequence[Rule], fixed: Fixed, places: list[Place]) -> None:
    pending = [(op, 0) for op in reversed(list(block.ops)) if isinstance(op, FlowOp)]
    while pending:
        op, times = pending.pop()
        if op.parent is not block or len(op.outputs) != 1:
            continue
        fitting = [rule for rule in rules if any(is_op(op, head) for head in rule.heads)]
        new_ops = _first(op, fitting, fixed, places)
        if new_ops is None:
            continue
        if times == MOST:
            raise _endless(op, places)
        pending += [(each, times + 1) for each in reversed(new_ops)]
    for op in reversed(list(block.ops)):
        if is_unread(op):
            op.detach()
            op.erase()


def _first(
    op: FlowOp, rules: Iterable[Rule], fixed: Fixed, places: list[Place]
) -> list[FlowOp] | None:
    """Apply the first rule that fits; return the ops that it made, or None where none does."""
    for rule in rules:
        new_ops = _try(rule, op, fixed, places)
        if new_ops is not None:
            return new_ops
    return None


def _try(rule: Rule, op: FlowOp, fixed: Fixed, places: list[Place]) -> list[FlowOp] | None:
    miss, reason, covered = Miss(), "", 0
    for bindings in matches(rule, op, fixed, miss):
        if rule.test is not None and not holds(rule.test, bindings):
            reason = reason or f"its form fits, and its condition '{rule.test}' does not hold"
            covered = covered or len(bindings.ops)
            continue
        try:
            new_ops = _replace(rule, op, bindings)
        except MisfitError as error:
            reason, covered = str(error), len(bindings.ops)
            continue
        places.append(Place(rule.name, id_of(op), loc_of(op), ops=len(bindings.ops), fits=True))
        return new_ops
    place = Place(
        rule.name, id_of(op), loc_of(op), reason or str(miss),
        ops=covered or miss.ops, fits=bool(reason),
    )  # fmt: skip
    places.append(place)
    return None


def _replace(rule: Rule, op: FlowOp, bindings: Found) -> list[FlowOp]:
    assert op.parent is not None
    old = op.outputs[0]
    before = op.prev_op
    b = FlowBuilder(op.parent, prefix=f"{id_of(op)}_{rule.name}", before=op)
    b.loc = loc_of(op)
    try:
        value = build(rule, bindings, b, _type(op))
    except MisfitError:
        _drop(_between(before, op))
        raise
    new_ops = _between(before, op)
    old.replace_all_uses_with(value)
    last = value.owner
    if isinstance(last, FlowOp) and last in new_ops:
        carry(last, op)
    op.detach()
    op.erase()
    return new_ops


def _between(before: object, op: FlowOp) -> list[FlowOp]:
    ops: list[FlowOp] = []
    each = op.prev_op
    while each is not None and each is not before:
        assert isinstance(each, FlowOp)
        ops.append(each)
        each = each.prev_op
    return ops[::-1]


def _drop(ops: Sequence[FlowOp]) -> None:
    for each in reversed(ops):
        each.detach()
        each.erase()


def _type(op: FlowOp) -> TensorType:
    return tensor(op.outputs[0])


def _endless(op: FlowOp, places: Sequence[Place]) -> IrcError:
    names = list(dict.fromkeys(p.rule for p in reversed(places) if not p.reason))[:4]
    return IrcError(
        "rewrite-endless", f"rewrite rules do not come to an end at {id_of(op)}",
        where=loc_of(op), because=f"these took turns: {', '.join(names)}",
        help="a replacement must not have the form that a rule finds",
    )  # fmt: skip

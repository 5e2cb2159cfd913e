"""Derivatives through the library: ``flow.extern`` of target ``irc::vjp``.

An op that only its library knows is differentiated by torch where it runs: the extern computes the
op again and returns the product of a gradient with its Jacobian. Its arguments are JSON, ``[name,
attributes, how many operands, which results have a gradient, which operands get one]``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from xdsl.ir import SSAValue

from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.types import TensorType
from irc.ops import names
from irc.ops.derivative import Adjoint, NotDifferentiable
from irc.ops.derivatives_linear_loss import linear_loss
from irc.ops.linear_loss import LOSS
from irc.ops.rule import Rule
from irc.ops.rules import rule_of

VJP = names.VJP

DRAWS = ("dropout", "rand", "bernoulli", "normal", "rrelu", "multinomial", "exponential")
"""Library ops that draw from a generator of their own: run again, they would draw other numbers."""


def library(at: Adjoint, operand: int) -> SSAValue:
    """Differentiate a flow op that has a rule (pooling): one extern for each operand."""
    return _one(at, operand, _rule(at, operand))


def extern(at: Adjoint, operand: int) -> SSAValue | None:
    """Differentiate an extern: one run for all operands (`irc.ops.derivatives_split` shards it)."""
    if at.attrs["target"] == LOSS:
        return linear_loss(at, operand)
    if reason := not_differentiable(at.op):
        raise NotDifferentiable(reason)
    gradients: list[SSAValue] = at.shared("vjp", lambda: _vjp(at, at.wanted, None))
    return gradients[at.wanted.index(operand)]


def not_differentiable(op: FlowOp) -> str:
    """Say why an extern has no derivative; nothing where torch can find it."""
    target: str = op.plain["target"]
    name = target.partition("::")[2]
    if not all(isinstance(v.type, TensorType) for v in (*op.inputs, *op.outputs)):
        return f"{target} takes or gives values that are no tensors"
    if any(word in name.lower() for word in DRAWS) or _drops(target, op.plain["arguments"]):
        return f"{target} draws random numbers that the backward pass could not draw again"
    return ""


def _drops(target: str, arguments: str) -> bool:
    positional, keywords = json.loads(arguments)
    if "scaled_dot_product" not in target:
        return False
    dropout = positional[4] if len(positional) > 4 else 0.0
    return bool(keywords.get("dropout_p", dropout))


def _one(at: Adjoint, operand: int, rule: Rule | None) -> SSAValue:
    (value,) = _vjp(at, (operand,), rule)
    return value


def _vjp(at: Adjoint, wanted: Sequence[int], rule: Rule | None) -> list[SSAValue]:
    reached = [i for i, g in enumerate(at.gradients) if g is not None]
    call = [at.op.name, dict(at.attrs), len(at.inputs), reached, list(wanted)]
    return at.b.ops(
        ExternOp,
        [*at.inputs, *(g for g in at.gradients if g is not None)],
        results=[at.kind(i) for i in wanted],
        target=VJP,
        arguments=json.dumps(call),
        rule=None if rule is None else str(rule),
    )


def _rule(at: Adjoint, operand: int) -> Rule:
    reached = [i for i, g in enumerate(at.gradients) if g is not None]
    return operand_rule(rule_of(at.op), operand, reached)


def operand_rule(rule: Rule, operand: int, reached: Sequence[int]) -> Rule:
    """Return the rule of the gradient of one operand: ``(operands, gradients) -> (operand)``.

    A factor that the operand lacks is added up: in forward it was stretched over it. Where forward
    took a maximum over a split factor, the ranks' parts are not of one sum, so it stays whole.

    >>> from irc.ops.rule import parse_rule
    >>> str(operand_rule(parse_rule("(b k, n k) -> (b n) sum(k)"), 1, [0]))
    '(b k, n k, b n) -> (n k) sum(b) linear(2)'
    """
    operands = (*rule.operands, *(rule.results[i] for i in reached))
    result = rule.operands[operand]
    kept = {name for dim in result for name in dim}
    known = dict.fromkeys(name for term in operands for dim in term for name in dim)
    extremes = {name for name, kind in rule.reduced if kind != "sum"}
    whole = {*rule.whole, *extremes} & set(known)
    return Rule(
        operands,
        (result,),
        reduced=tuple((n, "sum") for n in known if n not in kept and n not in whole),
        whole=tuple(n for n in known if n in whole),
        linear=(tuple(range(len(rule.operands), len(operands))),),
        sizes=tuple(pair for pair in rule.sizes if pair[0] in known),
    )

"""A layer of a mixture of experts as irc plans it.

``irc::experts(hidden, index, weights, gate_up, down, act, num_experts)`` is kept whole, as
attention is: between its two matmuls each rank would hold the rows of its own experts, which no
placement says. It gives

    result[t] = sum over k of  weights[t, k] * down[e] @ act(gate_up[e] @ hidden[t])

with ``e = index[t, k]``, where an index outside of ``down`` counts nothing. So experts can be
split in two ways (expert parallelism). *Own experts*: every rank has all tokens, shifts the indices
to its own experts, and the ranks' results add up; tokens that were split over the same axis are
gathered before and reduce-scattered after. *Travelling tokens*: tokens are split over the same
axis, and each goes to the ranks of its experts and back (two all-to-alls, GShard,
arXiv:2006.16668). No routing is refused and no token is dropped: buffers are as large as all
tokens. What travels depends on the routing, and is priced as if a token's experts were different
and all equally likely; a router that sends all tokens to one rank sends as much as a gather would.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.ops import grouped
from irc.ops.custom import Call, Declaration, Work, declaration
from irc.ops.derivatives_split import vjp_strategies
from irc.ops.infer import Attrs, Signature
from irc.ops.names import VJP
from irc.ops.rule import DimTerm, TensorTerm, parse_rule
from irc.ops.rules_naming import letters
from irc.ops.strategies import TRAVELLING, TRAVELLING_BACK, Strategy

if TYPE_CHECKING:
    from irc.dialects.flow import FlowOp

EXPERTS = "irc::experts"
DOWN = 4
"""Position of the operand that is each expert's second matrix."""
NUM_EXPERTS = 6
"""Position of the argument ``num_experts``: of all ranks together."""

RULE = "(t i, t k, t k, e c f i, e o f) -> (t o) sum(f) whole(k e c i) linear(2)"


def expected_part(held: int, num_experts: int) -> float:
    """Return the part of a layer's rows that go to the experts that are held: all are as likely.

    >>> expected_part(2, 8)
    0.25
    """
    return min(held / max(num_experts, 1), 1.0)


def _rows(call: Call) -> float:
    """Rows that go through the experts that are held."""
    num_experts = int(call.arguments[0][NUM_EXPERTS])
    return call["t"] * call["k"] * expected_part(call["e"], num_experts)


def _flops(call: Call) -> int:
    """Both matmuls, and an activation of 13 operations as in silu."""
    row = 2 * call["f"] * (call["c"] * call["i"] + call["o"]) + 13 * call["f"] + 2 * call["o"]
    return round(_rows(call) * row)


def _bytes(call: Call) -> int:
    """The weights of experts that some row goes to, and each row in and out of both matmuls."""
    rows = _rows(call)
    weights = min(call["e"], rows) * call["f"] * (call["c"] * call["i"] + call["o"])
    moved = rows * (2 * call["i"] + (2 * call["c"] + 2) * call["f"] + 3 * call["o"])
    return round(call.item_bytes * (weights + moved + call["t"] * (call["i"] + call["o"])))


def _kernels(call: Call, op: FlowOp) -> list[Work]:
    """Both products, the activation between them, and the sum of a token's experts.

    All are of the rows that are expected, as `irc.cost.actions` has the kernels of a plan.
    """
    rows, inner, item = _rows(call), call["f"], call.item_bytes
    part = rows / max(call["t"] * call["k"], 1)
    held, tokens = min(call["e"], rows) * inner, part * call["t"]
    first, both, second = call["c"] * call["i"], call["c"] * inner, call["o"]
    return [
        (2 * rows * inner * first, item * (held * first + tokens * call["i"] + rows * both)),
        (13 * rows * inner, item * rows * (both + inner)),
        (2 * rows * inner * second, item * (held * second + rows * (inner + second))),
        (2 * rows * second, item * second * (rows + tokens)),
    ]


def _split_experts(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the experts: a rank computes the rows of those that it holds."""
    count = operands[4][0][0]
    placed = (B, B, B, Split(0), Split(0))
    if count == 1:
        return []
    own = Strategy("own-experts", placed, (Partial("sum"),), count)
    return [own, *_travelling(TRAVELLING, operands, (Split(0),))]


def _travelling(
    name: str, operands: Sequence[Signature], results: tuple[AxisPlacement, ...]
) -> list[Strategy]:
    """Split tokens and experts over the same axes: tokens travel to their experts and back."""
    tokens, count = operands[0][0][0], operands[4][0][0]
    if not (isinstance(tokens, int) and isinstance(count, int)) or gcd(tokens, count) == 1:
        return []
    placed = (Split(0),) * len(operands)
    return [Strategy(name, placed, results, gcd(tokens, count), even=True)]


def _inner(arguments: Any) -> tuple[str, Any]:
    """Return target and arguments of the op that an ``irc::vjp`` differentiates."""
    name, attrs = arguments[0], arguments[1]
    if name != "flow.extern":
        return name, None
    return attrs["target"], json.loads(attrs["arguments"])


def _vjp_flops(call: Call) -> int:
    """The op again, and about twice as much for a gradient; 0, not known, where the op is not."""
    target, arguments = _inner(call.arguments)
    known = declaration(target) if arguments is not None else None
    if known is None or known.flops is None:
        return 0
    try:
        return 3 * known.flops(Call(_inner_sizes(call, known), arguments, call.item_bytes))
    except KeyError:
        # A rule that is made for each call names factors that the gradient does not know.
        return 0


def _inner_sizes(call: Call, known: Declaration) -> dict[str, int]:
    """Return the sizes of the factors of the op that a gradient differentiates.

    The gradient has no rule: its factors are named dim by dim, those of the op's operands first
    (`irc.ops.rules_naming.letters`). A dim of size 1 has no name. The factors that no operand has
    (those of a broadcast) are the results', whose gradients come next.
    """
    stated = call.arguments[1].get("rule", "") or known.rule
    if not stated or not isinstance(stated, str):
        return dict(call.sizes)
    rule = parse_rule(stated)
    reached: list[int] = call.arguments[3]
    terms: tuple[TensorTerm, ...] = (*rule.operands, *(rule.results[i] for i in reached))
    dims: list[DimTerm] = [dim for term in terms for dim in term]
    names = letters((2,) * len(dims))
    sizes: dict[str, int] = dict(rule.sizes)
    for dim, (name,) in zip(dims, names, strict=True):
        if len(dim) == 1:
            sizes.setdefault(dim[0], call.sizes.get(name, 1))
    return sizes


def _vjp_bytes(call: Call) -> int:
    """0, nothing special: each operand and gradient once."""
    return 0


def _split_vjp(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the experts: their own gradients stay with them, those of tokens add up."""
    arguments = json.loads(attrs["arguments"])
    target, _ = _inner(arguments)
    count = operands[4][0][0] if target == EXPERTS else 1
    if target in grouped.GROUPED_MM:
        own = grouped.vjp_strategies(arguments[4], operands, results)
        return [*own, *vjp_strategies(grouped.with_rule(attrs, operands), operands, results)]
    others = vjp_strategies(attrs, operands, results)
    if count == 1:
        return others
    part = Partial("sum")
    placements: list[AxisPlacement] = [
        Split(0) if wanted in (3, 4) else part for wanted in arguments[4]
    ]
    placed = (B, B, B, Split(0), Split(0), *(B for _ in operands[5:]))
    travelling = _travelling(TRAVELLING_BACK, operands, (Split(0),) * len(results))
    return [Strategy("own-experts", placed, tuple(placements), count), *travelling, *others]


DECLARATIONS: tuple[Declaration, ...] = (
    Declaration(
        EXPERTS,
        RULE,
        _flops,
        _bytes,
        reference="irc.runtime.experts:experts",
        strategies=_split_experts,
        kernels=_kernels,
    ),
    Declaration(VJP, flops=_vjp_flops, bytes=_vjp_bytes, strategies=_split_vjp),
)

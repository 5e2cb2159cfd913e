"""Mixture-of-experts ops as irc plans them: a whole layer of experts, and grouped matmuls.

``irc::experts(hidden, index, weights, gate_up, down, act, num_experts)`` is kept whole, as
attention is: between its two matmuls each rank would hold the rows of its own experts, which no
placement says. It gives

    result[t] = sum over k of  weights[t, k] * down[e] @ act(gate_up[e] @ hidden[t])

with ``e = index[t, k]``, where an index outside of ``down`` counts nothing. So experts can be
split: each rank shifts the indices to its own, and the ranks' results add up (expert parallelism;
tokens that were split over the same axis are gathered before and reduce-scattered after).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.ops.custom import Call, Declaration, declaration
from irc.ops.derivatives_split import vjp_strategies
from irc.ops.infer import Attrs, Signature
from irc.ops.strategies import Strategy

EXPERTS = "irc::experts"
NUM_EXPERTS = 6
"""Position of the argument ``num_experts``: of all ranks together."""

RULE = "(t i, t k, t k, e c f i, e o f) -> (t o) sum(f) whole(k e c i) linear(2)"


def _rows(call: Call) -> float:
    """Rows that go through the experts that are held: all are equally likely."""
    held = call["e"] / max(int(call.arguments[0][NUM_EXPERTS]), 1)
    return call["t"] * call["k"] * min(held, 1.0)


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


def _split_experts(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the experts: a rank computes the rows of those that it holds."""
    count = operands[4][0][0]
    placed = (B, B, B, Split(0), Split(0))
    return [] if count == 1 else [Strategy("own-experts", placed, (Partial("sum"),), count)]


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
        return 3 * known.flops(Call(call.sizes, arguments, call.item_bytes))
    except KeyError:
        # Without a rule of its own the gradient's factors have other names: not known.
        return 0


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
    others = vjp_strategies(attrs, operands, results)
    if count == 1:
        return others
    part = Partial("sum")
    made: list[AxisPlacement] = [Split(0) if wanted in (3, 4) else part for wanted in arguments[4]]
    placed = (B, B, B, Split(0), Split(0), *(B for _ in operands[5:]))
    return [Strategy("own-experts", placed, tuple(made), count), *others]


def _grouped_flops(call: Call) -> int:
    return 2 * call["s"] * call["k"] * call["n"]


def _grouped_bytes(call: Call) -> int:
    rows = call["s"] * (call["k"] + call["n"])
    return call.item_bytes * (rows + call["e"] * call["k"] * call["n"])


def _grouped(target: str) -> Declaration:
    """Return the declaration of a matmul of row groups by a matrix each (offsets end the groups).

    Rows are sorted by group, so only the columns and the summed dim can be split by a rule.
    """
    rule = "(s k, e k n, e) -> (s n) sum(k) whole(s e) linear(0) linear(1)"
    return Declaration(target, rule, _grouped_flops, _grouped_bytes)


DECLARATIONS: tuple[Declaration, ...] = (
    Declaration(
        EXPERTS,
        RULE,
        _flops,
        _bytes,
        reference="irc.runtime.experts:experts",
        strategies=_split_experts,
    ),
    Declaration("irc::vjp", flops=_vjp_flops, bytes=_vjp_bytes, strategies=_split_vjp),
    _grouped("aten::_grouped_mm"),
    _grouped("transformers::grouped_mm_fallback"),
)

"""Attention of level flow, kept whole: the op with its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

from irc.dialects.fields import (
    flag_field,
    number_field,
    operand,
    opt_operand,
)
from irc.dialects.flow import FlowOp, flow_op
from irc.dialects.placement import B, Split
from irc.ops.attention_ops import SOFTMAX_FLOPS
from irc.ops.derivatives_attention import attention
from irc.ops.infer import Attrs, ShapeError, Signature, equal_shapes, equal_sizes
from irc.ops.op_record import OpRecord
from irc.ops.rule import Rule
from irc.ops.rules_window import attention_rule
from irc.ops.strategies import CAUSAL_ROWS, Strategy, mask_rows, ring


def _result(attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
    (q, dtype), (k, _), (v, _) = operands[:3]
    keys_fit = q[-1] == k[-1] and equal_sizes(k[-2], v[-2]) and equal_shapes(q[:-3], k[:-3])
    if not (keys_fit and equal_shapes(k[:-2], v[:-2])):
        raise ShapeError(f"attention of q {[*map(str, q)]}, k {[*map(str, k)]}, v {[*map(str, v)]}")
    return [((*q[:-1], v[-1]), dtype)]


def _flops(attrs: Attrs, rule: Rule, sizes: Mapping[str, int]) -> int:
    """Both products and the softmax of every score; a causal mask is not taken to save half."""
    scores = prod(sizes[name] for name in rule.factors if name not in ("d", "e"))
    return scores * (2 * sizes["d"] + 2 * sizes["e"] + SOFTMAX_FLOPS)


def _strategies(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """A ring; and under a causal mask the rows of q alone, masked by where they stand."""
    q = operands[0][0]
    strategies = ring(operands[:3], operands[3:], 1)
    if attrs["is_causal"] and q[-2] != 1:
        rows = Split(len(q) - 2)
        placed = (rows, B, B, *(mask_rows(shape, q) for shape, _ in operands[3:]))
        strategies.append(Strategy(CAUSAL_ROWS, placed, (rows,), q[-2]))
    return strategies


@flow_op
class AttentionOp(FlowOp):
    """softmax(q k^T * scale + mask) v; q [.., H, S, D], k and v [.., G, T, D], H a multiple of G.

    An optional fourth operand is the mask: bool (True takes part) or additive, broadcast to
    [.., H, S, T]. ``is_causal`` masks column j of row i where j > i (aligned top left, as torch
    does).
    """

    name = "flow.attention"
    q = operand(0)
    k = operand(1)
    v = operand(2)
    mask = opt_operand(3)
    is_causal = flag_field()
    scale = number_field()
    RECORD: ClassVar[OpRecord | None] = OpRecord(
        infer=_result,
        rule=attention_rule,
        flops=_flops,
        derivative=attention,
        strategies=_strategies,
        refusal="every row needs all keys: rows of q split alone under a causal mask or by a "
        "rule, and q, k and v together in a ring where shards are equal",
    )

"""Attention as training and rings need it, kept whole: with its log-sums, and its derivative.

``irc::attention(q, k, v, mask, start, y0, sums0, is_causal, scale, with_sums)`` gives
``softmax(q k^T * scale + mask) v`` and each row's log-sum-exp of scores, ``sums``, which is what
the derivative reads instead of all scores (arXiv:2205.14135). With ``is_causal`` row i sees column
j where ``i + start >= j``: ``start`` is how far the first row is from the first column, where q and
k are parts of longer ones. With ``y0`` and ``sums0``, the result over other columns, it goes on
from there: the softmax is that of all columns together.

``irc::attention_backward(g, q, k, v, y, sums, mask, start, dq0, dk0, dv0, is_causal, scale)`` gives
the gradients of q, k and v, added to ``dq0``, ``dk0``, ``dv0`` where those are given. ``y`` and
``sums`` are those of all columns, also where k and v are a part of them.

Masks, start and what comes before may be left out (None). Rows that see nothing are zeros.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.ops.custom import Call, Declaration
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule, TensorTerm
from irc.ops.rules_window import attention_rule
from irc.ops.strategies import AS_IT_IS, CAUSAL_ROWS, RING, Strategy, mask_dim, mask_rows, ring

ATTENTION = "irc::attention"
BACKWARD = "irc::attention_backward"

SOFTMAX_FLOPS = 14
"""As in `irc.ops.work`: of one score."""


@dataclass(frozen=True)
class Form:
    """What an attention op computes, beside its first operands.

    Attributes:
        is_causal, scale: as of ``flow.attention``.
        mask: the operand that is the mask, or None.
        start: the operand that is the first row less the first column, or None.
        before: the operands that the result is added to, none or all of them.
        with_sums: forward gives the log-sums too.
    """

    is_causal: bool
    scale: float
    mask: int | None = None
    start: int | None = None
    before: tuple[int, ...] = ()
    with_sums: bool = True

    def arguments(self, first: int, before: int) -> str:
        """Return the call as JSON.

        Args:
            first: how many operands stand before the mask.
            before: how many tensors the result may be added to.
        """
        arguments: list[Any] = [{"operand": i} for i in range(first)]
        arguments += [_operand(self.mask), _operand(self.start)]
        arguments += [_operand(i) for i in self.before] or [None] * before
        arguments += [self.is_causal, self.scale]
        return json.dumps([[*arguments, self.with_sums] if before == 2 else arguments, {}])

    def forward(self) -> dict[str, str]:
        """Return the attributes of an ``irc::attention``."""
        return {"target": ATTENTION, "arguments": self.arguments(3, 2)}

    def backward(self) -> dict[str, str]:
        """Return the attributes of an ``irc::attention_backward``."""
        return {"target": BACKWARD, "arguments": self.arguments(6, 3)}


def _operand(index: int | None) -> dict[str, int] | None:
    return None if index is None else {"operand": index}


def form_of(attrs: Attrs, num_operands: int) -> Form:
    """Return the form of a ``flow.attention`` or of one of the ops here, from its attributes."""
    if "arguments" not in attrs:
        return Form(attrs["is_causal"], attrs["scale"], 3 if num_operands == 4 else None)
    arguments = json.loads(attrs["arguments"])[0]
    first, before = (6, 3) if attrs["target"] == BACKWARD else (3, 2)
    places = [None if item is None else item["operand"] for item in arguments[first : first + 2]]
    added = tuple(i["operand"] for i in arguments[first + 2 : first + 2 + before] if i is not None)
    causal, scale, *sums = arguments[first + 2 + before :]
    return Form(causal, scale, places[0], places[1], added, bool(sums and sums[0]))


def _base(form: Form, operands: Sequence[Signature], first: int) -> tuple[Rule, list[TensorTerm]]:
    """Return the rule of attention itself, and the terms of mask and start where they are."""
    mask = [operands[form.mask]] if form.mask is not None else []
    base = attention_rule({"is_causal": form.is_causal}, [*operands[first : first + 3], *mask], [])
    rest: list[TensorTerm] = [*base.operands[3:], *([()] if form.start is not None else [])]
    return base, rest


def forward_rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Rule of attention; the log-sums lack only the features of a row."""
    form = form_of(attrs, len(operands))
    base, rest = _base(form, operands, 0)
    row = base.results[0]
    before = [row, row[:-1]][: len(form.before)]
    return Rule(
        (*base.operands[:3], *rest, *before),
        (row, row[:-1])[: len(results)],
        reduced=tuple(pair for pair in base.reduced),
        whole=tuple(dict.fromkeys((*base.whole, *(("s",) if form.start is not None else ())))),
        sizes=base.sizes,
    )


def backward_rule(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> Rule:
    """Rule of the gradients: batch and heads; they are linear in the result's gradient."""
    form = form_of(attrs, len(operands))
    base, rest = _base(form, operands, 1)
    q, k, v = base.operands[:3]
    y = base.results[0]
    # Query heads that share all keys add up in dk and dv: a strategy splits them.
    alone = {n for dim in q for n in dim} - {n for dim in (*k, *v) for n in dim} - {"s"}
    several = {n for dim in q if len(dim) > 1 for n in dim}
    return Rule(
        (y, q, k, v, y, y[:-1], *rest, *((q, k, v) if form.before else ())),
        (q, k, v),
        whole=("s", "t", "d", "e", *sorted(alone - several)),
        linear=((0,),),
        sizes=base.sizes,
    )


def _scores(call: Call) -> int:
    return prod(size for name, size in call.sizes.items() if name not in ("d", "e"))


def forward_flops(call: Call) -> int:
    """Both products and the softmax of every score; a causal mask is not taken to save half."""
    return _scores(call) * (2 * call["d"] + 2 * call["e"] + SOFTMAX_FLOPS)


def backward_flops(call: Call) -> int:
    """Five products: the scores again, those of g and v, and one for each gradient."""
    return _scores(call) * (6 * call["d"] + 4 * call["e"] + SOFTMAX_FLOPS)


def _once(call: Call) -> int:
    """0, nothing special: each operand and result once."""
    return 0


def _forward_strategies(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    form = form_of(attrs, len(operands))
    if form.start is not None or form.before:
        return []
    q, rows = operands[0][0], len(operands[0][0]) - 2
    strategies = ring(operands[:3], [operands[3]] if form.mask is not None else [], len(results))
    if form.is_causal and q[rows] != 1:
        masks = [mask_rows(operands[3][0], q)] if form.mask is not None else []
        result_placements: tuple[AxisPlacement, ...] = (Split(rows),) * len(results)
        strategies.append(
            Strategy(CAUSAL_ROWS, (Split(rows), B, B, *masks), result_placements, q[rows])
        )
    return strategies


def _backward_strategies(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the rows, whose parts of dk and dv add up; or query heads that share all keys."""
    form = form_of(attrs, len(operands))
    if form.start is not None or form.before:
        return []
    q, k, part = operands[1][0], operands[2][0], Partial("sum")
    rows = Split(len(q) - 2)
    masks = [mask_rows(operands[6][0], q)] if form.mask is not None else []
    strategies: list[Strategy] = []
    for around in ring(operands[1:4], [operands[6]] if form.mask is not None else [], 1):
        placed = (rows, *around.operands[:3], rows, rows, *around.operands[3:])
        strategies.append(Strategy(RING, placed, (rows,) * 3, around.size, even=True))
    if q[-2] != 1:
        name = CAUSAL_ROWS if form.is_causal else AS_IT_IS
        placed = (rows, rows, B, B, rows, rows, *masks)
        strategies.append(Strategy(name, placed, (rows, part, part), q[-2], split="rows"))
    if len(q) > 2 and k[-3] == 1 and q[-3] != 1:
        heads = Split(len(q) - 3)
        spread = [mask_dim(operands[6][0], q, 3)] if form.mask is not None else []
        placed = (heads, heads, B, B, heads, heads, *spread)
        strategies.append(Strategy(AS_IT_IS, placed, (heads, part, part), q[-3], split="heads"))
    return strategies


REFERENCE = "irc.runtime.attention"

DECLARATIONS: tuple[Declaration, ...] = (
    Declaration(
        ATTENTION,
        forward_rule,
        forward_flops,
        _once,
        reference=f"{REFERENCE}:attention",
        strategies=_forward_strategies,
    ),
    Declaration(
        BACKWARD,
        backward_rule,
        backward_flops,
        _once,
        reference=f"{REFERENCE}:backward",
        strategies=_backward_strategies,
    ),
)

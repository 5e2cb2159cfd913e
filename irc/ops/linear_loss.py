"""Cross-entropy of a linear layer as irc plans it: no op gives the logits.

With logits ``x = h W^T + bias`` of hidden rows h [n, d] and a vocabulary's weight W [v, d]:

* ``irc::linear_cross_entropy(h, W, index, bias)`` gives of each row ``log sum exp(x) - x[index]``,
  the loss, and ``log sum exp(x)``, its log-sum.
* ``irc::linear_cross_entropy_backward(g, h, W, index, sums, bias, gs)`` gives the gradients of h, W
  and bias for g, that of the losses, and gs, that of the log-sums: with ``P = exp(x - sums)`` and
  ``dx = (g + gs) P - g onehot(index)``,

      dh = dx W      dW = dx^T h      dbias = sum of dx over rows

  An index outside of the weight is of no class (of another rank's: see ``SPLIT_CLASSES``).
* ``irc::linear_cross_entropy_both(g, h, W, index, bias, gs)`` gives all five: where g and gs are
  known before the loss is, the logits need not be computed twice (Liger kernel, arXiv:2410.10989).

Log-sums have a gradient where labels are smoothed: the sum of a row's log-probabilities is
``sum of x - v sums``, and ``sum of x`` is h times the sum of W's rows. ``bias`` and ``gs`` may be
left out (None). Losses and log-sums are float32 for half types, else of the dtype
of h. What holds the logits, a block of rows at a time (arXiv:2411.09009), is
:mod:`irc.kernels.linear_loss`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.dialects.size import Dim
from irc.ops.custom import Call, Declaration, Work
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule, parse_rule
from irc.ops.strategies import AS_IT_IS, Strategy

if TYPE_CHECKING:
    from irc.dialects.flow import FlowOp

LOSS = "irc::linear_cross_entropy"
BACKWARD = "irc::linear_cross_entropy_backward"
BOTH = "irc::linear_cross_entropy_both"

SPLIT_CLASSES, SPLIT_CLASSES_BACK = "split-classes", "split-classes-back"
"""Strategies: every rank has some classes of the weight (`irc.sharding.local_loss`)."""

STREAMED = "irc.cross_entropy"
"""The attribute of a module that keeps what was done about its losses, and why."""

SOFTMAX_FLOPS = 14
"""As in `irc.ops.work`: of one logit."""

POSITIONS = {
    LOSS: ("h", "w", "index", "bias"),
    BACKWARD: ("g", "h", "w", "index", "sums", "bias", "gs"),
    BOTH: ("g", "h", "w", "index", "bias", "gs"),
}
"""The roles of a call's arguments; the last two may be left out."""
RESULTS = {LOSS: ("loss", "sums"), BACKWARD: ("dh", "dw"), BOTH: ("loss", "sums", "dh", "dw")}
"""The roles of its results; ``db``, the gradient of a bias, is the last."""
TERMS = {
    "h": "n d", "dh": "n d", "w": "v d", "dw": "v d", "bias": "v", "db": "v",
    "g": "n", "gs": "n", "index": "n", "loss": "n", "sums": "n",
}  # fmt: skip
"""The terms of rules."""
PRODUCTS = {LOSS: 1, BACKWARD: 3, BOTH: 3}
"""Matmuls of n x v x d."""


MIN_ROWS, MAX_ROWS = 256, 1024
"""Rows of a block: fewer would leave matmuls waiting for memory, more save no time."""


def block_rows(rows: int, width: int) -> int:
    """Return how many rows a block has.

    As many as h has columns, within limits; fewer where that makes all blocks equal.

    >>> block_rows(4096, 768), block_rows(4096, 64), block_rows(1000, 768), block_rows(997, 768)
    (512, 256, 500, 504)
    """
    most = min(max(width, MIN_ROWS), MAX_ROWS)
    count = -(-rows // most)
    for number in range(count, 2 * count):
        if rows % number == 0:
            return rows // number
    return -(-rows // count // 8) * 8


def arguments(target: str, present: Collection[str]) -> str:
    """Return a call of any of the three as JSON; its operands stand in the order of their roles.

    Args:
        target: the op.
        present: the roles of its operands.

    >>> arguments(LOSS, ("h", "w", "index"))
    '[[{"operand": 0}, {"operand": 1}, {"operand": 2}, null], {}]'
    """
    number = iter(range(len(present)))
    roles = POSITIONS[target]
    if "gs" not in present:
        roles = tuple(role for role in roles if role != "gs")
    return json.dumps([[{"operand": next(number)} if r in present else None for r in roles], {}])


def operand_roles(target: str, call: str) -> tuple[str, ...]:
    """Return the roles of a call's operands, in their order.

    >>> operand_roles(BOTH, arguments(BOTH, ("g", "h", "w", "index", "gs")))
    ('g', 'h', 'w', 'index', 'gs')
    """
    positional, named = json.loads(call)
    said = [*zip(POSITIONS[target], positional, strict=False), *named.items()]
    roles = {arg["operand"]: role for role, arg in said if arg is not None}
    return tuple(roles[i] for i in range(len(roles)))


def result_roles(target: str, present: Collection[str]) -> tuple[str, ...]:
    """Return the roles of a call's results."""
    biased = "bias" in present and target != LOSS
    return (*RESULTS[target], "db") if biased else RESULTS[target]


def accumulating(dtype: str) -> str:
    """Return the dtype of losses and log-sums."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def _terms(attrs: Attrs) -> tuple[list[str], list[str]]:
    """Return the terms of a call's operands and results."""
    target = attrs["target"]
    roles = operand_roles(target, attrs["arguments"])
    return [TERMS[r] for r in roles], [TERMS[r] for r in result_roles(target, roles)]


def _rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Rows of losses can be split; where gradients of the weight add up, a strategy says so."""
    target = attrs["target"]
    operand_terms, result_terms = _terms(attrs)
    # With gs, gradients are linear in both together, which no rule says.
    alone = target == BACKWARD and "gs" not in operand_roles(target, attrs["arguments"])
    whole = "whole(d v)" if target == LOSS else "whole(n d v)"
    text = f"({', '.join(operand_terms)}) -> ({', '.join(result_terms)}) {whole}"
    return parse_rule(text + " linear(0)" if alone else text)


def _strategies(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the rows, whose parts of the weight's gradient add up; or the classes."""
    target = attrs["target"]
    operand_terms, result_terms = _terms(attrs)
    part, split = Partial("sum"), Split(0)
    strategies: list[Strategy] = []
    rows: Dim = operands[operand_terms.index("n d")][0][0]
    if target != LOSS and rows != 1:
        placed = _placed(operand_terms, "n", split, B)
        strategies.append(
            Strategy(AS_IT_IS, placed, _placed(result_terms, "n", split, part), rows, "rows")
        )
    classes: Dim = operands[operand_terms.index("v d")][0][0]
    if target != BOTH and classes != 1:
        name = SPLIT_CLASSES if target == LOSS else SPLIT_CLASSES_BACK
        placed = _placed(operand_terms, "v", split, B)
        shown = _placed(result_terms, "v", split, B if target == LOSS else part)
        # The log-sums of the ranks are exchanged, and collectives take equal shards.
        strategies.append(Strategy(name, placed, shown, classes, "classes", even=target == LOSS))
    return strategies


def _placed(
    terms: Sequence[str], factor: str, split: AxisPlacement, other: AxisPlacement
) -> tuple[AxisPlacement, ...]:
    return tuple(split if factor in term.split() else other for term in terms)


def _declared(target: str) -> Declaration:
    def flops(call: Call) -> int:
        return call["n"] * call["v"] * (2 * PRODUCTS[target] * call["d"] + SOFTMAX_FLOPS)

    name = target.removeprefix("irc::linear_cross_entropy").strip("_") or "losses"
    return Declaration(
        target,
        _rule,
        flops,
        lambda call: 0,
        reference=f"irc.runtime.linear_loss:{name}",
        strategies=_strategies,
        kernels=lambda call, op: _kernels(call, op, target),
    )


def _kernels(call: Call, op: FlowOp, target: str) -> list[Work]:
    """The kernels of each block of rows, one block behind the other.

    A product gives logits, a kernel goes over their rows (what is wide of them is read, and their
    gradients are written); a product gives the gradient of h, and one adds to that of the weight.
    A loss and its gradients that stand in one block become one op, which computes the logits once.
    """
    from irc.ops.shapes import Product

    rows, v, d, item = call["n"], call["v"], call["d"], call.item_bytes
    step, wide = block_rows(rows, d), max(item, 4)
    back = target != LOSS
    again = target != BACKWARD or not _follows_loss(op)
    work: list[Work] = []
    for first in range(0, rows, step):
        r = min(step, rows - first)
        if again:
            work.append((Product(1, r, v, d), item * (r * d + v * d) + wide * r * v))
            softmax = SOFTMAX_FLOPS * r * v
            work.append((softmax, wide * r * v + (item * r * v if back else 0)))
        if back:
            work.append((Product(1, r, d, v), item * (r * v + v * d + r * d)))
            sums = wide * v * d * (2 if first else 1)
            work.append((Product(1, v, d, r), item * (r * v + r * d) + sums))
    return work


def _follows_loss(op: FlowOp) -> bool:
    """Return whether gradients are of a loss in the same block, with which they become one op."""
    roles = operand_roles(BACKWARD, op.plain["arguments"])
    loss = op.inputs[roles.index("sums")].owner
    return loss.parent is op.parent and getattr(loss, "plain", {}).get("target") == LOSS


DECLARATIONS: tuple[Declaration, ...] = tuple(
    _declared(target) for target in (LOSS, BACKWARD, BOTH)
)

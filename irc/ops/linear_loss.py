"""Cross-entropy of a linear layer as irc plans it: no op gives the logits.

With logits ``x = h W^T + bias`` of hidden rows h [n, d] and a vocabulary's weight W [v, d]:

* ``irc::linear_cross_entropy(h, W, index, bias)`` gives of each row ``log sum exp(x) - x[index]``,
  the loss, and ``log sum exp(x)``, its log-sum.
* ``irc::linear_cross_entropy_backward(g, h, W, index, sums, bias)`` gives the gradients of h, W and
  bias for g, that of the losses: with ``P = exp(x - sums)`` and ``dx = g (P - onehot(index))``,

      dh = dx W      dW = dx^T h      dbias = sum of dx over rows

  An index outside of the weight is of no class (of another rank's: see ``SPLIT_CLASSES``).
* ``irc::linear_cross_entropy_both(g, h, W, index, bias)`` gives all five: where g is known before
  the loss is, the logits need not be computed twice (Liger kernel, arXiv:2410.10989).

``bias`` may be left out (None). Losses and log-sums are float32 for half types, else of the dtype
of h. What holds the logits, a block of rows at a time (arXiv:2411.09009), is
:mod:`irc.kernels.linear_loss`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.dialects.size import Dim
from irc.ops.custom import Call, Declaration
from irc.ops.infer import Attrs, Signature
from irc.ops.rule import Rule, parse_rule
from irc.ops.strategies import AS_IT_IS, Strategy

LOSS = "irc::linear_cross_entropy"
BACKWARD = "irc::linear_cross_entropy_backward"
BOTH = "irc::linear_cross_entropy_both"

SPLIT_CLASSES, SPLIT_CLASSES_BACK = "split-classes", "split-classes-back"
"""Strategies: every rank has some classes of the weight (`irc.sharding.local_loss`)."""

STREAMED = "irc.cross_entropy"
"""The attribute of a module that keeps what was done about its losses, and why."""

SOFTMAX_FLOPS = 14
"""As in `irc.ops.work`: of one logit."""

OPERANDS = {
    LOSS: ("n d", "v d", "n"),
    BACKWARD: ("n", "n d", "v d", "n", "n"),
    BOTH: ("n", "n d", "v d", "n"),
}
RESULTS = {LOSS: ("n", "n"), BACKWARD: ("n d", "v d"), BOTH: ("n", "n", "n d", "v d")}
"""Terms of the rules; a bias is the last operand, and its gradient the last result."""
PRODUCTS = {LOSS: 1, BACKWARD: 3, BOTH: 3}
"""Matmuls of n x v x d."""


def arguments(count: int, *, biased: bool) -> str:
    """Return a call of any of the three as JSON.

    Args:
        count: of its operands, a bias among them.
        biased: whether there is one.

    >>> arguments(3, biased=False)
    '[[{"operand": 0}, {"operand": 1}, {"operand": 2}, null], {}]'
    """
    given: list[dict[str, int] | None] = [{"operand": i} for i in range(count)]
    return json.dumps([given if biased else [*given, None], {}])


def accumulating(dtype: str) -> str:
    """Return the dtype of losses and log-sums."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def _terms(target: str, count: int) -> tuple[list[str], list[str]]:
    """Return the terms of a call's operands and results, a bias among them where there is one."""
    given, made = list(OPERANDS[target]), list(RESULTS[target])
    if count > len(given):
        given.append("v")
        made += ["v"] if target != LOSS else []
    return given, made


def _rule(attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]) -> Rule:
    """Rows of losses can be split; where gradients of the weight add up, a strategy says so."""
    target = attrs["target"]
    given, made = _terms(target, len(operands))
    text = f"({', '.join(given)}) -> ({', '.join(made)})"
    return parse_rule(f"{text} " + {
        LOSS: "whole(d v)",
        BACKWARD: "whole(n d v) linear(0)",
        BOTH: "whole(n d v)",
    }[target])  # fmt: skip


def _strategies(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the rows, whose parts of the weight's gradient add up; or the classes."""
    target = attrs["target"]
    given, made = _terms(target, len(operands))
    part, split = Partial("sum"), Split(0)
    found: list[Strategy] = []
    rows: Dim = operands[given.index("n")][0][0]
    if target != LOSS and rows != 1:
        placed = _placed(given, "n", split, B)
        found.append(Strategy(AS_IT_IS, placed, _placed(made, "n", split, part), rows, "rows"))
    classes: Dim = operands[given.index("v d")][0][0]
    if target != BOTH and classes != 1:
        name = SPLIT_CLASSES if target == LOSS else SPLIT_CLASSES_BACK
        placed = _placed(given, "v", split, B)
        shown = _placed(made, "v", split, B if target == LOSS else part)
        # The log-sums of the ranks are exchanged, and collectives take equal shards.
        found.append(Strategy(name, placed, shown, classes, "classes", even=target == LOSS))
    return found


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
    )


DECLARATIONS: tuple[Declaration, ...] = tuple(
    _declared(target) for target in (LOSS, BACKWARD, BOTH)
)

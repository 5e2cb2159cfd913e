"""Strategies: ways to shard an op that its rule cannot say, each with a local program of its own.

The placements are here, next to the rules; the local programs are in :mod:`irc.sharding.local`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from irc.dialects.items import Shape
from irc.dialects.placement import AxisPlacement, B, Split
from irc.dialects.size import Dim
from irc.ops.custom import declaration
from irc.ops.infer import Attrs, Signature
from irc.ops.rules import op_signatures
from irc.ops.rules_naming import dim_of

if TYPE_CHECKING:
    from irc.dialects.flow import FlowOp


@dataclass(frozen=True)
class Strategy:
    """A one-axis signature beyond the rule.

    Attributes:
        name: under which :mod:`irc.sharding.local` knows its local program.
        operands: the placement of each operand.
        results: the placement of each result.
        size: the size that the axis divides; 0 where it divides none.
        split: what the axis splits, for strategies that split one of several dims.
        even: true where the local program has collectives, which take equal shards.
    """

    name: str
    operands: tuple[AxisPlacement, ...]
    results: tuple[AxisPlacement, ...]
    size: Dim
    split: str = ""
    even: bool = False


AS_IT_IS = "rule"
"""The name of strategies whose local program is the op itself."""

StrategyFunction: TypeAlias = Callable[
    [Attrs, Sequence[Signature], Sequence[Signature]], list[Strategy]
]


def strategies_of(op: FlowOp) -> list[Strategy]:
    """Return the strategies of an op, often none."""
    make = None if op.RECORD is None else op.RECORD.strategies
    if op.name == "flow.extern":
        known = declaration(op.plain["target"])
        make = known.strategies if known else None
    return make(op.plain, *op_signatures(op)) if make else []


def over_the_dim(name: str) -> StrategyFunction:
    """Split the dim that the op works along: ranks exchange what each found in its part."""

    def strategies(
        attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
    ) -> list[Strategy]:
        (shape, dtype), dim = operands[0], dim_of(attrs)
        if shape[dim] == 1 or dtype == "i1" or dtype.startswith("c"):
            return []
        split = Split(dim)
        # A scan keeps the dim; a search leaves nothing of it.
        placement = split if name == "scan-of-shards" else B
        return [Strategy(name, (split,), (placement,) * len(results), shape[dim], even=True)]

    return strategies


RING = "ring"
"""Sequence split of q, k and v alike; keys and values travel (arXiv:2310.01889)."""

CAUSAL_ROWS = "causal-rows"
"""Rows of q split; every rank has all keys and values, and masks by where its rows stand."""

TRAVELLING = "travelling-tokens"
"""Tokens go to the ranks of their experts and back (`irc.ops.experts`)."""

TRAVELLING_BACK = "travelling-gradients"
"""The same for the derivative."""

ONE_AXIS = frozenset({RING, TRAVELLING, TRAVELLING_BACK})
"""Strategies whose local program sends along one mesh axis, so that no second one takes part."""


def mask_dim(mask: Shape, q: Shape, from_end: int) -> AxisPlacement:
    """Return how a mask lies where that dim of q is split: split too, unless it is broadcast."""
    full = len(mask) >= from_end and mask[-from_end] == q[-from_end]
    return Split(len(mask) - from_end) if full else B


def mask_rows(mask: Shape, q: Shape) -> AxisPlacement:
    """Return how a mask lies where the rows of q are split."""
    return mask_dim(mask, q, 2)


def ring(
    operands: Sequence[Signature], masks: Sequence[Signature], num_results: int
) -> list[Strategy]:
    """Split the sequence of q, k and v alike, where both have one length; shards are equal.

    Args:
        operands: q, k and v.
        masks: none or one.
        num_results: of attention: its result, and the log-sums.
    """
    q, k = operands[0][0], operands[1][0]
    rows = Split(len(q) - 2)
    if q[-2] != k[-2] or q[-2] == 1:
        return []
    placed = (rows, rows, rows, *(mask_rows(shape, q) for shape, _ in masks))
    return [Strategy(RING, placed, (rows,) * num_results, q[-2], even=True)]

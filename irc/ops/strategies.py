"""Strategies: ways to shard an op that its rule cannot say, each with a local program of its own.

The placements are here, next to the rules; the local programs are in :mod:`irc.sharding.local`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from irc.dialects.placement import AxisPlacement, B, Partial, Split
from irc.dialects.size import Dim
from irc.ops.infer import Attrs, Signature
from irc.ops.rules import op_signatures

if TYPE_CHECKING:
    from irc.dialects.flow import FlowOp


@dataclass(frozen=True)
class Strategy:
    """A one-axis signature beyond the rule.

    Attributes:
        name: under which :mod:`irc.sharding.local` knows its local program.
        operands: the placement of each operand.
        results: the placement of each result.
        size: the size that the axis divides.
    """

    name: str
    operands: tuple[AxisPlacement, ...]
    results: tuple[AxisPlacement, ...]
    size: Dim


StrategyFunction: TypeAlias = Callable[
    [Attrs, Sequence[Signature], Sequence[Signature]], list[Strategy]
]


def strategies_of(op: FlowOp) -> list[Strategy]:
    """Return the strategies of an op, often none."""
    make = STRATEGIES.get(op.name)
    return make(op.plain, *op_signatures(op)) if make else []


def _masked(name: str) -> StrategyFunction:
    """Split the table along the indexed dim: each rank gives its own rows and zeros elsewhere."""

    def strategies(
        attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
    ) -> list[Strategy]:
        (table, dtype), dim = operands[0], attrs["dim"]
        if dtype == "i1" or table[dim] == 1:
            return []
        return [Strategy(name, (Split(dim), B), (Partial("sum"),), table[dim])]

    return strategies


def _offset_iota(
    attrs: Attrs, operands: Sequence[Signature], results: Sequence[Signature]
) -> list[Strategy]:
    """Split the counted dim: each rank counts from where its shard starts."""
    (shape, _), dim = results[0], attrs["dim"]
    return [] if shape[dim] == 1 else [Strategy("offset-iota", (), (Split(dim),), shape[dim])]


STRATEGIES: Mapping[str, StrategyFunction] = {
    "flow.take": _masked("masked-take"),
    "flow.gather": _masked("masked-gather"),
    "flow.iota": _offset_iota,
}

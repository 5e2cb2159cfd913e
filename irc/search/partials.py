"""Which values can be partial at all: signatures that wait for others are dropped.

Boxing never makes a partial value, so a weight is none, nor is what pointwise functions of it give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp
from irc.dialects.placement import Partial, Placement
from irc.search.options import Options
from irc.sharding.signatures import NdSignature

AxisPartial: TypeAlias = tuple[str, Partial]
Want: TypeAlias = tuple[
    NdSignature, list[tuple[int, set[AxisPartial]]], list[tuple[int, set[AxisPartial]]]
]
EMPTY: frozenset[AxisPartial] = frozenset()


class Partials:
    """The partial placements that can arise, per value, in all functions of a module.

    Args:
        known: the functions by name.
        options: the signatures of ops.
        initial: partial axes that values have from the start.

    Attributes:
        signatures: of each op, those whose partial operands can arise.
    """

    def __init__(
        self,
        known: Mapping[str, FuncOp],
        options: Options,
        initial: Mapping[SSAValue, AbstractSet[AxisPartial]] | None = None,
    ) -> None:
        self._known = known
        self._can: dict[SSAValue, set[AxisPartial]] = {v: {*s} for v, s in (initial or {}).items()}
        self._ops = {name: list(func.body.block.ops) for name, func in known.items()}
        ops = [op for every in self._ops.values() for op in every if isinstance(op, FlowOp)]
        # Equal ops have one list of signatures, which lives as long as the options.
        lists = {id(signatures): signatures for signatures in map(options.signatures, ops)}
        wants = {key: _wants(signatures) for key, signatures in lists.items()}
        self._wants = {op: wants[id(options.signatures(op))] for op in ops}
        # Grows only, and calls pass it on both ways: repeat until nothing is new.
        while self._spread():
            pass
        self.signatures = {
            op: [s for s, needs, _ in self._wants[op] if self._arises(op, needs)] for op in ops
        }

    def axes(self, value: SSAValue) -> frozenset[AxisPartial]:
        """Return on which axes a value can be partial, and how."""
        return frozenset(self._can.get(value, EMPTY))

    def _arises(self, op: FlowOp, needs: Sequence[tuple[int, set[AxisPartial]]]) -> bool:
        operands = op.operands
        return all(axes <= self._can.get(operands[i], EMPTY) for i, axes in needs)

    def _spread(self) -> bool:
        grown = False
        for ops in self._ops.values():
            for op in ops:
                if isinstance(op, CallOp):
                    callee = self._known[op.callee.string_value()].body.block
                    end = callee.last_op
                    assert isinstance(end, ReturnOp)
                    pairs = [
                        *zip(op.operands, callee.args, strict=True),
                        *zip(end.operands, op.results, strict=True),
                    ]
                    for before, after in pairs:
                        grown |= self._add(after, self._can.get(before, EMPTY))
                elif isinstance(op, FlowOp):
                    for _, needs, gives in self._wants[op]:
                        if gives and self._arises(op, needs):
                            for i, axes in gives:
                                grown |= self._add(op.results[i], axes)
        return grown

    def _add(self, value: SSAValue, more: AbstractSet[AxisPartial]) -> bool:
        if not more:
            return False
        have = self._can.setdefault(value, set())
        before = len(have)
        have |= more
        return len(have) > before


def is_possible(placement: Placement, axes: AbstractSet[AxisPartial]) -> bool:
    """Return whether a value with these partial axes can lie so as far as they go."""
    return _partial_axes(placement) <= axes


def _wants(signatures: Sequence[NdSignature]) -> list[Want]:
    """Return each signature with the partial axes of its operands and of its results."""
    return [(s, _partial(s.operands), _partial(s.results)) for s in signatures]


def _partial(placements: Sequence[Placement]) -> list[tuple[int, set[AxisPartial]]]:
    axes = ((i, _partial_axes(placement)) for i, placement in enumerate(placements))
    return [(i, partials) for i, partials in axes if partials]


def _partial_axes(placement: Placement) -> set[AxisPartial]:
    return {(axis, placed) for axis, placed in placement.axes if isinstance(placed, Partial)}

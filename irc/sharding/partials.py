"""Which values can be partial at all: signatures that wait for others are dropped.

Boxing never makes a partial value, so a weight is none, nor is what pointwise functions of it give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.flow import FlowOp
from irc.dialects.placement import Mesh, Partial, Placement
from irc.sharding.signatures import NdSignature, signatures

AxisPartial: TypeAlias = tuple[str, Partial]


class Partials:
    """The partial placements that can arise, per value, in all functions of a module.

    Attributes:
        signatures: of each op, those whose partial operands can arise.
    """

    def __init__(self, known: Mapping[str, FuncOp], mesh: Mesh) -> None:
        self._known = known
        self._can: dict[SSAValue, set[AxisPartial]] = {}
        all_of = {
            op: signatures(op, mesh)
            for func in known.values()
            for op in func.body.block.ops
            if isinstance(op, FlowOp)
        }
        # Grows only, and calls pass it on both ways: repeat until nothing is new.
        while self._spread(all_of):
            pass
        self.signatures = {
            op: [s for s in found if self._arises(op, s)] for op, found in all_of.items()
        }

    def possible(self, value: SSAValue, placement: Placement) -> bool:
        """Return whether the value can lie so as far as partial axes go."""
        return _partial_axes(placement) <= self._can.get(value, set())

    def _arises(self, op: FlowOp, signature: NdSignature) -> bool:
        return all(map(self.possible, op.inputs, signature.operands))

    def _spread(self, all_of: Mapping[FlowOp, list[NdSignature]]) -> bool:
        grown = False
        for func in self._known.values():
            for op in func.body.block.ops:
                if isinstance(op, CallOp):
                    callee = self._known[op.callee.string_value()].body.block
                    end = callee.last_op
                    assert isinstance(end, ReturnOp)
                    pairs = [
                        *zip(op.operands, callee.args, strict=True),
                        *zip(end.operands, op.results, strict=True),
                    ]
                    for before, after in pairs:
                        grown |= self._add(after, self._can.get(before, set()))
                elif isinstance(op, FlowOp):
                    for signature in all_of[op]:
                        if self._arises(op, signature):
                            for value, placement in zip(op.outputs, signature.results, strict=True):
                                grown |= self._add(value, _partial_axes(placement))
        return grown

    def _add(self, value: SSAValue, more: set[AxisPartial]) -> bool:
        have = self._can.setdefault(value, set())
        before = len(have)
        have |= more
        return len(have) > before


def _partial_axes(placement: Placement) -> set[AxisPartial]:
    return {(axis, placed) for axis, placed in placement.axes if isinstance(placed, Partial)}

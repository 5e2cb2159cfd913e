"""Local programs of a layer of experts whose tokens travel: to their experts, and back.

Tokens and experts are split over one axis. Each rank sends a token once to every rank that holds
one of its experts, wherever those are and however many tokens choose them: the buffers are as large
as all tokens of these ranks together, and only rows with an expert there travel
(`comm.dispatch_rows`). What comes back is the weighted sum over the experts of one rank; the owner
of the token adds up the ranks (`comm.combine_rows`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from xdsl.ir import SSAValue

from irc.dialects.comm import AllGatherOp, CombineRowsOp, DispatchRowsOp, ReduceScatterOp
from irc.dialects.flow import ExternOp, ReduceOp, ReshapeOp, tensor
from irc.dialects.literals import ConstantOp
from irc.dialects.types import TensorType
from irc.ops.experts import DOWN
from irc.ops.strategies import TRAVELLING, TRAVELLING_BACK
from irc.sharding.local_ops import Local


class Travel:
    """Between the rank that holds a token and those that hold its experts.

    Args:
        local: the program. Its second operand is the experts of each token, [tokens, choices]; its
            fifth the experts' second matrices, [experts, ..].
    """

    def __init__(self, local: Local) -> None:
        self.local = local
        _, index, _, _, down, *_ = local.inputs
        names = zip(local.mesh.names, local.signature.strategy, strict=True)
        (self.axis,) = (axis for axis, name in names if name in (TRAVELLING, TRAVELLING_BACK))
        self.ranks = local.mesh.size(self.axis)
        self.tokens, self.choices = tensor(index).static_shape()
        self.experts = tensor(down).static_shape()[0]
        self.index = self._everywhere(index)
        self.leaving = self._visits(index, self.tokens, self.ranks)

    def arguments(self) -> list[SSAValue]:
        """Return the operands of the layer as the rank of the experts sees them.

        Tokens of all ranks, those that do not come as zeros; their experts, counted from the first
        that the rank holds, so that others are out of range; their weights; the matrices.
        """
        hidden, _, weights, gate_up, down, *_ = self.local.inputs
        start = self.local.start_of(DOWN, 0, tensor(self.index).dtype)
        own = self.local.pointwise("sub", self.index, start)
        self.coming = self._marks_of_own(own)
        return [self.there(hidden), own, self._everywhere(weights), gate_up, down]

    @property
    def fill(self) -> float:
        """The share of rows that travel if a token's experts differ, and all are equally likely.

        A token does not visit a rank if it chooses all of its experts elsewhere.
        """
        count, away = self.experts * self.ranks, 1.0
        for chosen in range(min(self.choices, count)):
            away *= max(count - self.experts - chosen, 0) / (count - chosen)
        return 1.0 - away

    def there(self, rows: SSAValue) -> SSAValue:
        """Send rows [tokens, n] to their experts: [ranks * tokens, n]."""
        width = tensor(rows).static_shape()[1]
        kind = self._kind(rows, self.ranks, self.tokens, width)
        sent = self.local.collective(
            DispatchRowsOp, [rows, self.leaving, self.coming], kind, self.axis, fill=self.fill
        )
        return self._as(sent, self.ranks * self.tokens, width)

    def back(self, rows: SSAValue) -> SSAValue:
        """Send rows [ranks * tokens, n] back to where their tokens are, and add them up."""
        width = tensor(rows).static_shape()[1]
        operands = [self._as(rows, self.ranks, self.tokens, width), self.coming, self.leaving]
        kind = self._kind(rows, self.tokens, width)
        return self.local.collective(CombineRowsOp, operands, kind, self.axis, fill=self.fill)

    def own_rows(self, rows: SSAValue) -> SSAValue:
        """Add up rows [ranks * tokens, n] over the ranks, and keep those of the own tokens."""
        kind = self._kind(rows, self.tokens, tensor(rows).static_shape()[1])
        return self.local.collective(ReduceScatterOp, [rows], kind, self.axis, fn="sum", dim=0)

    def _everywhere(self, rows: SSAValue) -> SSAValue:
        """Gather rows [tokens, n] of all ranks: [ranks * tokens, n]."""
        kind = self._kind(rows, self.ranks * self.tokens, tensor(rows).static_shape()[1])
        return self.local.collective(AllGatherOp, [rows], kind, self.axis, dim=0)

    def _visits(self, index: SSAValue, tokens: int, ranks: int) -> SSAValue:
        """Mark the tokens that have an expert on each of some ranks: [ranks, tokens]."""
        local, dtype = self.local, tensor(index).dtype
        kind = TensorType.of((ranks, 1, 1), dtype)
        starts = tuple(rank * self.experts for rank in range(ranks))
        first = local.before(ConstantOp, [], kind, value=starts)
        end = local.before(ConstantOp, [], kind, value=tuple(n + self.experts for n in starts))
        above = local.pointwise("ge", index, first, dtype="i1")
        below = local.pointwise("lt", index, end, dtype="i1")
        inside = local.pointwise("logical_and", above, below)
        result_type = TensorType.of((ranks, tokens), "i1")
        return local.before(ReduceOp, [inside], result_type, fn="any", dims=(2,), keep_dims=False)

    def _marks_of_own(self, index: SSAValue) -> SSAValue:
        """Mark the tokens of all ranks that have an expert here: [ranks, tokens]."""
        return self._as(self._visits(index, self.ranks * self.tokens, 1), self.ranks, self.tokens)

    def _as(self, value: SSAValue, *shape: int) -> SSAValue:
        """View a value in another shape."""
        return self.local.before(ReshapeOp, [value], self._kind(value, *shape))

    def _kind(self, value: SSAValue, *shape: int) -> TensorType:
        return TensorType.of(shape, tensor(value).dtype)


def _same(
    local: Local, operands: Sequence[SSAValue], results: Sequence[TensorType]
) -> list[SSAValue]:
    """Emit the op itself on other operands than the local ones."""
    properties = dict(local.op.properties)
    return local.inner(
        type(local.op)(
            operands=[list(operands)], result_types=[list(results)], properties=properties
        )
    )


def _experts(local: Local) -> list[SSAValue]:
    """Send tokens to their experts, compute, send the sums back."""
    travel = Travel(local)
    kind = local.result_types()[0]
    assert isinstance(kind, TensorType)
    rows = TensorType.of((travel.ranks * travel.tokens, kind.static_shape()[1]), kind.dtype)
    (computed,) = _same(local, travel.arguments(), [rows])
    return [travel.back(computed)]


def _gradients(local: Local) -> list[SSAValue]:
    """Send tokens and their results' gradients to the experts, and the tokens' gradients back."""
    travel = Travel(local)
    *_, gradient = local.inputs
    operands = [*travel.arguments(), travel.there(gradient)]
    op = local.op
    assert isinstance(op, ExternOp)
    wanted: list[int] = json.loads(op.arguments)[4]
    gradients = _same(local, operands, [tensor(operands[operand]) for operand in wanted])
    home: Mapping[int, Callable[[SSAValue], SSAValue]] = {0: travel.back, 2: travel.own_rows}
    return [
        home[operand](value) if operand in home else value
        for operand, value in zip(wanted, gradients, strict=True)
    ]


EXPERTS_PROGRAMS: Mapping[str, Callable[[Local], list[SSAValue]]] = {
    TRAVELLING: _experts,
    TRAVELLING_BACK: _gradients,
}

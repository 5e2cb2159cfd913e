"""Layers of experts whose tokens travel, and the exchanges that are cut with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.ir import Operation, SSAValue

from irc.dialects.comm import (
    CHUNK,
    AllGatherOp,
    AllReduceOp,
    CollectiveOp,
    CombineRowsOp,
    DispatchRowsOp,
    ReduceScatterOp,
    WaitOp,
)
from irc.dialects.flow import ExternOp, ReshapeOp, tensor
from irc.ops.derivatives_extern import VJP
from irc.ops.experts import EXPERTS

HIDDEN, MATRICES = 0, (3, 4)
"""Operands of a layer (`irc.ops.experts`): the tokens' rows; those that have no row of a token."""


@dataclass(frozen=True)
class Exchange:
    """A collective and its wait."""

    start: CollectiveOp
    wait: WaitOp


@dataclass(frozen=True)
class ExpertLayer:
    """A layer of experts, or its derivative, whose tokens travel.

    Attributes:
        op: the experts, on the rows of all ranks, [ranks * tokens, n].
        ranks: among which tokens travel.
        tokens: of a rank.
        dispatched: by operand, what brings its rows.
        arguments: of each result, the operand that it has the shape of; 0 of the layer's own.
        combined: what takes the rows of a result back; None where none is asked for.
        gathered: by operand, what gives the rows that are dispatched, over another axis; often
            none.
        reduced: what sums the rows that came back, over another axis; often None.
        inner: ranks of that axis; 1 where there is none.
    """

    op: ExternOp
    ranks: int
    tokens: int
    dispatched: Mapping[int, Exchange]
    arguments: Sequence[int]
    combined: Exchange | None = None
    gathered: Mapping[int, Exchange] = field(default_factory=dict[int, Exchange])
    reduced: Exchange | None = None
    inner: int = 1

    @property
    def is_gradient(self) -> bool:
        """Whether it is the derivative."""
        return self.op.target != EXPERTS

    @property
    def exchanges(self) -> list[Exchange]:
        """All that is cut with the experts."""
        behind = (each for each in (self.combined, self.reduced) if each is not None)
        return [*self.gathered.values(), *self.dispatched.values(), *behind]

    def fits(self, degree: int) -> bool:
        """Return whether pieces of the tokens have one size."""
        return self.tokens % (degree * self.inner) == 0 and self.tokens > degree * self.inner

    def among(self, values: Mapping[SSAValue, SSAValue]) -> ExpertLayer:
        """Return the layer of other ops, given which values stand for those of these."""
        op = values[self.op.outputs[0]].owner
        assert isinstance(op, ExternOp)
        other = expert_layer(op)
        assert other is not None
        return other


def expert_layer(op: Operation) -> ExpertLayer | None:
    """Return a layer of experts whose tokens travel; None of what is none, or is a piece."""
    if not isinstance(op, ExternOp) or CHUNK in op.attributes:
        return None
    arguments = _arguments(op)
    if arguments is None:
        return None
    places = [place for place in range(len(op.inputs)) if place == HIDDEN or place > MATRICES[-1]]
    dispatched = {
        place: exchange
        for place in places
        if (exchange := _dispatch(op.operands[place])) is not None
    }
    if HIDDEN not in dispatched:
        return None
    first = dispatched[HIDDEN].start
    assert isinstance(first, DispatchRowsOp)
    ranks, tokens = tensor(first.going).static_shape()
    layer = ExpertLayer(op, ranks, tokens, dispatched, arguments, _combine(op, arguments))
    return _with_inner(layer)


def _arguments(op: ExternOp) -> Sequence[int] | None:
    """Return of each result the operand that it has the shape of; None of other ops."""
    if op.target == EXPERTS:
        return [HIDDEN]
    if op.target != VJP:
        return None
    name, call, _, _, wanted = json.loads(op.arguments)
    return wanted if name == ExternOp.name and call["target"] == EXPERTS else None


def _dispatch(rows: SSAValue) -> Exchange | None:
    view = rows.owner
    if not isinstance(view, ReshapeOp) or not rows.has_one_use():
        return None
    wait = view.x.owner
    if not isinstance(wait, WaitOp) or not view.x.has_one_use():
        return None
    start = wait.pending.owner
    return Exchange(start, wait) if isinstance(start, DispatchRowsOp) else None


def _combine(op: ExternOp, arguments: Sequence[int]) -> Exchange | None:
    if HIDDEN not in arguments:
        return None
    view = _reader(op.outputs[list(arguments).index(HIDDEN)])
    start = _reader(view.outputs[0]) if isinstance(view, ReshapeOp) else None
    wait = _reader(start.outputs[0]) if isinstance(start, CombineRowsOp) else None
    if not isinstance(start, CombineRowsOp) or not isinstance(wait, WaitOp):
        return None
    return Exchange(start, wait)


def _reader(value: SSAValue) -> Operation | None:
    return value.get_user_of_unique_use()


def _with_inner(layer: ExpertLayer) -> ExpertLayer:
    """Return a layer with what gathers its rows before, and sums them behind, over another axis."""
    gathered = {
        place: gather
        for place, exchange in layer.dispatched.items()
        if (gather := _gather(exchange.start)) is not None
    }
    if len(grown := {_grown(gather) for gather in gathered.values()}) == 1:
        layer = replace(layer, gathered=gathered, inner=grown.pop())
    reduced = _reduction(layer)
    if reduced is not None and isinstance(reduced.start, ReduceScatterOp):
        inner = layer.tokens // tensor(reduced.wait.outputs[0]).static_shape()[0]
        if layer.inner not in (1, inner):
            return layer
        layer = replace(layer, inner=inner)
    return replace(layer, reduced=reduced)


def _grown(gather: Exchange) -> int:
    before = tensor(gather.start.x).static_shape()[0]
    return tensor(gather.wait.outputs[0]).static_shape()[0] // before


def _gather(start: CollectiveOp) -> Exchange | None:
    """Return what gathers the rows that are dispatched, and nothing else reads."""
    wait = start.x.owner
    if not isinstance(wait, WaitOp) or not start.x.has_one_use():
        return None
    begun = wait.pending.owner
    if not isinstance(begun, AllGatherOp) or begun.dim != 0 or not _is_whole(begun):
        return None
    return Exchange(begun, wait)


def _reduction(layer: ExpertLayer) -> Exchange | None:
    """Return what sums the rows that came back, where nothing else reads them."""
    if layer.combined is None:
        return None
    start = _reader(layer.combined.wait.outputs[0])
    if not isinstance(start, AllReduceOp | ReduceScatterOp) or not _is_whole(start):
        return None
    if isinstance(start, ReduceScatterOp) and start.dim != 0:
        return None
    wait = _reader(start.outputs[0])
    return Exchange(start, wait) if isinstance(wait, WaitOp) else None


def _is_whole(start: CollectiveOp) -> bool:
    return CHUNK not in start.attributes and start.bucket is None

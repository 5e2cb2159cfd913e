"""Layers of experts whose tokens travel, cut into pieces of tokens.

The tokens of a piece go to their experts, these compute, and their sums go back: while the rows of
one piece travel, another is computed (Tutel, arXiv:2206.03382; FSMoE, arXiv:2501.10714). Where
ranks of another axis share the experts' inner dim, what gathers the rows over it just before, and
what sums them just behind, is cut as well: both links carry while a rank computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import DictionaryAttr, StringAttr
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.attributes import to_attribute
from irc.dialects.comm import CHUNK, AllReduceOp, CollectiveOp, PendingType, WaitOp
from irc.dialects.flow import (
    ConcatOp,
    ExternOp,
    FlowOp,
    PointwiseOp,
    ReshapeOp,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.types import TensorType
from irc.sharding.expert_layers import HIDDEN, MATRICES, Exchange, ExpertLayer
from irc.sharding.pieces import Cut, joined, reshaped, sliced


def cut_experts(layer: ExpertLayer, degree: int) -> None:
    """Put pieces in the place of a layer, and of what brings its rows and takes them back.

    Args:
        layer: of a block.
        degree: into how many pieces; it fits.
    """
    _Cutting(layer, degree).run()


def told(layer: ExpertLayer, degree: int, saved_s: float | None, runs: int = 1) -> DictionaryAttr:
    """Return what was decided of a layer, of a function that runs so often in a call.

    It is what ``irc explain`` reads.
    """
    facts: dict[str, object] = {
        "id": id_of(layer.op),
        "op": "experts' gradients" if layer.is_gradient else "experts",
        "axis": layer.dispatched[HIDDEN].start.axis,
        "degree": degree,
        "dim": 0,
        "loc": loc_of(layer.op),
    }
    if saved_s is not None:
        facts |= {"saved_s": saved_s, "runs": runs}
    return DictionaryAttr({key: to_attribute(value) for key, value in facts.items()})


class _Cutting:
    """Builds the pieces of one layer.

    New ops go before the experts that they replace, and before the exchange that takes rows back.
    """

    def __init__(self, layer: ExpertLayer, degree: int) -> None:
        self.layer, self.degree, self.op = layer, degree, layer.op
        self.own = Cut(0, degree, layer.inner)
        self.marks = replace(self.own, dim=1)
        self.every = Cut(0, degree, layer.inner * layer.ranks)
        self.before: FlowOp = layer.op
        self._parts: dict[tuple[SSAValue, Cut, int], SSAValue] = {}

    def run(self) -> None:
        numbers = range(self.degree)
        begun = {
            (place, number): self._dispatched(place, number)
            for number in numbers
            for place in self.layer.dispatched
        }
        results = [self._computed(number, begun) for number in numbers]
        combined = self.layer.combined
        for at, place in enumerate(self.layer.arguments):
            value, pieces = self.op.outputs[at], [each[at] for each in results]
            if place in MATRICES:
                value.replace_all_uses_with(self._sum(tensor(value), pieces, at))
            elif place != HIDDEN or combined is None:
                value.replace_all_uses_with(self._join(tensor(value), pieces, at))
        if combined is not None:
            at = list(self.layer.arguments).index(HIDDEN)
            self.before = combined.start
            self._send_back(combined, [each[at] for each in results])
        self._erase()

    def _dispatched(self, place: int, number: int) -> FlowOp:
        """Begin to send the rows of a piece to their experts."""
        exchange = self.layer.dispatched[place]
        rows, *marks = exchange.start.inputs
        gather = self.layer.gathered.get(place)
        if gather is None:
            own = self._part(rows, self.own, number, exchange.start)
        else:
            mine = self._part(gather.start.x, Cut(0, self.degree), number, gather.start)
            own = self._awaited(self._begun(gather, [mine], number, self.own), gather, number)
        parts = [self._part(each, self.marks, number, exchange.start) for each in marks]
        return self._begun(exchange, [own, *parts], number, self.marks)

    def _computed(self, number: int, begun: Mapping[tuple[int, int], FlowOp]) -> Sequence[SSAValue]:
        """Compute a piece of each result."""
        inputs: list[SSAValue] = []
        for place, value in enumerate(self.op.inputs):
            if place in MATRICES:
                inputs.append(value)
            elif place in self.layer.dispatched:
                arrived = self._awaited(begun[place, number], self.layer.dispatched[place], number)
                shape = self.every.piece_shape(tensor(value).static_shape())
                inputs.append(self._view(arrived, shape, number, f"operand{place}"))
            else:
                inputs.append(self._rows(value, number))
        kinds: list[TensorType] = []
        for value, place in zip(self.op.outputs, self.layer.arguments, strict=True):
            kind = tensor(value)
            shape = kind.static_shape()
            cut = shape if place in MATRICES else self.every.piece_shape(shape)
            kinds.append(TensorType.of(cut, kind.dtype))
        piece = ExternOp.make(inputs, kinds, **self.op.plain)
        self._insert(piece, self.op, id_of(self.op), number)
        piece.attributes[CHUNK] = StringAttr(f"{number} of {self.degree}")
        return piece.outputs

    def _send_back(self, combined: Exchange, pieces: Sequence[SSAValue]) -> None:
        """Send each piece back, and sum it over the inner axis where that is asked."""
        whole, *marks = combined.start.inputs
        shape = self.marks.piece_shape(tensor(whole).static_shape())
        pending: list[FlowOp] = []
        for number, piece in enumerate(pieces):
            sums = self._view(piece, shape, number, "sums")
            parts = [self._part(each, self.marks, number, combined.start) for each in marks]
            pending.append(self._begun(combined, [sums, *parts], number, self.own))
        rows = [self._awaited(each, combined, number) for number, each in enumerate(pending)]
        cut, last, reduced = self.own, combined, self.layer.reduced
        if reduced is not None:
            last = reduced
            cut = self.own if isinstance(reduced.start, AllReduceOp) else Cut(0, self.degree)
            begun = [self._begun(reduced, [each], number, cut) for number, each in enumerate(rows)]
            rows = [self._awaited(each, reduced, number) for number, each in enumerate(begun)]
        last.wait.outputs[0].replace_all_uses_with(joined(rows, cut, last.wait, self.before))

    def _sum(self, kind: TensorType, pieces: Sequence[SSAValue], at: int) -> SSAValue:
        """Add up the gradients of a matrix, in float32 where it is kept narrower."""
        name = f"{id_of(self.op)}.sum{at}"
        wide = kind if kind.dtype not in ("f16", "bf16") else TensorType.of(kind.shape, "f32")

        def step(fn: str, inputs: Sequence[SSAValue], to: TensorType, part: str) -> SSAValue:
            op = PointwiseOp.make(inputs, [to], fn=fn, loc=loc_of(self.op), id=f"{name}.{part}")
            self._like(op, self.op)
            _block(self.op).insert_op_before(op, self.op)
            return op.outputs[0]

        if wide != kind:
            pieces = [step("cast", [p], wide, f"wide{n}") for n, p in enumerate(pieces)]
        total = pieces[0]
        for number, piece in enumerate(pieces[1:], 1):
            total = step("add", [total, piece], wide, str(number))
        return total if wide == kind else step("cast", [total], kind, "narrow")

    def _join(self, kind: TensorType, pieces: Sequence[SSAValue], at: int) -> SSAValue:
        """Join the rows of all ranks, [ranks * tokens, n]."""
        cut, loc, name = self.every, loc_of(self.op), f"{id_of(self.op)}.rows{at}"
        apart = [
            reshaped(p, cut.apart(tensor(p).static_shape()), self.op, loc, f"{name}.view{n}")
            for n, p in enumerate(pieces)
        ]
        whole = TensorType.of(cut.apart(kind.static_shape()), kind.dtype)
        join = ConcatOp.make(apart, [whole], dim=cut.inner, loc=loc, id=f"{name}.apart")
        _block(self.op).insert_op_before(join, self.op)
        return reshaped(join.outputs[0], kind.static_shape(), self.op, loc, name)

    def _part(self, value: SSAValue, cut: Cut, number: int, like: FlowOp) -> SSAValue:
        """Return a piece of a value that is whole; of one that several read, the same one."""
        key = value, cut, number
        if key not in self._parts:
            name = f"{id_of(self.op)}.{len(self._parts)}.part{number}"
            self._parts[key] = sliced(value, cut, number, self.before, loc_of(like), name)
        return self._parts[key]

    def _rows(self, value: SSAValue, number: int) -> SSAValue:
        """Return the rows of a piece of all ranks, [ranks * tokens, n].

        What an op by element gives (the experts of each row, counted from the rank's first) is
        computed of pieces: kernels that sort rows by it take it where it lies together.
        """
        op, shape = value.owner, tensor(value).static_shape()
        if not isinstance(op, PointwiseOp):
            return self._part(value, self.every, number, self.op)
        whole = [tensor(each).static_shape() == shape for each in op.inputs]
        if not all(w or not tensor(v).ndim for w, v in zip(whole, op.inputs, strict=True)):
            return self._part(value, self.every, number, self.op)
        inputs = [
            self._part(each, self.every, number, op) if w else each
            for w, each in zip(whole, op.inputs, strict=True)
        ]
        kind = TensorType.of(self.every.piece_shape(shape), tensor(value).dtype)
        piece = PointwiseOp.make(inputs, [kind], **op.plain)
        self._insert(piece, op, f"{id_of(self.op)}.{id_of(op)}", number)
        return piece.outputs[0]

    def _view(self, value: SSAValue, shape: Sequence[int], number: int, name: str) -> SSAValue:
        name = f"{id_of(self.op)}.piece{number}.{name}"
        return reshaped(value, shape, self.before, loc_of(self.op), name)

    def _begun(
        self, exchange: Exchange, inputs: Sequence[SSAValue], number: int, cut: Cut
    ) -> FlowOp:
        """Begin the exchange of a piece; ``cut`` parts what the whole one gives."""
        start, whole = exchange.start, exchange.start.result_tensor
        kind = TensorType.of(cut.piece_shape(whole.static_shape()), whole.dtype)
        begun = type(start).make(inputs, [PendingType(kind)], **start.plain)
        self._insert(begun, start, id_of(exchange.wait), number, ".start")
        begun.attributes[CHUNK] = StringAttr(f"{number} of {self.degree}")
        return begun

    def _awaited(self, begun: FlowOp, exchange: Exchange, number: int) -> SSAValue:
        pending = begun.outputs[0].type
        assert isinstance(pending, PendingType)
        wait = WaitOp.make(begun.outputs, [pending.tensor])
        self._insert(wait, exchange.wait, id_of(exchange.wait), number)
        return wait.outputs[0]

    def _insert(self, op: FlowOp, like: FlowOp, name: str, number: int, suffix: str = "") -> None:
        self._like(op, like)
        op.attributes["id"] = StringAttr(f"{name}.piece{number}{suffix}")
        _block(self.op).insert_op_before(op, self.before)

    def _like(self, op: FlowOp, like: FlowOp) -> None:
        kept: dict[str, Any] = {
            k: v for k, v in like.attributes.items() if k not in ("id", "sbp", CHUNK)
        }
        op.attributes |= kept

    def _erase(self) -> None:
        """Erase the whole layer; what else reads nothing of it any more goes with it."""
        last = [self.layer.reduced, self.layer.combined]
        ends = [each.wait for each in last if each is not None]
        waiting: list[Operation] = [*(ends[:1] or [self.op])]
        while waiting:
            op = waiting.pop()
            if op.parent is None or any(value.first_use is not None for value in op.results):
                continue
            before = [v.owner for v in op.operands if _goes(v.owner)]
            op.detach()
            op.erase()
            waiting += [each for each in before if isinstance(each, Operation)]


def _goes(owner: Operation | Block) -> bool:
    """Return whether an op is of a layer: what marks rows, or gives them, stays if it is read."""
    return isinstance(owner, CollectiveOp | WaitOp | ReshapeOp | ExternOp)


def _block(op: Operation) -> Block:
    block = op.parent
    assert isinstance(block, Block)
    return block

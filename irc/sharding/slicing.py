"""Ops of each slice of a batch in the place of ops of the whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from irc.dialects.builder import functions
from irc.dialects.comm import CHUNK, CollectiveOp, LocalChunkOp, PendingType
from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    FlowOp,
    PointwiseOp,
    ReshapeOp,
    SliceOp,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.literals import ConstantOp
from irc.dialects.noted import rename_ids
from irc.dialects.placement import Mesh, Partial, Split
from irc.dialects.types import ITEM_BYTES, TensorType, tensor_type
from irc.sharding.inlining import Inlining
from irc.sharding.lanes import Lanes
from irc.sharding.local import build_local
from irc.sharding.mesh import mesh_of
from irc.sharding.pieces import Cut
from irc.sharding.signatures import NdSignature
from irc.sharding.slice_rules import (
    EXCHANGES,
    SliceRule,
    exchanged,
    slice_rule,
    splatted,
)

JOINED_BY = {"sum": "add", "max": "maximum", "min": "minimum"}
REBUILT = (BroadcastOp, ConstantOp)
UNREAD = (*REBUILT, SliceOp, ReshapeOp)


class Obstacle(NamedTuple):
    """An op for which all slices have to meet.

    Attributes:
        id: of the op.
        name: of its kind.
        loc: its source line.
        because: why it cannot be computed slice by slice.
    """

    id: str
    name: str
    loc: str
    because: str


@dataclass
class Sliced:
    """What came of slicing a batch.

    Attributes:
        rows: of the batch on a rank; 0 where no input has any.
        input: the name of the input that they are of.
        collectives: ids of those that each slice has for itself.
        inlined: ids of the calls of the entry that were replaced by what their blocks do.
        obstacles: ops for which the slices meet.
    """

    rows: int = 0
    input: str = ""
    collectives: list[str] = field(default_factory=list[str])
    inlined: list[str] = field(default_factory=list[str])
    obstacles: list[Obstacle] = field(default_factory=list[Obstacle])


class Slicing:
    """Slices the entry of a module, op by op in its order.

    Args:
        module: changed.
        cut: of the batch.
        batch: arguments that are cut so.
        said: what comes of it; filled in.
    """

    def __init__(self, module: ModuleOp, cut: Cut, batch: Sequence[SSAValue], said: Sliced) -> None:
        self._known = functions(module)
        self._inlining = Inlining(self._known)
        self._ways, self._said = cut.degree, said
        self._mesh, self._ranks = Mesh((("slice", cut.degree),)), mesh_of(module)
        self._batch = set(batch)
        self._cuts: dict[SSAValue, Cut] = dict.fromkeys(batch, cut)
        self._parts: dict[tuple[SSAValue, Cut], list[SSAValue]] = {}
        self._wholes: dict[SSAValue, SSAValue] = {value: value for value in batch}
        # Whole values that no slice can give alone.
        self._of_all: set[SSAValue] = set()
        self._lanes = Lanes(cut.degree)

    def run(self, func: FuncOp) -> None:
        block = func.body.block
        waiting = deque(block.ops)
        while waiting:
            op = waiting.popleft()
            if isinstance(op, CallOp) and any(v in self._cuts for v in op.operands):
                self._said.inlined.append(id_of(op))
                waiting.extendleft(reversed(self._inlining.replace(op)))
            else:
                self._take(op)
        kept = dict.fromkeys(self._lanes.ops)
        replaced = [op for op in block.ops if op not in kept]
        for op in list(block.ops):
            op.detach()
        for op in reversed(replaced):
            op.erase(safe_erase=False)
        block.add_ops(kept)
        for op in reversed(list(kept)):
            if isinstance(op, UNREAD) and op.outputs[0].first_use is None:
                op.detach()
                op.erase()
        self._drop_blocks()

    def _take(self, op: Operation) -> None:
        """Write an op in slices, or as it is."""
        cuts = [self._cuts[value] for value in op.operands if value in self._cuts]
        if not cuts or op.regions or not isinstance(op, FlowOp):
            self._leave(op)
        elif isinstance(op, EXCHANGES):
            if (cut := exchanged(op, cuts[0], self._ranks)) is None:
                self._stop(op, "it divides the samples of a batch among ranks, and not of slices")
                self._leave(op)
            elif isinstance(op, LocalChunkOp) and op.x in self._batch:
                self._divide(op, cut)
            else:
                self._exchange(op, cut)
        else:
            self._compute(op)

    def _compute(self, op: FlowOp) -> None:
        cuts = [self._cuts.get(value) for value in op.operands]
        rule = slice_rule(op, [None if cut is None else cut.dim for cut in cuts], self._mesh)
        if rule is None:
            self._stop(op, "it computes across the samples of a batch")
            self._leave(op)
        elif self._adds_up_more_than_it_joins(op, rule):
            self._leave(op)
        else:
            wholes = [v for v, cut in zip(op.operands, cuts, strict=True) if cut is None]
            if any(map(self._is_of_all, wholes)):
                self._stop(op, "it reads what is computed of the whole batch, as in a batch norm")
            self._slice(op, rule)

    def _stop(self, op: FlowOp, because: str) -> None:
        self._said.obstacles.append(Obstacle(id_of(op), op.name, loc_of(op), because))

    def _is_of_all(self, value: SSAValue) -> bool:
        """True for what slices wait for each other to read; numbers such as a loss are not."""
        return value in self._of_all and _num_elements(value) > 1

    def _adds_up_more_than_it_joins(self, op: FlowOp, rule: SliceRule) -> bool:
        """True where a sum over the batch moves fewer bytes of joined operands than of results."""
        if not any(isinstance(p, Partial) for p in rule.results):
            return False
        cut = [v for v in dict.fromkeys(op.operands) if v in self._cuts and v not in self._wholes]
        added = (self._ways + 1) * sum(map(_bytes, op.outputs))
        return added > 2 * sum(map(_bytes, cut))

    def _leave(self, op: Operation) -> None:
        """Write an op as it is, of whole operands."""
        for each in op.walk():
            for place, value in enumerate(each.operands):
                if value in self._cuts:
                    each.operands[place] = whole = self._whole(value)
                    is_of_all = value not in self._batch
                else:
                    whole, is_of_all = value, value in self._of_all
                if is_of_all:
                    self._of_all.update((whole, *op.results))
        self._lanes.put(op)

    def _slice(self, op: FlowOp, rule: SliceRule) -> None:
        """Write an op of each slice."""
        # All that are sliced share a dim of the op: one cut of the batch.
        ranks = next(self._cuts[value].ranks for value in op.inputs if value in self._cuts)
        columns = [
            [value] * self._ways
            if dim is None
            else self._slices(value, Cut(dim, self._ways, ranks), op, place)
            for place, (value, dim) in enumerate(zip(op.inputs, rule.operands, strict=True))
        ]
        each = [
            self._built(op, rule.signature, [column[number] for column in columns], number)
            for number in range(self._ways)
        ]
        self._lanes.put_each(each)
        for place, (value, placed) in enumerate(zip(op.outputs, rule.results, strict=True)):
            own: list[SSAValue] = [sliced.outputs[place] for sliced in each]
            if isinstance(placed, Split):
                self._know(value, Cut(placed.dim, self._ways, ranks), own)
            else:
                self._add_up(op, place, own, placed)

    def _exchange(self, op: FlowOp, cut: Cut) -> None:
        """Write an exchange of each slice."""
        (source,), value = op.inputs, op.outputs[0]
        each: list[FlowOp] = []
        for number, part in enumerate(self._slices(source, self._cuts[source], op, 0)):
            exchange = type(op).make([part], [_piece_type(value.type, cut)], **op.plain)
            exchange.attributes |= op.attributes
            if isinstance(op, CollectiveOp):
                exchange.attributes[CHUNK] = StringAttr(f"{number} of {self._ways}")
            each.append(_named(exchange, number))
        self._lanes.put_each(each)
        if isinstance(op, CollectiveOp):
            self._said.collectives.append(id_of(op).removesuffix(".start"))
        self._know(value, cut, [sliced.outputs[0] for sliced in each])

    def _divide(self, op: LocalChunkOp, cut: Cut) -> None:
        """Take a rank's part of a batch at once: slices of it are views, those of all are not."""
        value = op.outputs[0]
        self._lanes.put(op)
        self._batch.add(value)
        self._cuts[value], self._wholes[value] = cut, value

    def _know(self, value: SSAValue, cut: Cut, slices: list[SSAValue]) -> None:
        self._cuts[value] = cut
        self._parts[value, cut] = slices

    def _built(
        self, op: FlowOp, signature: NdSignature, inputs: Sequence[SSAValue], number: int
    ) -> FlowOp:
        ops: list[FlowOp] = []
        build_local(op, signature, self._mesh, inputs, ops.append)
        (sliced,) = ops
        return _named(sliced, number)

    def _add_up(self, op: FlowOp, place: int, own: Sequence[SSAValue], kind: Partial) -> None:
        """Write the join of partial results, which has the id of what it stands for."""
        value, total = op.outputs[place], own[0]
        for number, part in enumerate(own[1:], 1):
            join = PointwiseOp.make([total, part], [value.type], fn=JOINED_BY[kind.reduction])
            join.attributes |= _attributes(op, place)
            if number < len(own) - 1:
                join.attributes["id"] = StringAttr(f"{id_of(op)}.sum{place}.{number}")
                join.attributes.pop("sbp", None)
            self._lanes.put(join)
            (total,) = join.outputs
        value.replace_all_uses_with(total)
        self._of_all.add(total)

    def _slices(self, value: SSAValue, cut: Cut, reader: FlowOp, place: int) -> list[SSAValue]:
        """Return the slices of a value: those that are there, or of what is whole."""
        key = value, cut
        if key not in self._parts:
            self._parts[key] = self._rebuilt(value, cut) or self._cut(
                self._whole(value) if value in self._cuts else value, cut,
                f"{id_of(reader)}.operand{place}", loc_of(reader)
            )  # fmt: skip
        return self._parts[key]

    def _rebuilt(self, value: SSAValue, cut: Cut) -> list[SSAValue]:
        """Return slices that are computed of what all of them read; none where none are."""
        op = value.owner
        if not isinstance(op, REBUILT):
            return []
        if (signature := splatted(op, cut.dim, self._mesh)) is None:
            return []
        each = [self._built(op, signature, op.inputs, number) for number in range(self._ways)]
        self._lanes.put_each(each)
        return [sliced.outputs[0] for sliced in each]

    def _cut(self, value: SSAValue, cut: Cut, name: str, loc: str) -> list[SSAValue]:
        """Return slices of a whole value, by ops whose ids begin with a name."""
        kind = tensor(value)
        apart = cut.apart(kind.static_shape())
        if cut.ranks > 1:
            view = ReshapeOp.make([value], [TensorType.of(apart, kind.dtype)], loc=loc,
                                  id=f"{name}.apart")  # fmt: skip
            self._lanes.put(view)
            (value,) = view.outputs
        else:
            apart = kind.static_shape()
        rows, dim = apart[cut.inner] // self._ways, cut.inner
        shape = (*apart[:dim], rows, *apart[dim + 1 :])
        each: list[FlowOp] = []
        for number in range(self._ways):
            starts, stops = [0] * len(apart), list(apart)
            starts[dim], stops[dim] = number * rows, (number + 1) * rows
            each.append(SliceOp.make([value], [TensorType.of(shape, kind.dtype)], loc=loc,
                                     id=f"{name}.slice{number}", starts=tuple(starts),
                                     stops=tuple(stops), steps=(1,) * len(apart)))  # fmt: skip
        self._lanes.put_each(each)
        if cut.ranks > 1:
            each = [
                ReshapeOp.make(part.outputs, [_piece_type(kind, cut)], loc=loc,
                               id=f"{name}.slice{number}.view")
                for number, part in enumerate(each)
            ]  # fmt: skip
            self._lanes.put_each(each)
        return [op.outputs[0] for op in each]

    def _whole(self, value: SSAValue) -> SSAValue:
        """Return the join of a value's slices, written where it is first read."""
        if value in self._wholes:
            return self._wholes[value]
        op, cut = value.owner, self._cuts[value]
        assert isinstance(op, FlowOp)
        assert isinstance(value, OpResult)
        parts, kind, name = self._parts[value, cut], tensor(value), id_of(op)
        if cut.ranks > 1:
            shape = cut.apart(cut.piece_shape(kind.static_shape()))
            views = [
                ReshapeOp.make([part], [TensorType.of(shape, kind.dtype)], loc=loc_of(op),
                               id=f"{name}.view{value.index}.{number}")
                for number, part in enumerate(parts)
            ]  # fmt: skip
            self._lanes.put_each(views)
            joined = TensorType.of(cut.apart(kind.static_shape()), kind.dtype)
            join = ConcatOp.make([view.outputs[0] for view in views], [joined], dim=cut.inner,
                                 loc=loc_of(op), id=f"{name}.apart{value.index}")  # fmt: skip
            self._lanes.put(join)
            last = ReshapeOp.make(join.outputs, [kind])
        else:
            last = ConcatOp.make(parts, [kind], dim=cut.dim)
        last.attributes |= _attributes(op, value.index)
        self._lanes.put(last)
        self._wholes[value] = last.outputs[0]
        return self._wholes[value]

    def _drop_blocks(self) -> None:
        """Erase blocks that nothing calls any more."""
        called = {
            op.callee.string_value()
            for name, func in self._known.items()
            if name not in self._inlining.called
            for op in func.walk()
            if isinstance(op, CallOp)
        }
        for name in self._inlining.called:
            if name not in called:
                self._known[name].detach()
                self._known[name].erase(safe_erase=False)


def _piece_type(kind: Attribute, cut: Cut) -> Attribute:
    """Return the type of a slice of a tensor, or of one that is pending."""
    if isinstance(kind, PendingType):
        return PendingType(_piece_type(kind.tensor, cut))
    whole = tensor_type(kind)
    return TensorType.of(cut.piece_shape(whole.static_shape()), whole.dtype)


def _named(op: FlowOp, number: int) -> FlowOp:
    """Give an op of a slice ids of its own, so that it is held against no value of the capture."""

    def change(name: str) -> str:
        base = name.removesuffix(".start")
        return f"{base}.slice{number}{name[len(base) :]}"

    op.attributes.pop("sbp", None)
    rename_ids(op, change)
    return op


def _attributes(op: FlowOp, place: int) -> dict[str, Attribute]:
    """Return what is said of a result of an op, for another op that gives it."""
    kept = {key: value for key, value in op.attributes.items() if key != "results"}
    if len(op.outputs) > 1:
        kept["id"] = StringAttr(f"{id_of(op)}.whole{place}")
        kept.pop("sbp", None)
    return kept


def _num_elements(value: SSAValue) -> int:
    return prod(value.type.static_shape()) if isinstance(value.type, TensorType) else 0


def _bytes(value: SSAValue) -> int:
    kind = value.type
    return _num_elements(value) * ITEM_BYTES[kind.dtype] if isinstance(kind, TensorType) else 0

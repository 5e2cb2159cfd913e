"""Tensors in pieces along a dim: who has them already, how they are computed, how they are joined.

A tensor of level spmd that a group has gathered along a dim holds the parts of its ranks one behind
the other. Pieces of it are runs of another dim, or, of that one, a run of each rank's part: piece j
of degree d of ``[ranks * rows, ..]`` is ``[ranks, d, rows / d, ..][:, j]``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.flow import (
    ConcatOp,
    ContractOp,
    FlowOp,
    PointwiseOp,
    ReshapeOp,
    SliceOp,
    id_of,
    loc_of,
    tensor,
)
from irc.dialects.types import TensorType
from irc.ops.infer import parse_spec

NEAR = 100
"""Values that are looked at on the way from one to the products that it comes of."""


@dataclass(frozen=True)
class Cut:
    """How a tensor is parted into pieces of one size.

    Attributes:
        dim: of the tensor.
        degree: how many pieces.
        ranks: how many parts one behind the other the dim has, of which each piece has a run; 1
            where pieces are runs of the dim.
    """

    dim: int
    degree: int
    ranks: int = 1

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether the pieces of a shape have one size."""
        return shape[self.dim] % (self.degree * self.ranks) == 0

    def piece_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a piece.

        >>> Cut(0, 2, ranks=4).piece_shape((16, 3))
        (8, 3)
        """
        return (*shape[: self.dim], shape[self.dim] // self.degree, *shape[self.dim + 1 :])

    def apart(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape, of a whole or of a piece, with a dim more that is the ranks' parts."""
        rows = shape[self.dim] // self.ranks
        return (*shape[: self.dim], self.ranks, rows, *shape[self.dim + 1 :])

    @property
    def inner(self) -> int:
        """The dim that is sliced, in the shape with the parts apart."""
        return self.dim + (self.ranks > 1)


class Pieces:
    """The values of a block that are known in pieces, and ways to get others.

    New ops go before an op that reads them. They carry no placement and ids of their own
    (``n7.piece0``), so that nothing but the joined value is held against the captured program.
    """

    def __init__(self) -> None:
        self._known: dict[SSAValue, tuple[Cut, list[SSAValue]]] = {}

    def know(self, value: SSAValue, cut: Cut, pieces: Sequence[SSAValue]) -> None:
        """Remember that a value is the join of some pieces."""
        self._known[value] = cut, list(pieces)

    def among(self, values: Mapping[SSAValue, SSAValue]) -> Pieces:
        """Return what is known of other values, given which stand for those of these."""
        other = Pieces()
        for value, (cut, pieces) in self._known.items():
            if value in values and all(piece in values for piece in pieces):
                other.know(values[value], cut, [values[piece] for piece in pieces])
        return other

    def has(self, value: SSAValue, cut: Cut) -> bool:
        """Return whether the pieces of a value are there."""
        return value in self._known and self._known[value][0] == cut

    def of(
        self, value: SSAValue, cut: Cut, number: int, before: Operation, like: FlowOp
    ) -> SSAValue:
        """Return a piece of a value: where it is not there, computed or sliced.

        Args:
            value: dominates ``before``; what ``like`` reads.
            cut: fits its shape.
            number: of the piece.
            before: where new ops go.
            like: of one operand; new ops have its source line, and ids that begin with its own.
        """
        owner = value.owner
        if isinstance(owner, PointwiseOp) and not self.has(value, cut) and self.reaches(value, cut):
            return self.computed(owner, cut, number, before)
        return self._taken(value, cut, number, before, like)

    def _taken(
        self, value: SSAValue, cut: Cut, number: int, before: Operation, like: FlowOp,
        place: int = 0,
    ) -> SSAValue:  # fmt: skip
        """Return a piece of an operand that is there, or a slice."""
        if self.has(value, cut):
            return self._known[value][1][number]
        name = f"{id_of(like)}.operand{place}.part{number}"
        return sliced(value, cut, number, before, loc_of(like), name)

    def reaches(self, value: SSAValue, cut: Cut) -> bool:
        """Return whether a value is known in pieces, or made for one reader of such that are."""
        return any(self.has(own, moved) for own, moved in _computed_of(value, cut))

    def is_computed(self, value: SSAValue, cut: Cut) -> bool:
        """Return whether a value, read once, comes of products whose rows are cut."""
        return any(_is_cut_product(own, moved) for own, moved in _computed_of(value, cut))

    def computed(self, op: FlowOp, cut: Cut, number: int, before: Operation) -> SSAValue:
        """Return a piece of what a product or an op by element gives, computed of pieces."""
        pieces: dict[SSAValue, SSAValue] = {}
        for each, own in self._in_order(op, cut):
            inputs: list[SSAValue] = []
            for place, (value, moved) in enumerate(_operands(each, own)):
                if moved is None:
                    inputs.append(value)
                elif value in pieces:
                    inputs.append(pieces[value])
                else:
                    inputs.append(self._taken(value, moved, number, before, each, place))
            kind = tensor(each.outputs[0])
            shape = own.piece_shape(kind.static_shape())
            piece = type(each).make(inputs, [TensorType.of(shape, kind.dtype)], **each.plain)
            kept = {k: v for k, v in each.attributes.items() if k not in ("id", "sbp")}
            piece.attributes |= {**kept, "id": StringAttr(f"{id_of(each)}.piece{number}")}
            _insert(piece, before)
            pieces[each.outputs[0]] = piece.outputs[0]
        return pieces[op.outputs[0]]

    def _in_order(self, op: FlowOp, cut: Cut) -> list[tuple[FlowOp, Cut]]:
        """Return what is computed in pieces for one of an op, and how it is cut; the op is last."""
        order: list[tuple[FlowOp, Cut]] = []
        waiting = [(op, cut)]
        while waiting:
            each, own = waiting.pop()
            order.append((each, own))
            for value, moved in _operands(each, own):
                owner = value.owner
                if moved is None or not isinstance(owner, FlowOp) or self.has(value, moved):
                    continue
                if (isinstance(each, PointwiseOp) and self.is_computed(value, moved)) or (
                    isinstance(owner, PointwiseOp) and self.reaches(value, moved)
                ):
                    waiting.append((owner, moved))
        return order[::-1]


def _computed_of(value: SSAValue, cut: Cut) -> Iterator[tuple[SSAValue, Cut]]:
    """Yield a value and what ops by element compute it of, nearest first, each as it is cut.

    Of what is read once, and no further than ``NEAR``.
    """
    waiting = deque([(value, cut)])
    for _ in range(NEAR):
        if not waiting:
            return
        own, moved = waiting.popleft()
        yield own, moved
        op = own.owner
        if isinstance(op, PointwiseOp) and own.has_one_use():
            waiting += [(each, by) for each, by in _operands(op, moved) if by is not None]


def _is_cut_product(value: SSAValue, cut: Cut) -> bool:
    op = value.owner
    if not isinstance(op, ContractOp) or not value.has_one_use():
        return False
    return any(moved is not None for _, moved in _operands(op, cut))


def _operands(op: FlowOp, cut: Cut) -> Iterator[tuple[SSAValue, Cut | None]]:
    """Yield the operands of a product or an op by element, and how the cut of its result cuts them.

    None: it is read whole by each piece.
    """
    if isinstance(op, ContractOp):
        operands, result = parse_spec(op.spec)
        letter = result[cut.dim]
        for value, letters in zip(op.inputs, operands, strict=True):
            dim = letters.find(letter)
            yield value, replace(cut, dim=dim) if dim >= 0 else None
        return
    ndim = tensor(op.outputs[0]).ndim
    for value in op.inputs:
        shape = tensor(value).static_shape()
        dim = cut.dim - ndim + len(shape)
        yield value, replace(cut, dim=dim) if dim >= 0 and shape[dim] > 1 else None


def cut_of_product(op: Operation, value: SSAValue, cut: Cut) -> Cut | None:
    """Return how a product is cut by the cut of a value that it reads; None where it is not.

    A value that is read twice, or whose dim the product sums over, leaves it whole.
    """
    if not isinstance(op, ContractOp) or list(op.inputs).count(value) != 1:
        return None
    operands, result = parse_spec(op.spec)
    letter = operands[list(op.inputs).index(value)][cut.dim]
    if letter not in result or sum(letter in letters for letters in operands) != 1:
        return None
    return replace(cut, dim=result.index(letter))


def sliced(
    value: SSAValue, cut: Cut, number: int, before: Operation, loc: str, name: str
) -> SSAValue:
    """Return a piece of a value that is whole: a slice of id ``name``, and views around it."""
    shape = tensor(value).static_shape()
    piece = cut.piece_shape(shape)
    if cut.ranks > 1:
        value = reshaped(value, cut.apart(shape), before, loc, f"{name}.apart")
    whole = tensor(value).static_shape()
    each = whole[cut.inner] // cut.degree
    starts, stops = [0] * len(whole), list(whole)
    starts[cut.inner], stops[cut.inner] = number * each, (number + 1) * each
    cut_shape = (*whole[: cut.inner], each, *whole[cut.inner + 1 :])
    part = SliceOp.make(
        [value],
        [TensorType.of(cut_shape, tensor(value).dtype)],
        loc=loc,
        id=name,
        starts=tuple(starts),
        stops=tuple(stops),
        steps=(1,) * len(whole),
    )
    _insert(part, before)
    return reshaped(part.outputs[0], piece, before, loc, f"{name}.view")


def joined(pieces: Sequence[SSAValue], cut: Cut, like: FlowOp, before: Operation) -> SSAValue:
    """Return the whole of some pieces; what gives it has id and placement of the op it replaces."""
    dtype, whole = tensor(pieces[0]).dtype, tensor(like.outputs[0]).static_shape()
    if cut.ranks > 1:
        shape = cut.apart(tensor(pieces[0]).static_shape())
        name = f"{id_of(like)}.view"
        pieces = [
            reshaped(piece, shape, before, loc_of(like), f"{name}{number}")
            for number, piece in enumerate(pieces)
        ]
        whole = cut.apart(whole)
    join: FlowOp = ConcatOp.make(pieces, [TensorType.of(whole, dtype)], dim=cut.inner)
    _insert(join, before)
    if cut.ranks > 1:
        join.attributes |= {
            "loc": StringAttr(loc_of(like)),
            "id": StringAttr(f"{id_of(like)}.apart"),
        }
        join = ReshapeOp.make(join.outputs, [like.outputs[0].type])
        _insert(join, before)
    join.attributes = dict(like.attributes)
    join.outputs[0].name_hint = like.outputs[0].name_hint
    return join.outputs[0]


def reshaped(
    value: SSAValue, shape: Sequence[int], before: Operation, loc: str, name: str
) -> SSAValue:
    """Return a value in another shape, by an op whose id is ``name``; itself where it has it."""
    kind = tensor(value)
    if kind.static_shape() == tuple(shape):
        return value
    view = ReshapeOp.make([value], [TensorType.of(shape, kind.dtype)], loc=loc, id=name)
    _insert(view, before)
    return view.outputs[0]


def _insert(op: Operation, before: Operation) -> None:
    block = before.parent
    assert isinstance(block, Block)
    block.insert_op_before(op, before)

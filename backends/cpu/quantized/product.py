"""What a kernel of template ``packed`` multiplies: rows of x by panels of integer weights.

The nest's steps say it in full (:mod:`irc.kernels.quantized.loads`); here they are read back: which
load is x, which are the words, scales and zeros, and which dims are rows, columns and summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias

from irc.backends.cpu.loops.nest import Access, Nest, Step
from irc.backends.cpu.matmul.product import Product
from irc.kernels.quantized.loads import LANES, NIBBLES

Form: TypeAlias = Literal["nibbles", "bytes", "dot", "taps"]


class ExactProduct(Product):
    """A product of bytes, summed in i32."""

    @property
    def element(self) -> str:
        """The LLVM type of the accumulator."""
        return "i32"


@dataclass(frozen=True)
class PackedProduct:
    """``tile[m, n] = sum over k of x[m, k] * weight(n, k)`` and what follows.

    Attributes:
        form: weights of 4 or 8 bits that floats multiply, or bytes that bytes do: in panels, or
            one for each channel and tap.
        nest: as it was read, lanes and panels apart.
        product: for what follows: m, n and the outer dims, of which n joins panels and lanes.
        x, w: accesses over the dims of ``nest``.
        scale, zero: of a group of weights (None: not there).
        middle: the literal that is subtracted from each weight.
        place: the dims of ``product.nest`` by those of ``nest`` (panels and lanes both to n).
        lanes: the dims of a panel's columns: one, or groups of channels and the columns of each.
    """

    form: Form
    nest: Nest
    product: Product
    x: Access
    w: Access
    scale: Access | None
    zero: Access | None
    middle: float
    place: dict[int, int]
    lanes: tuple[int, ...]

    @property
    def depth(self) -> int:
        """How many products are summed."""
        return prod(self.nest.extents[d] for d in self.nest.reduced)

    @property
    def groups(self) -> int:
        """How many scales a column has."""
        if self.scale is None:
            return 1
        moving = [d for d in self.nest.reduced if self.scale.strides[d]]
        return prod(self.nest.extents[d] for d in moving)

    @property
    def row_dims(self) -> list[int]:
        """Dims of ``product.nest`` that only x has, or neither, m left out."""
        columns = {self.place[d] for d in range(self.nest.parallel) if self.w.strides[d]}
        own = range(self.product.nest.parallel)
        return [d for d in own if d not in columns and d != self.product.m]

    @property
    def column_dims(self) -> list[int]:
        """Dims of ``product.nest`` that only the weights have, n left out."""
        columns = {self.place[d] for d in range(self.nest.parallel) if self.w.strides[d]}
        return sorted(columns - {self.product.n})

    @property
    def panel(self) -> int:
        """Elements of w from panel to panel inside n."""
        return self._from_panel_to_panel(self.w)

    @property
    def panel_of_x(self) -> int:
        """Elements of x from panel to panel inside n: they are of other groups of channels."""
        return self._from_panel_to_panel(self.x)

    @property
    def groups_of_panel(self) -> tuple[int, int]:
        """How many groups of channels a panel's columns are of, and elements of x between them."""
        first = self.lanes[0]
        return (self.nest.extents[first], step) if (step := self.x.strides[first]) else (1, 0)

    def _from_panel_to_panel(self, access: Access) -> int:
        inside = [d for d, to in self.place.items() if to == self.product.n and d not in self.lanes]
        return access.strides[inside[0]] if inside else 0

    def stride(self, access: Access, dim: int) -> int:
        """Return how far an access moves along a dim of ``product.nest`` other than n."""
        (own,) = (d for d, to in self.place.items() if to == dim)
        return access.strides[own]

    def sums(self) -> list[tuple[int, int]]:
        """Return (size, stride of x) of the summed dims, outermost first, neighbours joined."""
        joined: list[tuple[int, int]] = []
        for d in sorted(self.nest.reduced):
            size, stride = self.nest.extents[d], self.x.strides[d]
            if joined and joined[-1][1] == stride * size:
                joined[-1] = (joined[-1][0] * size, stride)
            else:
                joined.append((size, stride))
        return joined


def read_packed(nest: Nest) -> PackedProduct | None:
    """Read a kernel of template ``packed``; None where its steps are others."""
    by_value = nest.producers()
    contracts = [s for s in nest.steps if s.kind == "contract"]
    if len(contracts) != 1 or len(contracts[0].operands) != 2:
        return None
    step = contracts[0]
    left, right = (_loads(by_value, v) for v in step.operands)
    words = [s for s in right if s.dtype in ("i8", "u8", "i32")]
    if len(left) != 1 or len(words) != 1 or left[0].access is None or words[0].access is None:
        return None
    x, w = left[0].access, words[0].access
    form: Form = "dot" if x.dtype == "u8" else "nibbles" if w.dtype == "i32" else "bytes"
    lanes = _lanes(nest, w, 4 if form == "dot" else 1)
    if form == "dot" and not lanes:
        form, lanes = "taps", _channels(nest, x, w)
    inside = _cone(by_value, step.operands)
    rest = [s for s in nest.steps if s.result not in inside and s is not step]
    if not lanes or any(inside & set(s.operands) for s in rest):
        return None
    weight = by_value[step.operands[1]]
    scale = _load_of(by_value, weight, "mul")
    exact = x.dtype == "u8"
    difference = weight if exact else by_value[weight.operands[0]]
    zero = _load_of(by_value, difference, "sub")
    middle = 0.0 if exact else by_value[difference.operands[1]].literal
    outside = _outside(nest, step, rest, (x, w), lanes)
    if outside is None:
        return None
    return PackedProduct(
        form, nest, outside[0], x, w, scale, zero, float(middle), outside[1], lanes
    )


def _cone(by_value: dict[int, Step], values: Sequence[int]) -> set[int]:
    cone: set[int] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in cone:
            cone.add(value)
            pending += by_value[value].operands
    return cone


def _loads(by_value: dict[int, Step], value: int) -> list[Step]:
    return [by_value[v] for v in sorted(_cone(by_value, [value])) if by_value[v].kind == "load"]


def _load_of(by_value: dict[int, Step], step: Step, fn: str) -> Access | None:
    """The second operand of a function, where it is a load."""
    if step.fn != fn:
        return None
    return by_value[step.operands[1]].access


def _lanes(nest: Nest, w: Access, stride: int) -> tuple[int, ...]:
    """The dims of a panel's columns: one, or groups of them and one inside a group."""
    inner = [d for d in range(nest.parallel) if w.strides[d] == stride]
    for lane in reversed(inner):
        count = nest.extents[lane]
        if count == LANES:
            return (lane,)
        outer = lane - 1
        whole = outer >= 0 and nest.extents[outer] * count == LANES
        if whole and w.strides[outer] == stride * count:
            return outer, lane
    return ()


def _channels(nest: Nest, x: Access, w: Access) -> tuple[int, ...]:
    """The dim of channels that have a weight each, neighbours in image and weight."""
    own = [d for d in range(nest.parallel) if x.strides[d] == w.strides[d] == 1]
    return tuple(own) if len(own) == 1 and nest.reduced else ()


def _outside(
    nest: Nest,
    step: Step,
    rest: Sequence[Step],
    operands: tuple[Access, Access],
    lanes: tuple[int, ...],
) -> tuple[Product, dict[int, int]] | None:
    """Return what follows the product as a product of its own, panels and lanes joined.

    None where what follows walks the groups of a panel's columns in another order.
    """
    (x, w), (*groups, lane) = operands, lanes
    panels, accesses = lanes[0] - 1, [s.access for s in rest if s.access is not None]
    indexed = {s.dim for s in rest if s.kind == "index"}
    for d in groups:
        inner = nest.extents[lane]
        if {d, lane} & indexed or any(a.strides[d] != inner * a.strides[lane] for a in accesses):
            return None
    joins = (
        panels >= 0
        and bool(w.strides[panels])
        and not {panels, lane} & indexed
        and all(a.strides[panels] == LANES * a.strides[lane] for a in accesses)
    )
    joined = {*groups, panels} if joins else {*groups}
    kept = [d for d in range(nest.parallel) if d not in joined]
    place = {d: i for i, d in enumerate(kept)}
    place |= dict.fromkeys(joined, place[lane])
    count = len(kept)
    extents = [nest.extents[d] for d in kept]
    for d in joined:
        extents[place[lane]] *= nest.extents[d]
    depth = prod(nest.extents[d] for d in nest.reduced)

    def over(access: Access) -> Access:
        return replace(access, strides=(*(access.strides[d] for d in kept), 0))

    value = max((s.result for s in nest.steps), default=0) + 1
    anywhere = Access(-1, step.dtype, 1, 0, (*[1] * count, 0))
    steps = [
        Step("load", value, (), step.dtype, access=anywhere),
        replace(step, operands=(value,)),
        *(
            replace(
                s,
                access=None if s.access is None else over(s.access),
                dim=None if s.dim is None else place[s.dim],
            )
            for s in rest
        ),
    ]
    rows = [place[d] for d in kept if x.strides[d] and not w.strides[d]]
    m = max(rows, key=lambda d: (extents[d], d), default=None)
    outer = Nest((*extents, depth), count, tuple(steps))
    kind = ExactProduct if step.dtype == "i32" else Product
    product = kind(
        outer, steps[1], replace(over(x), dtype=step.dtype), over(w), m, place[lane], count
    )
    return product, place


def words(packed: PackedProduct) -> int:
    """Return how many weights an element of w holds."""
    return NIBBLES if packed.form == "nibbles" else 1

"""``task.attention``: softmax over keys as the one op of a kernel of template ``attention``.

Its kernel's space is ``[*lead, G, R, S, P, C]``: batch dims, key heads, query heads that share a
key, rows, parts of the keys, keys of a part; all but the last are tasks. Key ``p * C + c`` takes
part where it is below ``keys``, so the last part may be short. Each operand is a buffer with a
role, and an element of it is ``offset + sum(strides[d] * i[d]) + strides[-1] * feature``: how q, k
and v lie in memory, and which dims a mask lacks, are strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from xdsl.utils.exceptions import VerifyException

from irc.dialects.fields import (
    flag_field,
    integers_field,
    number_field,
    size_field,
    sizes_field,
    texts_field,
)
from irc.dialects.flow import flow_op
from irc.dialects.size import Dim, is_negative, least
from irc.dialects.task import KernelBodyOp, KernelOp
from irc.dialects.task_types import BufferType

INPUTS = ("q", "k", "v", "mask", "start", "y0", "sums0")
OUTPUTS = ("y", "sums")
NEEDED = frozenset({"q", "k", "v", "y"})
DEPTH = frozenset({"q", "k", "dq0", "dk0", "dq", "dk"})
WIDTH = frozenset({"v", "y", "y0", "g", "dv0", "dv"})
PER_KEY = frozenset({"k", "v", "mask", "dk0", "dv0", "dk", "dv"})
FLOATS = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class Place:
    """Where the elements of a role lie.

    Attributes:
        buffer: which kernel argument.
        dtype, size: of that.
        offset: the first element.
        strides: one per dim of the space.
        feature: the stride from one feature to the next.
    """

    buffer: int
    dtype: str
    size: int
    offset: int
    strides: tuple[int, ...]
    feature: int


@dataclass(frozen=True)
class AttentionForm:
    """An attention kernel as plain data.

    Attributes:
        space: ``[*lead, G, R, S, P, C]``.
        keys: how many keys there are in all.
        depth, width: features of q and k, and of v.
        scale: of the scores.
        causal: row s sees key t where ``s + start >= t``.
        places: by role.
    """

    space: tuple[int, ...]
    keys: int
    depth: int
    width: int
    scale: float
    causal: bool
    places: Mapping[str, Place]

    @property
    def lead(self) -> tuple[int, ...]:
        """The batch dims."""
        return self.space[:-5]

    @property
    def groups(self) -> int:
        """Key heads."""
        return self.space[-5]

    @property
    def repeats(self) -> int:
        """Query heads that share a key head."""
        return self.space[-4]

    @property
    def rows(self) -> int:
        """Rows of a head."""
        return self.space[-3]

    @property
    def parts(self) -> int:
        """Parts that the keys are divided into."""
        return self.space[-2]

    @property
    def chunk(self) -> int:
        """Keys of a part; of the last one perhaps fewer."""
        return self.space[-1]


Given: TypeAlias = Mapping[str, tuple[int, Sequence[int], int]]
"""Offset, strides and feature stride by role."""


@flow_op
class KernelAttentionOp(KernelBodyOp):
    """Store ``softmax(q k^T * scale + mask) v`` of every task, and each row's log-sum.

    ``roles`` name the operands: q, k, v, then those that are there of mask, start, y0, sums0, then
    y and perhaps sums. Scores and sums are float32. A bool mask says what takes part, another is
    added. ``start`` is one integer: row s sees key t where ``s + start >= t`` if ``causal``. With
    ``y0`` and ``sums0``, the result over other keys, the softmax is that of all keys together
    (arXiv:1805.02867). Rows that see nothing are zeros with a log-sum of minus infinity. Where the
    keys have several parts, y and sums are those of each part.
    """

    name = "task.attention"
    roles = texts_field()
    offsets = sizes_field()
    strides = sizes_field()
    keys = size_field()
    features = integers_field()
    scale = number_field()
    causal = flag_field()

    @property
    def form(self) -> AttentionForm:
        """The kernel as plain data."""
        return read_form(self)

    def verify_(self) -> None:
        kernel, roles = self.kernel, self.roles
        if kernel.num_parallel != len(kernel.extents) - 1:
            raise VerifyException("the tasks of task.attention are [*lead, G, R, S, P]")
        verify_roles(self, (*INPUTS, *OUTPUTS), NEEDED)
        if ("y0" in roles) != ("sums0" in roles):
            raise VerifyException("y0 and sums0 come together")
        form = self.form
        verify_space(form)
        if form.parts > 1 and ("sums" not in form.places or "y0" in form.places):
            raise VerifyException("several parts give the sums of each, and continue nothing")
        for role, place in form.places.items():
            _verify_dtype(role, place, form)
        verify_places(form, kernel, OUTPUTS)


def read_form(op: KernelBodyOp) -> AttentionForm:
    """Return an attention op, or its derivative, as plain data."""
    kernel, attrs = op.kernel, op.plain
    space = cast("tuple[int, ...]", kernel.extents)  # some perhaps with names
    width = len(space) + 1
    places: dict[str, Place] = {}
    for i, (role, value) in enumerate(zip(attrs["roles"], op.inputs, strict=True)):
        kind = value.type
        assert isinstance(kind, BufferType)
        *strides, feature = attrs["strides"][i * width : (i + 1) * width]
        buffer = kernel.args.index(value)
        size, offset = cast("int", kind.elements), attrs["offsets"][i]
        places[role] = Place(buffer, kind.dtype, size, offset, tuple(strides), feature)
    depth, wide = attrs["features"]
    scale, causal = attrs["scale"], attrs["causal"]
    return AttentionForm(space, attrs["keys"], depth, wide, scale, causal, places)


def verify_roles(op: KernelBodyOp, known: Sequence[str], needed: frozenset[str]) -> None:
    """Check that an op is alone in its kernel and that its attributes fit its roles.

    Raises:
        VerifyException: naming what does not fit.
    """
    kernel, attrs = op.kernel, op.plain
    space, roles = kernel.extents, attrs["roles"]
    if op.outputs or len(list(kernel.body.block.ops)) != 1:
        raise VerifyException(f"{op.name} is alone in its kernel and gives no values")
    if len(space) < 5:
        raise VerifyException(f"the space of {op.name} is [*lead, G, R, S, P, C]")
    order = [role for role in known if role in roles]
    if list(roles) != order or not set(roles) >= needed or len(roles) != len(op.inputs):
        raise VerifyException(f"{op.name} has roles {', '.join(roles)}")
    if not all(value in kernel.args for value in op.inputs):
        raise VerifyException(f"{op.name} takes buffers of its kernel")
    if len(attrs["strides"]) != (len(space) + 1) * len(roles):
        raise VerifyException(f"each role has {len(space) + 1} strides")
    if len(attrs["offsets"]) != len(roles) or len(attrs["features"]) != 2:
        raise VerifyException(f"{op.name} has an offset for each role, and two features")


def verify_space(form: AttentionForm) -> None:
    """Check that the parts are the keys.

    Raises:
        VerifyException: with the numbers.
    """
    parts, chunk, keys = form.parts, form.chunk, form.keys
    if parts == 1 and chunk == keys and 0 not in form.space:
        return
    if not 0 < keys <= parts * chunk or (parts - 1) * chunk >= keys or 0 in form.space:
        raise VerifyException(f"{parts} parts of {chunk} keys are not {keys} keys")


def verify_places(form: AttentionForm, kernel: KernelOp, outputs: Sequence[str]) -> None:
    """Check that each role lies inside its buffer, and depends on what it may.

    Raises:
        VerifyException: naming the role.
    """
    parts, chunk = form.parts, form.chunk
    for role, place in form.places.items():
        if role in PER_KEY and parts > 1 and place.strides[-2] != chunk * place.strides[-1]:
            raise VerifyException(f"the parts of {role} do not lie behind each other")
        if role not in PER_KEY and place.strides[-1]:
            raise VerifyException(f"{role} does not depend on the key")
        if role in outputs and place.buffer < kernel.num_inputs.value.data:
            raise VerifyException(f"{role} is written to an input")
        _verify_reach(role, place, form, outputs)


def _verify_dtype(role: str, place: Place, form: AttentionForm) -> None:
    allowed: Sequence[str] = (form.places["q"].dtype,)
    match role:
        case "mask":
            allowed = ("i1", *FLOATS)
        case "start":
            allowed = ("i64", "i32")
        case "sums" | "sums0":
            allowed = ("f32",)
        case "y" if form.parts > 1:
            allowed = ("f32",)
        case _:
            if form.places["q"].dtype not in FLOATS:
                raise VerifyException(f"task.attention of {form.places['q'].dtype}")
    if place.dtype not in allowed:
        raise VerifyException(f"{role} is {place.dtype}, not {' or '.join(allowed)}")


def _verify_reach(role: str, place: Place, form: AttentionForm, outputs: Sequence[str]) -> None:
    """Prove that no element of a role lies outside its buffer; with names, not at once."""
    if role not in (*PER_KEY, *outputs) and place.strides[-2]:
        raise VerifyException(f"{role} does not depend on the part")
    low, high = reach_of_role(role, place, form)
    room = [least(low), least(place.size + -1 + -1 * high)]
    if any(n is not None and n < 0 for n in room):
        raise VerifyException(f"{role} touches elements {low}..{high} of a buffer of {place.size}")


def reach_of_role(role: str, place: Place, form: AttentionForm) -> tuple[Dim, Dim]:
    """Return the least and the greatest element that a role touches.

    Raises:
        UnboundSizeError: where the sign of a stride depends on a size.
    """
    extents = [*form.space]
    strides = [*place.strides]
    if role in PER_KEY:
        extents[-2:], strides[-2:] = [1, form.keys], [0, place.strides[-1]]
    features = form.depth if role in DEPTH else form.width if role in WIDTH else 1
    low: Dim = place.offset
    high: Dim = place.offset
    for stride, extent in (*zip(strides, extents, strict=True), (place.feature, features)):
        if is_negative(stride):
            low = low + stride * (extent + -1)
        else:
            high = high + stride * (extent + -1)
    return low, high

"""``task.along``: scans, scatters and sorts along one dim, the one op of its kernel.

Its kernel's space is ``[*outer, n]``: all dims but the last are tasks, and a task works along the
last one. Each operand is a buffer with a role, of which a task touches elements
``offset + sum(strides[d] * i[d])``, along the last dim as many as the role has (``counts``): what a
scatter writes into is longer than its index, what top-k gives is shorter than what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.utils.exceptions import VerifyException

from irc.dialects.fields import (
    opt_flag_field,
    opt_numbers_field,
    sizes_field,
    text_field,
    texts_field,
)
from irc.dialects.flow import flow_op
from irc.dialects.size import Dim, is_negative, least
from irc.dialects.task import KernelBodyOp, KernelOp
from irc.dialects.task_types import BufferType
from irc.dialects.types import is_float

SCANS = ("sum", "prod", "max", "min", "logaddexp")
SORTS = ("ascending", "descending")
WRITES = ("set", "sum", "prod", "max", "min")
MODES: Mapping[str, tuple[str, ...]] = {"scan": SCANS, "sort": SORTS, "scatter": WRITES}
INPUTS: Mapping[str, tuple[str, ...]] = {
    "scan": ("x",), "sort": ("x",), "scatter": ("x", "index", "source"),
}  # fmt: skip
OUTPUTS = ("y", "at")
INDICES = ("i64", "i32")


@dataclass(frozen=True)
class Place:
    """Where the elements of a role lie.

    Attributes:
        buffer: which kernel argument.
        dtype, size: of that.
        offset: the first element.
        strides: one per dim of the space.
        count: how many elements a task touches along the last dim.
    """

    buffer: int
    dtype: str
    size: int
    offset: int
    strides: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class AlongForm:
    """A kernel of ``task.along`` as plain data.

    Attributes:
        fn: scan, sort or scatter.
        mode: how it combines, or which way it sorts.
        space: ``[*outer, n]``.
        places: by role.
        exclusive: a scan starts at the neutral element.
        reverse: a scan starts at the end.
        fill: what a scatter without ``x`` writes into.
    """

    fn: str
    mode: str
    space: tuple[int, ...]
    places: Mapping[str, Place]
    exclusive: bool = False
    reverse: bool = False
    fill: float | int = 0

    @property
    def outer(self) -> tuple[int, ...]:
        """The dims of tasks."""
        return self.space[:-1]


@flow_op
class KernelAlongOp(KernelBodyOp):
    """Work along the last dim of the space, a task for each point of the others.

    ``scan``: ``y[i] = mode(x[0], .., x[i])``; with ``exclusive`` without ``x[i]``, with ``reverse``
    from the end. Float32 sums and products go on in float64, half types in float32. ``at`` (of max
    and min) is where the latest such element stands; a NaN stays once it was met.

    ``sort``: the first ``counts`` of ``x`` in order as ``y``, and where they stood as ``at``;
    stable, and NaN is larger than any number.

    ``scatter``: ``y`` is ``x`` (or ``fill``), then ``y[index[i]] mode= source[i]`` in the order of
    i. An index outside ``y`` is a fault, and then nothing is written.
    """

    name = "task.along"
    fn = text_field()
    mode = text_field()
    roles = texts_field()
    offsets = sizes_field()
    strides = sizes_field()
    counts = sizes_field()
    exclusive = opt_flag_field()
    reverse = opt_flag_field()
    fill = opt_numbers_field()

    @property
    def form(self) -> AlongForm:
        """The kernel as plain data."""
        kernel, attrs = self.kernel, self.plain
        ndims = len(kernel.extents)
        places: dict[str, Place] = {}
        for i, (role, value) in enumerate(zip(attrs["roles"], self.inputs, strict=True)):
            kind = value.type
            assert isinstance(kind, BufferType)
            places[role] = Place(
                kernel.position(value),
                kind.dtype,
                cast("int", kind.elements),
                attrs["offsets"][i],
                tuple(attrs["strides"][i * ndims : (i + 1) * ndims]),
                attrs["counts"][i],
            )
        return AlongForm(
            attrs["fn"],
            attrs["mode"],
            cast("tuple[int, ...]", kernel.extents),  # some perhaps with names
            places,
            attrs.get("exclusive", False),
            attrs.get("reverse", False),
            attrs.get("fill", (0,))[0],
        )

    def verify_(self) -> None:
        kernel, attrs = self.kernel, self.plain
        ndims, roles = len(kernel.extents), tuple(attrs["roles"])
        if self.outputs or len(list(kernel.body.block.ops)) != 1:
            raise VerifyException("task.along is alone in its kernel and gives no values")
        if kernel.num_parallel != ndims - 1:
            raise VerifyException("the space of task.along is [*outer | n]")
        if attrs["fn"] not in MODES or attrs["mode"] not in MODES[attrs["fn"]]:
            raise VerifyException(f"task.along has no {attrs['fn']} by {attrs['mode']}")
        order = [role for role in (*INPUTS[attrs["fn"]], *OUTPUTS) if role in roles]
        needed = {"y"} | ({"index", "source"} if attrs["fn"] == "scatter" else {"x"})
        if list(roles) != order or not needed <= set(roles) or len(roles) != len(self.inputs):
            raise VerifyException(f"task.along has roles {', '.join(roles)}")
        if not all(value in kernel.args for value in self.inputs):
            raise VerifyException("task.along takes buffers of its kernel")
        if len(attrs["strides"]) != ndims * len(roles):
            raise VerifyException(f"each role has {ndims} strides")
        if len(attrs["offsets"]) != len(roles) or len(attrs["counts"]) != len(roles):
            raise VerifyException("task.along has an offset and a count for each role")
        _verify_form(self.form, kernel)


def _verify_form(form: AlongForm, kernel: KernelOp) -> None:
    y = form.places["y"]
    for role, place in form.places.items():
        _verify_dtype(role, place, y.dtype)
        if role in OUTPUTS and place.buffer < kernel.num_inputs.value.data:
            raise VerifyException(f"{role} is written to an input")
        extents = (*form.outer, place.count)
        low, high = reach_of_row(place, form)
        room = [least(low), least(place.size + -1 + -1 * high)]
        if 0 not in extents and any(n is not None and n < 0 for n in room):
            raise VerifyException(
                f"{role} touches elements {low}..{high} of a buffer of {place.size}"
            )
    _verify_counts(form)
    if form.mode == "logaddexp" and not is_float(y.dtype):
        raise VerifyException(f"logaddexp of {y.dtype}")
    if form.fn == "scan" and "at" in form.places and form.mode not in ("max", "min"):
        raise VerifyException(f"a scan by {form.mode} has no positions")
    if form.fn == "scan" and "at" in form.places and (form.reverse or form.exclusive):
        raise VerifyException("a scan that gives positions starts at the first element")


def reach_of_row(place: Place, form: AlongForm) -> tuple[Dim, Dim]:
    """Return the least and the greatest element that all tasks touch of a role.

    Raises:
        UnboundSizeError: where the sign of a stride depends on a size.
    """
    low: Dim = place.offset
    high: Dim = place.offset
    for stride, extent in zip(place.strides, (*form.outer, place.count), strict=True):
        if is_negative(stride):
            low = low + stride * (extent + -1)
        else:
            high = high + stride * (extent + -1)
    return low, high


def _verify_dtype(role: str, place: Place, dtype: str) -> None:
    allowed = INDICES if role in ("index", "at") else (dtype,)
    if place.dtype not in allowed:
        raise VerifyException(f"{role} is {place.dtype}, not {' or '.join(allowed)}")


def _verify_counts(form: AlongForm) -> None:
    n, counts = form.space[-1], {role: place.count for role, place in form.places.items()}
    written = {counts[role] for role in OUTPUTS if role in counts}
    match form.fn:
        case "scatter":
            fits = counts["index"] == counts["source"] == n
            fits &= counts.get("x", counts["y"]) == counts["y"]
        case "sort":
            fits = counts["x"] == n and len(written) == 1 and counts["y"] <= n
        case _:
            fits = counts["x"] == n and written == {n}
    if not fits:
        raise VerifyException(f"{form.fn} over {n} elements with counts {counts}")

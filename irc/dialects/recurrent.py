"""``task.recurrent``: a recurrent cell over time, the one op of its kernel.

Its kernel's space is ``[directions, batch, steps, hidden, gates, inputs + hidden]``: the first two
dims are tasks, and a point of the others is a multiplication. Each operand is a buffer with a role.
All but the inputs lie as ONNX has them, or packed as :mod:`irc.ops.recurrent` says; row (t, b) of
the inputs begins at element ``offset + strides[0] * t + strides[1] * b``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.utils.exceptions import VerifyException

from irc.dialects.fields import (
    flag_field,
    size_field,
    sizes_field,
    text_field,
    texts_field,
)
from irc.dialects.flow import flow_op
from irc.dialects.size import Dim, is_negative, least
from irc.dialects.task import KernelBodyOp
from irc.dialects.task_types import BufferType
from irc.ops.recurrent import FUNCTIONS, GATES, SIMPLE, UNIT, depth, padded, rows

WEIGHTS = ("w", "added", "r", "inner")
BYTE_WEIGHTS = ("w_scale", "w_sums", "w_zeros", "r_scale", "r_sums", "r_zeros")
"""What weights of 8 bits have beside them."""
INPUTS = ("x", *WEIGHTS, *BYTE_WEIGHTS, "lengths", "h", "c")
OUTPUTS = ("y", "last", "last_cell")


@dataclass(frozen=True)
class RecurrentForm:
    """A kernel of ``task.recurrent`` as plain data.

    Attributes:
        kind: of loop, see :mod:`irc.ops.recurrent`.
        activations: flow's names: of the gates, of the new value, of the cell.
        backwards: a single direction goes from the end; of two it is the second that does.
        directions, hidden, inputs: always numbers.
        batch, steps: some perhaps with names.
        buffers: which kernel argument has a role.
        offset, strides: of the inputs.
    """

    kind: str
    activations: tuple[str, ...]
    backwards: bool
    directions: int
    batch: Dim
    steps: Dim
    hidden: int
    inputs: int
    buffers: Mapping[str, int]
    offset: Dim
    strides: tuple[Dim, Dim]

    @property
    def gates(self) -> int:
        """Parts of a row of the weights."""
        return GATES[self.kind]

    @property
    def in_bytes(self) -> bool:
        """True where weights are of 8 bits."""
        return "w_scale" in self.buffers

    @property
    def padded(self) -> int:
        """Hidden units, padded."""
        return padded(self.hidden)

    def shape(self, role: str) -> tuple[Dim, ...]:
        """Return the shape of a buffer; not of the inputs."""
        d, p, state = self.directions, self.padded, (self.directions, self.batch, self.hidden)
        shapes: dict[str, tuple[Dim, ...]] = {
            "w": (d, self.gates * p, self.inputs),
            "added": (d, self.gates * p),
            "r": (d, p // UNIT, self.gates, rows(self.kind, self.hidden), UNIT),
            "inner": (d, p),
            **dict.fromkeys(BYTE_WEIGHTS, (d, self.gates * p)),
            "lengths": (self.batch,),
            "y": (self.steps, *state),
        }
        if self.in_bytes:
            shapes["w"] = (d, self.gates * p, depth(self.inputs))
            shapes["r"] = (d, p // UNIT, self.gates, depth(self.hidden), UNIT)
        return shapes.get(role, state)

    def dtype(self, role: str) -> str:
        """Return the dtype of a buffer."""
        if role in ("w", "r") and self.in_bytes:
            return "i8"
        return "i32" if role == "lengths" or role.endswith(("_sums", "_zeros")) else "f32"

    def reach(self) -> tuple[Dim, Dim]:
        """Return the least and the greatest element of the inputs that is read.

        Raises:
            UnboundSizeError: where the sign of a stride depends on a size.
        """
        low = high = self.offset
        for stride, extent in zip(self.strides, (self.steps, self.batch), strict=True):
            if is_negative(stride):
                low = low + stride * (extent + -1)
            else:
                high = high + stride * (extent + -1)
        return low, high + (self.inputs - 1)


@flow_op
class KernelRecurrentOp(KernelBodyOp):
    """A cell over time, its weights packed.

    Roles: ``x`` [steps, batch, inputs]; the packed weights ``w``, ``added``, ``r`` and, of a GRU
    that resets after its product, ``inner``; of an LSTM whose weights are bytes, their scales, sums
    and zero points (``w_scale``, ``w_sums``, ``w_zeros`` and the same of ``r``); perhaps
    ``lengths`` [batch], how many steps each sequence has (at most all; behind them ``y`` is zero);
    perhaps the first states ``h`` and, of an LSTM, ``c`` [directions, batch, hidden]. Written are
    ``y`` [steps, directions, batch, hidden], ``last`` and, of an LSTM, ``last_cell`` [directions,
    batch, hidden].
    """

    name = "task.recurrent"
    kind = text_field()
    activations = texts_field()
    backwards = flag_field()
    roles = texts_field()
    offset = size_field()
    strides = sizes_field()

    @property
    def form(self) -> RecurrentForm:
        """The kernel as plain data."""
        attrs, kernel = self.plain, self.kernel
        directions, batch, steps, hidden, _, both = kernel.extents
        buffers = {
            role: kernel.position(value)
            for role, value in zip(attrs["roles"], self.inputs, strict=True)
        }
        return RecurrentForm(
            attrs["kind"],
            tuple(attrs["activations"]),
            attrs["backwards"],
            cast("int", directions),
            batch,
            steps,
            cast("int", hidden),
            cast("int", both) - cast("int", hidden),
            buffers,
            attrs["offset"],
            attrs["strides"],
        )

    def verify_(self) -> None:
        kernel, attrs = self.kernel, self.plain
        roles, kind = tuple(attrs["roles"]), attrs["kind"]
        if self.outputs or len(list(kernel.body.block.ops)) != 1:
            raise VerifyException("task.recurrent is alone in its kernel and gives no values")
        if kind not in GATES:
            raise VerifyException(f"task.recurrent has no {kind}")
        names, count = tuple(attrs["activations"]), FUNCTIONS[kind]
        if len(names) != count or not set(names) <= set(SIMPLE.values()):
            raise VerifyException(f"{kind} with activations {', '.join(names)}")
        extents = kernel.extents
        if kernel.num_parallel != 2 or len(extents) != 6 or extents[4] != GATES[kind]:
            raise VerifyException(
                "the space of task.recurrent is"
                " [directions, batch | steps, hidden, gates, inputs + hidden]"
            )
        if extents[0] not in (1, 2) or not all(isinstance(extents[d], int) for d in (3, 5)):
            raise VerifyException("task.recurrent has one direction or two, and weights of numbers")
        self._verify_roles(kind, roles)
        if len(attrs["strides"]) != 2:
            raise VerifyException("the inputs of task.recurrent have strides of steps and of rows")
        self._verify_buffers()

    def _verify_roles(self, kind: str, roles: tuple[str, ...]) -> None:
        order = [role for role in (*INPUTS, *OUTPUTS) if role in roles]
        needed = {"x", "w", "added", "r", "y", "last"}
        if kind == "GRU":
            needed.add("inner")
        optional = {"lengths", "h"}
        if kind == "LSTM" and set(roles) & set(BYTE_WEIGHTS):
            needed |= set(BYTE_WEIGHTS)
        if kind == "LSTM":
            needed.add("last_cell")
            optional.add("c")
        if list(roles) != order or not needed <= set(roles) <= needed | optional:
            raise VerifyException(f"{kind} has roles {', '.join(roles)}")
        if len(roles) != len(self.inputs) or not all(v in self.kernel.args for v in self.inputs):
            raise VerifyException("task.recurrent takes a buffer of its kernel for each role")

    def _verify_buffers(self) -> None:
        form, first = self.form, self.kernel.num_inputs.value.data
        for role, value in zip(self.roles, self.inputs, strict=True):
            kind = value.type
            assert isinstance(kind, BufferType)
            if kind.dtype != form.dtype(role):
                raise VerifyException(f"{role} of task.recurrent is {kind.dtype}")
            if (role in OUTPUTS) != (form.buffers[role] >= first):
                raise VerifyException(f"{role} of task.recurrent is no {role}: see num_inputs")
            if role != "x":
                if kind.elements != prod(form.shape(role), start=1):
                    raise VerifyException(f"{role} of task.recurrent has {kind.elements} elements")
                continue
            low, high = form.reach()
            room = [least(low), least(kind.elements + -1 + -1 * high)]
            if any(n is not None and n < 0 for n in room):
                raise VerifyException(
                    f"x touches elements {low}..{high} of a buffer of {kind.elements}"
                )

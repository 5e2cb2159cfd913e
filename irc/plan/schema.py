"""What a plan holds: buffers, kernels, and the actions that every rank runs in this order.

One plan serves all ranks: shapes are those of one rank, and where ranks differ (their slice of a
weight, their position on a mesh axis) the executor works it out from the mesh. ``plan.json`` is
these classes, field by field; a field that has its default is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeAlias

from irc.dialects.items import ALIGNMENT as ALIGNMENT
from irc.dialects.items import ITEM_BYTES
from irc.dialects.placement import AxisPlacement, B, Mesh, Partial, Placement, Split
from irc.plan import json_text
from irc.plan.version import FORMAT as FORMAT
from irc.plan.version import check_format as check_format

Storage: TypeAlias = Literal["arena", "input", "weight", "prepared", "output", "alias"]


@dataclass(frozen=True)
class AxisCut:
    """How one mesh axis holds a tensor, as JSON says it (kind S, B or P)."""

    axis: str
    kind: Literal["S", "B", "P"]
    dim: int = 0
    order: int = 0
    reduction: Literal["sum", "max", "min"] = "sum"


@dataclass(frozen=True)
class Buffer:
    """Memory with a shape.

    Attributes:
        dtype: irc's short name.
        shape: sizes on one rank.
        storage: who owns the memory. ``arena``: the plan, at ``offset``; ``input``, ``weight``: the
            caller; ``prepared``: made from weights once, kept from call to call; ``output``:
            allocated for each call; ``alias``: the buffer ``root``.
        offset: bytes into the arena or into ``root``.
        root: for an alias, the buffer (itself no alias) whose memory it shows.
        strides: in elements; None where row-major without gaps.
        name: the user's name of an argument or result.
        role: parameter, buffer, constant, state, seed, input or output.
        placement: of an argument: which slice of the whole tensor a rank holds.
        source: id of the op that makes the value, ``n40/b3#0`` (path, result index).
        rows: of a weight that is padded: how many rows of the whole tensor are values; 0: all.
    """

    dtype: str
    shape: tuple[int, ...]
    storage: Storage
    offset: int = 0
    root: int | None = None
    strides: tuple[int, ...] | None = None
    name: str = ""
    role: str = ""
    placement: tuple[AxisCut, ...] = ()
    source: str = ""
    rows: int = 0

    @property
    def dense_strides(self) -> tuple[int, ...]:
        """The strides, also where they are the row-major ones."""
        return row_major(self.shape) if self.strides is None else self.strides

    @property
    def is_contiguous(self) -> bool:
        """True where elements lie row-major without gaps."""
        return self.strides is None

    @property
    def num_elements(self) -> int:
        """The product of the sizes."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        if 0 in self.shape:
            return 0
        pairs = zip(self.dense_strides, self.shape, strict=True)
        return (sum(s * (n - 1) for s, n in pairs) + 1) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class KernelArg:
    """What a kernel expects of one buffer."""

    elements: int
    dtype: str


@dataclass(frozen=True)
class Kernel:
    """A kernel: its symbol and arguments, the first ``num_inputs`` read, others written.

    ``in_place`` are pairs of an input and an output (positions) that may be one buffer.
    """

    name: str
    args: tuple[KernelArg, ...]
    num_inputs: int
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Call:
    """One launch: the kernel's index, a buffer for each argument.

    ``sizes`` are the values of the sizes that the kernel takes when it runs, in its own order.
    """

    kernel: int
    args: tuple[int, ...]
    id: str = ""
    loc: str = "unknown"
    seconds: float | None = None
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kernels:
    """A segment: launches that one native call runs in order."""

    kind: Literal["kernels"]
    calls: tuple[Call, ...]
    stream: str = "compute"

    @property
    def seconds(self) -> float | None:
        """Predicted time, where every launch has one."""
        known = [call.seconds for call in self.calls]
        return None if None in known else sum(filter(None, known), 0.0)


@dataclass(frozen=True)
class Library:
    """A flow op that torch runs, or ``comm.local_chunk`` and ``comm.rank_index``."""

    kind: Literal["library"]
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""
    loc: str = "unknown"
    seconds: float | None = None
    stream: str = "compute"

    @property
    def is_in_place(self) -> bool:
        """Whether the one result lies in the first operand's buffer."""
        match self.inputs, self.outputs:
            case (first, *_), (written,):
                return first == written
            case _:
                return False


@dataclass(frozen=True)
class Start:
    """A collective begins; its buffers are its own until the wait.

    ``scratch`` holds packed data: to send, then to receive, each only where the op needs it.
    """

    kind: Literal["start"]
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stream: str
    send: int | None = None
    receive: int | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""
    loc: str = "unknown"
    seconds: float | None = None

    @property
    def source(self) -> int:
        """The buffer whose values travel."""
        source, *_ = self.inputs
        return source

    @property
    def marks(self) -> tuple[int, ...]:
        """The buffers that say which rank each row goes to, of what sends rows."""
        _, *marks = self.inputs
        return tuple(marks)

    @property
    def held(self) -> tuple[int, ...]:
        """The buffers that are in use until the wait."""
        scratch = tuple(b for b in (self.send, self.receive) if b is not None)
        return (*self.inputs, *self.outputs, *scratch)


@dataclass(frozen=True)
class Wait:
    """The collective that action ``start`` began has ended; its output can be read."""

    kind: Literal["wait"]
    start: int
    id: str = ""
    loc: str = "unknown"
    stream: str = "compute"


@dataclass(frozen=True)
class Copy:
    """Copy a buffer: into an output that is a view of something else, or into a state."""

    kind: Literal["copy"]
    source: int
    target: int
    id: str = ""
    loc: str = "unknown"
    seconds: float | None = None
    stream: str = "compute"


Action: TypeAlias = Kernels | Library | Start | Wait | Copy
Step: TypeAlias = Call | Library | Start | Wait | Copy
"""An action, with launches not yet grouped."""


def touched(step: Action | Step, steps: Sequence[Action | Step]) -> tuple[int, ...]:
    """Return the buffers that must be alive at a step; a wait's ``start`` counts in ``steps``."""
    match step:
        case Kernels():
            return tuple(arg for call in step.calls for arg in call.args)
        case Call():
            return step.args
        case Library():
            return (*step.inputs, *step.outputs)
        case Start():
            return step.held
        case Wait():
            start = steps[step.start]
            assert isinstance(start, Start)
            return start.held
        case Copy():
            return (step.source, step.target)


@dataclass(frozen=True)
class Plan:
    """What every rank runs.

    Attributes:
        inputs, weights, outputs: buffers in the order of arguments and results.
        ranges: for each input that is an index, the first and last integer that it may be;
            empty where no input is one.
        arena_bytes: how much a call leases; never below ``arena_lower_bytes``, the most that is
            alive at one time.
        prepared: actions on weights alone (packing, folding): run when the plan is loaded, and
            again when a weight that they read has been written to.
        predicted_s: seconds of one call by the cost model.
        cluster: the machines that it was priced for; empty for the one it was compiled on.
    """

    mesh: str
    backend: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    actions: tuple[Action, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: int
    arena_lower_bytes: int = 0
    ranges: tuple[tuple[int, int] | None, ...] = ()
    prepared: tuple[Action, ...] = ()
    predicted_s: float | None = None
    cluster: str = ""
    format: int = FORMAT

    @cached_property
    def device_mesh(self) -> Mesh:
        """The mesh as an object."""
        return Mesh.parse(self.mesh)

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """The buffers that have a pointer of their own: base 1, 2, ...; base 0 is the arena."""
        own = ("input", "weight", "prepared", "output")
        return tuple(i for i, buffer in enumerate(self.buffers) if buffer.storage in own)

    @cached_property
    def addresses(self) -> tuple[tuple[int, int], ...]:
        """For each buffer, the base that it lies in and its bytes from there."""
        base = {buffer: k for k, buffer in enumerate(self.bases, 1)}
        addresses: list[tuple[int, int]] = []
        for index, buffer in enumerate(self.buffers):
            if buffer.storage == "alias" and buffer.root is not None:
                start = addresses[buffer.root]
                addresses.append((start[0], start[1] + buffer.offset))
            else:
                addresses.append((base.get(index, 0), buffer.offset))
        return tuple(addresses)

    def root(self, index: int) -> int:
        """Return the buffer that owns the memory of a buffer."""
        root = self.buffers[index].root
        return index if root is None else root

    @property
    def prepared_bytes(self) -> int:
        """Bytes that are kept beside the weights."""
        return sum(b.size_bytes for b in self.buffers if b.storage == "prepared")

    def states(self) -> list[int]:
        """Return the weights that a call writes."""
        copied = [a.target for a in self.actions if isinstance(a, Copy)]
        return [i for i in (*copied, *self.updated()) if i in self.weights]

    @cached_property
    def read(self) -> set[int]:
        """The buffers that an action or the caller reads, themselves or a view of them."""
        indices = set(self.outputs)
        for action in (*self.prepared, *self.actions):
            match action:
                case Kernels():
                    for call in action.calls:
                        indices.update(call.args[: self.kernels[call.kernel].num_inputs])
                case Library() | Start():
                    indices.update(action.inputs)
                case Copy():
                    indices.add(action.source)
                case Wait():
                    pass
        return {self.root(index) for index in indices}

    def updated(self) -> list[int]:
        """Return the weights that kernels write where they lie."""
        calls = (call for a in self.actions if isinstance(a, Kernels) for call in a.calls)
        written = (i for call in calls for i in call.args[self.kernels[call.kernel].num_inputs :])
        return [i for i in written if self.buffers[i].storage == "weight"]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense row-major tensor.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def cut(placement: Placement | None) -> tuple[AxisCut, ...]:
    """Write a placement as plan.json has it; replicated is the empty tuple."""
    if placement is None or placement.is_replicated:
        return ()
    cuts: list[AxisCut] = []
    for axis, placed in placement.axes:
        match placed:
            case Split(dim, order):
                cuts.append(AxisCut(axis, "S", dim, order))
            case Partial(reduction):
                cuts.append(AxisCut(axis, "P", reduction=reduction))
            case _:
                cuts.append(AxisCut(axis, "B"))
    return tuple(cuts)


def placement_of(buffer: Buffer) -> Placement:
    """Read a placement back.

    Raises:
        ValueError: where the splits do not make one.
    """
    kinds: dict[str, AxisPlacement] = {}
    for part in buffer.placement:
        placed = {"S": Split(part.dim, part.order), "B": B, "P": Partial(part.reduction)}
        kinds[part.axis] = placed[part.kind]
    return Placement(tuple(kinds.items()))


def to_json(plan: Plan) -> str:
    """Print a plan; equal plans print equally."""
    return json_text.dump({"format": plan.format, **json_text.encode(plan)})


def from_json(text: str | bytes, where: str = "plan.json") -> Plan:
    """Read a plan, strictly; irc.plan.verify says whether it makes sense.

    Raises:
        IrcError: ``plan-version`` or ``plan-corrupt``.
    """
    data = json_text.parse_object(text, where)
    check_format(data.get("format"), where)
    return json_text.decode(Plan, data, where)

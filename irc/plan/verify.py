"""What must hold of a plan before anyone runs it.

A plan comes from a file, and an executor follows its numbers into memory: so every buffer must lie
inside what owns it, kernels must be given as much as they touch, and, replayed over the actions, no
read may find bytes that something else has written since (a *stale* buffer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import cast

from irc.dialects.flow import FusionOp, YieldOp, names_of
from irc.dialects.flow_ops import OP_BY_NAME
from irc.dialects.indexing import ScatterOp
from irc.dialects.types import ITEM_BYTES
from irc.plan.json_text import corrupt
from irc.plan.packing import scratch_sizes
from irc.plan.schema import (
    ALIGNMENT,
    Buffer,
    Call,
    Copy,
    Kernel,
    Kernels,
    Library,
    Plan,
    Start,
    Wait,
    placement_of,
)

LIBRARY_OPS = frozenset(OP_BY_NAME) - names_of(FusionOp, YieldOp) | {
    "comm.local_chunk",
    "comm.rank_index",
}
COLLECTIVES = frozenset(
    {
        "comm.all_reduce",
        "comm.all_gather",
        "comm.reduce_scatter",
        "comm.all_to_all",
        "comm.dispatch_rows",
        "comm.combine_rows",
        "comm.permute",
    }
)
JOINED = ("comm.all_reduce", "comm.all_gather", "comm.reduce_scatter")
"""Collectives that may be in a bucket."""
MAX_ELEMENTS = 1 << 48


def verify_plan(plan: Plan, where: str = "plan.json") -> None:
    """Check everything that the executor relies on.

    Raises:
        IrcError: ``plan-corrupt``, naming the buffer or action.
    """
    try:
        mesh = plan.device_mesh
    except ValueError as error:
        raise corrupt(f"the mesh cannot be read: {error}", where) from None
    for index, buffer in enumerate(plan.buffers):
        if problem := _buffer_problem(plan, index, buffer):
            raise corrupt(f"buffer {index}: {problem}", where)
    if problem := _boundary_problem(plan):
        raise corrupt(problem, where)
    replay = _Replay(plan, dict(mesh.axes), {plan.root(i) for i in (*plan.inputs, *plan.weights)})
    for part, actions in (("prepared action", plan.prepared), ("action", plan.actions)):
        replay.is_preparing = actions is plan.prepared
        for index, action in enumerate(actions):
            try:
                replay.step(index, action)
            except (_ProblemError, IndexError, KeyError, TypeError, ValueError) as problem:
                raise corrupt(f"{part} {index}: {problem}", where) from None
    if problem := replay.unfinished():
        raise corrupt(problem, where)


class _ProblemError(Exception):
    """What is wrong with an action."""


def _buffer_problem(plan: Plan, index: int, buffer: Buffer) -> str | None:
    if buffer.dtype not in ITEM_BYTES:
        return f"unknown dtype {buffer.dtype!r}"
    if any(size < 0 for size in buffer.shape) or buffer.num_elements > MAX_ELEMENTS:
        return f"impossible shape {list(buffer.shape)}"
    if len(buffer.dense_strides) != len(buffer.shape) or any(s < 0 for s in buffer.dense_strides):
        return f"strides {list(buffer.dense_strides)} do not fit shape {list(buffer.shape)}"
    if buffer.offset < 0 or buffer.offset % ITEM_BYTES[buffer.dtype]:
        return f"offset {buffer.offset} is not a place for {buffer.dtype}"
    if buffer.placement:
        try:
            names = placement_of(buffer).names
        except ValueError as error:
            return str(error)
        if names != plan.device_mesh.names:
            return f"placed on axes {names} of a mesh with {plan.device_mesh.names}"
    if buffer.rows and (problem := _rows_problem(plan, buffer)):
        return problem
    if buffer.storage == "alias":
        return _alias_problem(plan, index, buffer)
    if buffer.root is not None or buffer.strides is not None:
        return "only an alias has a root or strides"
    if buffer.storage == "arena":
        if buffer.offset % ALIGNMENT:
            return f"offset {buffer.offset} is not aligned to {ALIGNMENT}"
        if buffer.offset + buffer.size_bytes > plan.arena_bytes:
            return f"ends at {buffer.offset + buffer.size_bytes} of {plan.arena_bytes} arena bytes"
    elif buffer.offset:
        return f"{buffer.storage} memory starts at 0"
    return None


def _rows_problem(plan: Plan, buffer: Buffer) -> str | None:
    if buffer.storage != "weight" or not buffer.shape:
        return f"{buffer.storage} memory of {len(buffer.shape)} dims has no rows that are padding"
    from irc.sharding.padding import is_front  # few plans have any, and their readers are quick

    mesh = plan.device_mesh
    parts = [mesh.size(axis) for axis in placement_of(buffer).split_axes(0)]
    stored = buffer.shape[0] * prod(parts)
    if not 0 < buffer.rows <= stored or not is_front(buffer.rows, stored, parts):
        return f"{buffer.rows} rows are no front of {stored} on {plan.mesh}"
    return None


def _alias_problem(plan: Plan, index: int, buffer: Buffer) -> str | None:
    # An alias follows its root, so that one pass over the buffers resolves all addresses.
    if buffer.root is None or not 0 <= buffer.root < index:
        return f"an alias of buffer {buffer.root}"
    root = plan.buffers[buffer.root]
    if root.storage == "alias":
        return "an alias of an alias"
    end = buffer.offset + buffer.size_bytes
    if end > root.size_bytes:
        return f"shows bytes up to {end} of the {root.size_bytes} of buffer {buffer.root}"
    return None


def _boundary_problem(plan: Plan) -> str | None:
    count = len(plan.buffers)
    for name, indices, storage in (
        ("inputs", plan.inputs, "input"),
        ("weights", plan.weights, "weight"),
        ("outputs", plan.outputs, "output"),
    ):
        for index in indices:
            if not 0 <= index < count:
                return f"{name} name buffer {index} of {count}"
            if plan.buffers[plan.root(index)].storage != storage:
                return f"{name} name buffer {index}, whose memory is no {storage}"
        if storage != "output" and len(set(indices)) != len(indices):
            return f"{name} name a buffer twice"
    if len(plan.ranges) not in (0, len(plan.inputs)):
        return f"{len(plan.ranges)} ranges for {len(plan.inputs)} inputs"
    if any(r is not None and r[0] > r[1] for r in plan.ranges):
        return "a range that is empty"
    if not 0 <= plan.arena_lower_bytes <= plan.arena_bytes:
        return f"an arena of {plan.arena_bytes} bytes below {plan.arena_lower_bytes}"
    owned = {"input": plan.inputs, "weight": plan.weights}
    for index, buffer in enumerate(plan.buffers):
        if buffer.storage in owned and index not in owned[buffer.storage]:
            return f"buffer {index} is an {buffer.storage} that nobody gives"
    return None


@dataclass
class _Replay:
    """Which buffer's bytes are valid, action by action."""

    plan: Plan
    axes: dict[str, int]
    valid: set[int]
    arena: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    busy: dict[int, Start] = field(default_factory=dict[int, Start])
    buckets: dict[str, list[Start]] = field(default_factory=dict[str, list[Start]])
    is_preparing: bool = False

    def step(self, index: int, action: object) -> None:
        match action:
            case Kernels():
                for call in action.calls:
                    self._call(call)
            case Copy() | Start() | Wait() if self.is_preparing:
                raise _ProblemError(f"a {action.kind} is no function of weights")
            case Library():
                if action.op not in LIBRARY_OPS:
                    raise _ProblemError(f"no library op {action.op!r}")
                if action.op.startswith("comm.") and action.attrs["axis"] not in self.axes:
                    raise _ProblemError(f"no mesh axis {action.attrs['axis']!r}")
                self._run(action.inputs, () if self._is_in_place(action) else action.outputs)
            case Copy():
                self._check_copy(action)
                self._run((action.source,), (action.target,))
            case Start():
                self._start(index, action)
            case Wait():
                start = self.busy.pop(action.start, None)
                if start is None:
                    raise _ProblemError(f"waits for action {action.start}, which is not in flight")
                if start.attrs.get("bucket") in self.buckets:
                    raise _ProblemError(f"waits for action {action.start} of an unfilled bucket")
                self.valid.update(self.plan.root(b) for b in start.outputs)
            case _:
                raise _ProblemError("not an action")

    def _is_in_place(self, action: Library) -> bool:
        """True for a scatter that writes into what the caller holds, which it reads."""
        if action.op != ScatterOp.name or len(action.inputs) != 3 or not action.is_in_place:
            return False
        cache, _, _ = action.inputs
        index = _natural(cache)
        return index < len(self.plan.buffers) and self.plan.buffers[index].role == "cache"

    def unfinished(self) -> str | None:
        if self.busy:
            return f"action {min(self.busy)} is never waited for"
        if self.buckets:
            return f"bucket {min(self.buckets)!r} is never full"
        for index in self.plan.outputs:
            if self.plan.root(index) not in self.valid:
                return f"output buffer {index} is never written"
        return None

    def _call(self, call: Call) -> None:
        kernel = self.plan.kernels[_natural(call.kernel)]
        if len(call.args) != len(kernel.args):
            raise _ProblemError(
                f"{kernel.name} takes {len(kernel.args)} buffers, not {len(call.args)}"
            )
        for want, index in zip(kernel.args, call.args, strict=True):
            buffer = self.plan.buffers[_natural(index)]
            if not buffer.is_contiguous:
                raise _ProblemError(f"{kernel.name} is given buffer {index}, which has gaps")
            if (buffer.num_elements, buffer.dtype) != (want.elements, want.dtype):
                raise _ProblemError(
                    f"{kernel.name} takes {want.elements} {want.dtype}, "
                    f"buffer {index} has {buffer.num_elements} {buffer.dtype}"
                )
        count = _natural(kernel.num_inputs)
        self._check_shared(call, kernel)
        inputs = [i for i in call.args[:count] if i not in call.args[count:]]
        # What is updated in place must hold a value before, too.
        self._read([i for i in call.args[:count] if i not in inputs])
        self._run(inputs, call.args[count:])

    def _check_shared(self, call: Call, kernel: Kernel) -> None:
        """An output may be an input only where the kernel says so."""
        for output in range(kernel.num_inputs, len(call.args)):
            for position in range(kernel.num_inputs):
                same = self.plan.root(call.args[position]) == call.args[output]
                allowed = call.args[position] == call.args[output]
                if same and not (allowed and (position, output) in kernel.in_place):
                    raise _ProblemError(f"writes buffer {call.args[output]}, which it reads")

    def _check_copy(self, copy: Copy) -> None:
        source = self.plan.buffers[_natural(copy.source)]
        target = self.plan.buffers[_natural(copy.target)]
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise _ProblemError(
                f"copies {source.shape} {source.dtype} to {target.shape} {target.dtype}"
            )

    def _start(self, index: int, start: Start) -> None:
        count = 3 if start.op in ("comm.dispatch_rows", "comm.combine_rows") else 1
        if start.op not in COLLECTIVES or len(start.inputs) != count or len(start.outputs) != 1:
            raise _ProblemError(f"no collective {start.op!r} of these buffers")
        size = self.axes[start.attrs["axis"]]
        source = self.plan.buffers[_natural(start.source)]
        target = self.plan.buffers[_natural(start.outputs[0])]
        for marks in start.marks:
            chunks = target if start.op == "comm.dispatch_rows" else source
            self._check_marks(self.plan.buffers[_natural(marks)], chunks, size)
        expected = _collective_shape(start, source.shape, size)
        if (expected, source.dtype) != (target.shape, target.dtype):
            raise _ProblemError(f"{start.op} gives {expected}, not {target.shape}")
        scratch = scratch_sizes(start.op, start.attrs, source.shape, target.shape, size)
        for wanted, place in zip(scratch, (start.send, start.receive), strict=True):
            buffer = None if place is None else self.plan.buffers[_natural(place)]
            if (buffer.shape if buffer else None) != wanted or (
                buffer and buffer.dtype != source.dtype
            ):
                raise _ProblemError(f"{start.op} needs scratch {wanted}")
            if buffer and not (buffer.storage == "arena"):
                raise _ProblemError(f"{start.op} has scratch outside the arena")
        scratch_used = [b for b in (start.send, start.receive) if b is not None]
        # A sum may be written over what nothing else reads.
        if start.op == "comm.all_reduce" and start.inputs == start.outputs:
            self._read(start.inputs)
        else:
            self._run(start.inputs, (*start.outputs, *scratch_used))
        # Until the wait nobody may read them.
        self.valid.difference_update(self.plan.root(b) for b in start.outputs)
        self.busy[index] = start
        if "bucket" in start.attrs:
            self._put(start)

    def _put(self, start: Start) -> None:
        """Put a collective into its bucket, which all of one kind begin with the last."""
        name, size = start.attrs["bucket"], _natural(start.attrs["bucket_size"])
        members = self.buckets.setdefault(name, [])
        members.append(start)
        alike = {(
            each.op, each.attrs["axis"], each.attrs.get("fn"), each.attrs["bucket_size"],
            self.plan.buffers[each.outputs[0]].dtype,
        ) for each in members}  # fmt: skip
        if start.op not in JOINED or len(alike) > 1:
            raise _ProblemError(f"bucket {name!r} holds collectives that are not alike")
        if len({each.id for each in members}) < len(members):
            raise _ProblemError(f"bucket {name!r} holds {start.id!r} twice")
        if len(members) == size:
            del self.buckets[name]

    def _check_marks(self, marks: Buffer, rows: Buffer, size: int) -> None:
        """The rows of a chunk for each rank, and one bool for each of them."""
        if rows.shape[:1] != (size,) or len(rows.shape) < 2:
            raise _ProblemError(f"{rows.shape} are no rows for each of {size} ranks")
        if (marks.shape, marks.dtype) != (rows.shape[:2], "i1") or not marks.is_contiguous:
            raise _ProblemError(f"{rows.shape[:2]} rows are marked by {marks.shape} {marks.dtype}")

    def _run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        plan = self.plan
        for index in (*inputs, *outputs):
            if not 0 <= index < len(plan.buffers):
                raise _ProblemError(f"names buffer {index} of {len(plan.buffers)}")
        roots = self._read(inputs)
        for index in outputs:
            self._write(index, roots)

    def _read(self, inputs: Sequence[int]) -> list[int]:
        """Check that buffers hold values; return who owns their memory."""
        roots = [self.plan.root(index) for index in inputs]
        for index, root in zip(inputs, roots, strict=True):
            if root not in self.valid:
                raise _ProblemError(f"reads buffer {index}, which holds no value now")
        return roots

    def _write(self, index: int, reading: Sequence[int]) -> None:
        plan = self.plan
        buffer = plan.buffers[index]
        if buffer.storage == "alias":
            raise _ProblemError(f"writes buffer {index}, which is a view")
        if buffer.storage == "input" and buffer.role != "cache":
            raise _ProblemError(f"writes buffer {index}, which is the caller's")
        if index in reading:
            raise _ProblemError(f"writes buffer {index}, which it reads")
        if self.is_preparing != (buffer.storage == "prepared") and buffer.storage != "arena":
            when = "before the first call" if self.is_preparing else "at every call"
            raise _ProblemError(f"writes buffer {index}, {buffer.storage} memory, {when}")
        if buffer.storage == "arena" and buffer.size_bytes:
            low, high = buffer.offset, buffer.offset + buffer.size_bytes
            in_flight = {plan.root(b) for start in self.busy.values() for b in start.held}
            below = [
                other
                for other, (start, end) in self.arena.items()
                if start < high and low < end and other != index
            ]
            for other in below:
                if other in in_flight or other in reading:
                    raise _ProblemError(
                        f"writes buffer {index} over buffer {other}, which is in use"
                    )
                del self.arena[other]
                self.valid.discard(other)
            if index in in_flight:
                raise _ProblemError(f"writes buffer {index}, which a collective uses")
            self.arena[index] = (low, high)
        self.valid.add(index)


def _natural(index: int) -> int:
    if index < 0:
        raise _ProblemError(f"index {index} is negative")
    return index


def _permute_problem(targets: object, size: int) -> str | None:
    """Say what is wrong with a permute's table; None where each rank receives at most once."""
    if not isinstance(targets, tuple | list):
        return "has no table of targets"
    table = cast("Sequence[object]", targets)
    if len(table) != size or not all(type(t) is int and -1 <= t < size for t in table):
        return f"has no target for each of {size} ranks: {[*table]}"
    reached = [target for target in table if target != -1]
    return "sends twice to one rank" if len(set(reached)) < len(reached) else None


def _collective_shape(start: Start, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the result's shape, by the op's rule; chunks are even."""
    grown = list(shape)
    attrs = start.attrs
    if divided := {"comm.reduce_scatter": "dim", "comm.all_to_all": "split_dim"}.get(start.op):
        if grown[_natural(attrs[divided])] % size:
            raise _ProblemError(f"{start.op} divides {grown[attrs[divided]]} by {size}")
        grown[attrs[divided]] //= size
    if joined := {"comm.all_gather": "dim", "comm.all_to_all": "concat_dim"}.get(start.op):
        grown[_natural(attrs[joined])] *= size
    if start.op in ("comm.all_reduce", "comm.reduce_scatter") and attrs["fn"] not in (
        "sum",
        "max",
        "min",
    ):
        raise _ProblemError(f"{start.op} reduces by sum, max or min, not {attrs['fn']!r}")
    if start.op == "comm.dispatch_rows":
        grown.insert(0, size)
    if start.op == "comm.combine_rows":
        del grown[:1]
    if start.op == "comm.permute" and (problem := _permute_problem(attrs["targets"], size)):
        raise _ProblemError(f"{start.op} {problem}")
    return tuple(grown)

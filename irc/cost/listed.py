"""When a program of level spmd ends: listed on compute and links, which slow each other down.

Before kernels are fused, an op by element costs what its kernel will move: values between two of
them stay in registers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod

from xdsl.ir import Block, Operation, SSAValue

from irc.cluster.device import Device
from irc.cluster.interference import NO_INTERFERENCE, Interference
from irc.cluster.ports import COMPUTE, Ports
from irc.cost.kernels import computed_in, op_work
from irc.cost.roofline import roofline_s
from irc.dialects.comm import CollectiveOp
from irc.dialects.flow import FlowOp, PointwiseOp, ReduceOp, SliceOp, tensor
from irc.dialects.literals import ConstantOp
from irc.dialects.types import ITEM_BYTES, TensorType
from irc.ops.work import VIEWS
from irc.schedule.blocks import tasks_of
from irc.schedule.overlap import Task, list_schedule

BY_ELEMENT = (PointwiseOp, ReduceOp)


def unfused_seconds(
    op: FlowOp,
    device: Device,
    alone: Callable[[FlowOp], float],
    known: dict[Hashable, float] | None = None,
) -> float:
    """Return the seconds that an op adds to the kernels that there will be.

    Args:
        op: level spmd, not fused yet.
        device: that computes it.
        alone: the seconds of an op that is a kernel or a collective by itself.
        known: of ops by element, filled in: steps of a program that repeats have equal ones.
    """
    if isinstance(op, BY_ELEMENT):
        if known is None:
            return _by_element(op, device)
        if (key := _alike(op)) not in known:
            known[key] = _by_element(op, device)
        return known[key]
    if isinstance(op, SliceOp) and _is_sent_strided(op):
        return _kernel_s(device, 2 * _bytes(op.outputs[0]))
    if isinstance(op, ConstantOp) or op.name in VIEWS:
        return 0.0
    return alone(op)


def _alike(op: FlowOp) -> Hashable:
    """Return what the seconds of an op by element depend on."""
    kinds = (*op.operand_types, *op.result_types)
    return op.name, tuple(op.properties.values()), kinds, *around(op)


def around(op: FlowOp) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return which values of an op are one, and which of them only its kernel reads."""
    values = (*op.operands, *op.results)
    apart: dict[SSAValue, int] = {}
    same = tuple(apart.setdefault(value, len(apart)) for value in values)
    return same, tuple(map(_is_inner, values))


def _by_element(op: FlowOp, device: Device) -> float:
    """Return what an op adds to the kernel that it will be in."""
    moved = sum(_bytes(v) for v in dict.fromkeys(op.inputs) if not _is_inner(v))
    if not all(map(_is_inner, op.outputs)):
        return _kernel_s(device, moved + sum(map(_bytes, op.outputs)), op)
    return _kernel_s(device, moved, op) - device.launch_s


def _kernel_s(device: Device, num_bytes: float, op: FlowOp | None = None) -> float:
    work = op_work(device, op) if op is not None else 0.0
    dtype = computed_in(op) if op is not None else "f32"
    return roofline_s(device, flops=work, num_bytes=num_bytes, dtype=dtype)


def _is_inner(value: SSAValue) -> bool:
    """Return whether only a kernel that computes it reads a value."""
    return isinstance(value.owner, BY_ELEMENT) and all(
        isinstance(use.operation, BY_ELEMENT) for use in value.uses
    )


def _is_sent_strided(op: SliceOp) -> bool:
    """Return whether a part is sent that does not lie in one piece: it is copied before."""
    if not any(isinstance(use.operation, CollectiveOp) for use in op.outputs[0].uses):
        return False
    whole = tensor(op.x).static_shape()
    part = tensor(op.outputs[0]).static_shape()
    cut = [dim for dim, (n, m) in enumerate(zip(whole, part, strict=True)) if n != m]
    return bool(cut) and any(size > 1 for size in part[: cut[0]])


def _bytes(value: SSAValue) -> int:
    kind = value.type
    if not isinstance(kind, TensorType):
        return 0
    return prod(kind.static_shape()) * ITEM_BYTES[kind.dtype]


def listed_seconds(
    block: Block,
    seconds: Callable[[Operation], float],
    kinds: Mapping[str, str],
    interference: Interference = NO_INTERFERENCE,
) -> float:
    """Return after how many seconds compute and all links are done with a block.

    Ops are issued as pass ``order`` will (:func:`irc.schedule.overlap.list_schedule`). A link
    carries its collectives one behind the other; two axes of one kind share a port.

    Args:
        block: with its terminator.
        seconds: of each op alone.
        kinds: what a collective over a mesh axis uses: ``link`` or ``nic``.
        interference: how much compute and links slow each other down.
    """
    tasks = tasks_of(block, seconds)
    return _Streams(tasks, kinds, interference).end(list_schedule(tasks))


class _Streams:
    def __init__(
        self, tasks: Sequence[Task], kinds: Mapping[str, str], interference: Interference
    ) -> None:
        self._tasks, self._kinds, self._ports = tasks, kinds, Ports(interference)
        self._links: dict[str, deque[list[float]]] = {}
        self._ended: set[int] = set()
        self._now = 0.0

    def end(self, order: Sequence[int]) -> float:
        for position in order:
            task = self._tasks[position]
            if task.axis is not None:
                waiting = self._links.setdefault(task.axis, deque())
                waiting.append([float(position), task.seconds])
            elif task.waits_for is None:
                left = task.seconds
                while left > 0.0:
                    left -= self._pass(left)
            elif task.waits_for >= 0:
                while task.waits_for not in self._ended:
                    self._pass(0.0)
        while any(self._links.values()):
            self._pass(0.0)
        return self._now

    def _pass(self, compute_s: float) -> float:
        """Go on to when compute or a link is next done, and return how much compute that was."""
        heads = {axis: waiting[0] for axis, waiting in self._links.items() if waiting}
        running = Counter(self._kinds.get(axis, "link") for axis in heads)
        rates = self._ports.rates(running | (Counter({COMPUTE: 1}) if compute_s else Counter()))
        rate = {axis: rates[self._kinds.get(axis, "link")] for axis in heads}
        spans = [head[1] / rate[axis] for axis, head in heads.items()]
        if compute_s:
            spans.append(compute_s / rates["compute"])
        span = min(spans)
        for axis, head in heads.items():
            head[1] -= span * rate[axis]
            if head[1] <= 1e-12 * span:
                self._ended.add(int(head[0]))
                self._links[axis].popleft()
        self._now += span
        done = span * rates["compute"] if compute_s else 0.0
        return compute_s if done >= (1 - 1e-12) * compute_s else done

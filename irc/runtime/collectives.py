"""Collectives of a plan on torch.distributed: started asynchronously, waited for later.

A library moves equal contiguous chunks along the first dim. Other dims go through the scratch
buffers that the plan has for them: packed before, unpacked after the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias
from weakref import ref

import torch
import torch.distributed as dist

from irc.cost.collectives import OWN_MESSAGE_BYTES
from irc.dialects.placement import Mesh
from irc.plan.schema import Start
from irc.runtime.bucket import Bucket, Prepared
from irc.runtime.direct import all_gather, all_reduce, all_to_all, reduce_scatter
from irc.runtime.message import Message
from irc.runtime.network_threads import defer_network_threads

_library: Any = dist
"""torch's collectives, whose types are unknown in part."""

Finish: TypeAlias = Callable[[], None]
"""Waits for a collective and unpacks its result."""


@dataclass(frozen=True)
class Operands:
    """The tensors of one collective; scratch is None where none is needed.

    ``marks`` are the rows that an exchange of rows sends, ``coming`` those that come.
    """

    source: torch.Tensor
    target: torch.Tensor
    send: torch.Tensor | None = None
    receive: torch.Tensor | None = None
    marks: torch.Tensor | None = None
    coming: torch.Tensor | None = None


class Communicator(Protocol):
    """Starts collectives for one rank."""

    def start(self, action: Start, operands: Operands) -> Finish:
        """Begin; the caller keeps the operands alive and calls the result once."""
        ...


class NoPeers:
    """The communicator of a mesh of one rank: the value is there already."""

    def start(self, action: Start, operands: Operands) -> Finish:
        """Copy."""
        operands.target.copy_(operands.source.reshape(operands.target.shape))
        return _nothing


def _nothing() -> None: ...


@dataclass
class TorchCommunicator:
    """Collectives over process groups, one per mesh axis, made in the same order on all ranks.

    Build it with :meth:`of` after ``init_process_group``, on every rank. The groups are torch's,
    which lets go of them when the processes part: a reference of a compiled function's own would
    keep a group's threads, and one that wants the interpreter when it has ended aborts the process
    (pytorch issue 190489).

    Attributes:
        groups: by axis, the group of this rank and its size.
        before: what has to end before the next collective begins, once: a comparison under way.
        counted: makes a wait one whose duration is counted (:class:`irc.runtime.pace.Stopwatch`).
    """

    groups: Mapping[str, tuple[Callable[[], Any], int]]
    before: Callable[[], object] | None = None
    counted: Callable[[Callable[[], object]], Finish] | None = None
    _buckets: dict[str, Bucket] = field(default_factory=dict[str, Bucket])

    @staticmethod
    def of_parts(
        mesh: Mesh, places: Sequence[Sequence[int]], rank: int
    ) -> TorchCommunicator | None:
        """Make the groups of several meshes that are alike; every process calls it.

        Args:
            mesh: of each.
            places: the processes of each, in the order of the mesh.
            rank: of this process.

        Returns:
            The groups of the mesh that this process is in; None for meshes of one rank.
        """
        if len(places) == 1:
            return TorchCommunicator.of(mesh, rank)
        groups: dict[str, tuple[Callable[[], Any], int]] = {}
        for axis, size in mesh.axes:
            if size == 1:
                groups[axis] = (_nothing, 1)
                continue
            for processes in places:
                for own in mesh.groups(axis):
                    ranks = [processes[i] for i in own]
                    group = _library.new_group(ranks)
                    if rank in ranks:
                        groups[axis] = (ref(group), size)
        defer_network_threads()
        return TorchCommunicator(groups) if mesh.num_ranks > 1 else None

    @staticmethod
    def of(mesh: Mesh, rank: int) -> TorchCommunicator:
        """Make the groups of a mesh that covers all processes."""
        groups: dict[str, tuple[Callable[[], Any], int]] = {}
        for axis, size in mesh.axes:
            if size == 1:
                groups[axis] = (_nothing, 1)
                continue
            if size == mesh.num_ranks:
                groups[axis] = (ref(dist.group.WORLD), size)
                continue
            for ranks in mesh.groups(axis):
                group = _library.new_group(ranks)
                if rank in ranks:
                    groups[axis] = (ref(group), size)
        defer_network_threads()
        return TorchCommunicator(groups)

    def start(self, action: Start, operands: Operands) -> Finish:
        """Pack if needed, start, and return what waits and unpacks."""
        if self.before is not None:
            self.end_before()
        group, size = self.groups[action.attrs["axis"]]
        if size == 1:
            return NoPeers().start(action, operands)
        if "bucket" in action.attrs:
            finish = self._start_in_bucket(action, operands, group(), size)
        else:
            finish = STARTS[action.op](group(), size, action.attrs, operands)
        return finish if self.counted is None else self.counted(finish)

    def _start_in_bucket(self, action: Start, operands: Operands, group: Any, size: int) -> Finish:
        name = action.attrs["bucket"]
        bucket = self._buckets.get(name)
        if bucket is None or bucket.has(action):
            bucket = self._buckets[name] = Bucket(group, action.attrs["bucket_size"])
        finish = bucket.add(action, PREPARED[action.op](size, action.attrs, operands))
        if bucket.is_begun:
            del self._buckets[name]
        return finish

    def end_before(self) -> None:
        """Wait for what has to end before a collective begins.

        Raises:
            IrcError: what that ends with.
        """
        before, self.before = self.before, None
        if before is not None:
            (before if self.counted is None else self.counted(before))()


def _all_reduce(_size: int, attrs: Mapping[str, Any], operands: Operands) -> Prepared:
    if operands.target.data_ptr() != operands.source.data_ptr():
        operands.target.copy_(operands.source)
    begin = partial(all_reduce, operands.target, attrs["fn"])
    message = Message("all_reduce", operands.target, operands.target, attrs["fn"])
    return Prepared(begin, message, is_apart=_is_apart(operands.target))


def _all_gather(_size: int, attrs: Mapping[str, Any], operands: Operands) -> Prepared:
    landing = operands.target if operands.receive is None else operands.receive
    own, every = _bytes(operands.source), _bytes(landing)
    unpacks = None
    if operands.receive is not None:
        unpacks = partial(unpack, operands.target, operands.receive, attrs["dim"])
    message = Message("all_gather", own, every)
    return Prepared(partial(all_gather, every, own), message, unpacks, _is_apart(landing))


def _reduce_scatter(size: int, attrs: Mapping[str, Any], operands: Operands) -> Prepared:
    source = _packed(operands, attrs["dim"], size)
    own, part = source.reshape(-1), operands.target.view(-1)
    message = Message("reduce_scatter", own, part, attrs["fn"])
    begin = partial(reduce_scatter, part, own, attrs["fn"])
    return Prepared(begin, message, is_apart=_is_apart(source))


def _is_apart(full: torch.Tensor) -> bool:
    return full.device.type == "cpu" and full.nbytes > OWN_MESSAGE_BYTES


PREPARED: Mapping[str, Callable[[int, Mapping[str, Any], Operands], Prepared]] = {
    "comm.all_reduce": _all_reduce,
    "comm.all_gather": _all_gather,
    "comm.reduce_scatter": _reduce_scatter,
}
"""Collectives that may be in a bucket."""


def _alone(op: str) -> Callable[[Any, int, Mapping[str, Any], Operands], Finish]:
    """Return what begins such a collective by itself."""

    def start(group: Any, size: int, attrs: Mapping[str, Any], operands: Operands) -> Finish:
        prepared = PREPARED[op](size, attrs, operands)
        work = prepared.begin(group=group, async_op=True)
        return work.wait if prepared.unpack is None else Unpacking(work, prepared.unpack)

    return start


def _all_to_all(group: Any, size: int, attrs: Mapping[str, Any], operands: Operands) -> Finish:
    source = _packed(operands, attrs["split_dim"], size)
    landing = operands.target if operands.receive is None else operands.receive
    work = all_to_all(_bytes(landing), _bytes(source), group=group, async_op=True)
    return _unpacking(work, operands, attrs["concat_dim"])


def _dispatch_rows(group: Any, size: int, _attrs: Mapping[str, Any], operands: Operands) -> Finish:
    """Send each rank the rows that are marked for it, and put what comes in its place."""
    marks = operands.marks
    assert marks is not None
    rows = marks.shape[1]
    source = operands.source.reshape(rows, -1)
    finish, landing, coming = _send_rows(group, source, marks.nonzero()[:, 1], operands)
    target = operands.target.view(size * rows, -1)
    places = coming.reshape(-1).nonzero().reshape(-1)
    target.zero_()  # while the rows travel

    def unpacked() -> None:
        finish()
        target[places] = landing

    return unpacked


def _combine_rows(group: Any, size: int, _attrs: Mapping[str, Any], operands: Operands) -> Finish:
    """Send each rank the rows that are marked for it, and add what comes, rank by rank."""
    marks = operands.marks
    assert marks is not None
    rows = marks.shape[1]
    source = operands.source.reshape(size * rows, -1)
    finish, landing, coming = _send_rows(group, source, marks.reshape(-1).nonzero()[:, 0], operands)
    target = operands.target.view(rows, -1)
    arriving: Any = landing  # torch's stub does not type all of split
    parts = arriving.split(_counts(coming))
    target.zero_()  # while the rows travel

    def added() -> None:
        finish()
        for places, part in zip(coming, parts, strict=True):
            target.index_add_(0, places.nonzero()[:, 0], part)

    return added


def _counts(marks: torch.Tensor) -> list[int]:
    """Return how many rows are marked for each rank, or by each."""
    sums: Any = marks.sum(1)  # torch's stub does not type what tolist gives
    return sums.tolist()


def _send_rows(
    group: Any, source: torch.Tensor, places: torch.Tensor, operands: Operands
) -> tuple[Finish, torch.Tensor, torch.Tensor]:
    """Start to send rows; each rank knows what comes, so that nothing is waited for here.

    Args:
        group: the ranks.
        source: rows, [count, width].
        places: which of them, receiver by receiver.
        operands: marks and scratch.

    Returns:
        What waits; where the rows arrive, close together; which come.
    """
    marks, coming, send, receive = operands.marks, operands.coming, operands.send, operands.receive
    assert marks is not None
    assert coming is not None
    assert send is not None
    assert receive is not None
    arriving = _counts(coming)
    packed = send.view(marks.numel(), -1)[: len(places)]
    landing = receive.view(marks.numel(), -1)[: sum(arriving)]
    torch.index_select(source, 0, places, out=packed)
    row_bytes = source.shape[1] * source.element_size()
    work = all_to_all(
        _bytes(landing),
        _bytes(packed),
        group=group,
        coming=[row_bytes * count for count in arriving],
        going=[row_bytes * count for count in _counts(marks)],
        async_op=True,
    )
    return work.wait, landing, coming


def _permute(group: Any, size: int, attrs: Mapping[str, Any], operands: Operands) -> Finish:
    """Send to one rank and receive from one, at the same time."""
    here, targets = dist.get_rank(group), [int(target) for target in attrs["targets"]]
    to = targets[here]
    source = targets.index(here) if here in targets else -1
    if to == here:
        operands.target.copy_(operands.source)
        return _nothing
    if source == -1:
        operands.target.zero_()

    def peer(rank: int) -> int:
        return rank if group is None else dist.get_global_rank(group, rank)

    moves: list[Any] = []
    if to != -1:
        moves.append(dist.P2POp(dist.isend, _bytes(operands.source), peer(to), group))
    if source != -1:
        moves.append(dist.P2POp(dist.irecv, _bytes(operands.target), peer(source), group))
    started: list[Any] = dist.batch_isend_irecv(moves) if moves else []

    def finish() -> None:
        for work in started:
            work.wait()

    return finish


STARTS: Mapping[str, Callable[[Any, int, Mapping[str, Any], Operands], Finish]] = {
    **{op: _alone(op) for op in PREPARED},
    "comm.all_to_all": _all_to_all,
    "comm.dispatch_rows": _dispatch_rows,
    "comm.combine_rows": _combine_rows,
    "comm.permute": _permute,
}


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # What only moves, moves as bytes: gloo knows few dtypes.
    return tensor.reshape(-1).view(torch.uint8)


def _packed(operands: Operands, dim: int, size: int) -> torch.Tensor:
    """Return the source with its chunks along ``dim`` one after another."""
    if operands.send is None:
        return operands.source
    pack(operands.send, operands.source, dim, size)
    return operands.send


@dataclass(frozen=True)
class Unpacking:
    """Waits for a collective and joins what it received along a dim.

    Attributes:
        work: torch's, under way.
    """

    work: Any
    unpack: Callable[[], None]

    def __call__(self) -> None:
        self.work.wait()
        self.unpack()


def _unpacking(work: Any, operands: Operands, dim: int) -> Finish:
    if operands.receive is None:
        return work.wait
    return Unpacking(work, partial(unpack, operands.target, operands.receive, dim))


def pack(send: torch.Tensor, source: torch.Tensor, dim: int, size: int) -> None:
    """Copy chunk r of ``source`` along ``dim`` to ``send[r]``."""
    shape: Sequence[int] = source.shape
    split = source.reshape(*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :])
    send.copy_(split.movedim(dim, 0))


def unpack(target: torch.Tensor, receive: torch.Tensor, dim: int) -> None:
    """Join ``receive[0], receive[1], ...`` along ``dim``."""
    size, *chunk = receive.shape
    split = target.view(*chunk[:dim], size, *chunk[dim:])
    split.copy_(receive.movedim(0, dim))

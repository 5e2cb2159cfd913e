"""Collectives among the processes of a host: each rank sends to every other at once.

gloo's own take p - 1 steps around a ring, one behind the other, each step a switch to another
process; its reduce-scatter is an all-reduce of a copy. Few processes of one machine are all
neighbours: a message to each peer moves no more bytes and is one step (the *direct* algorithms of
Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication Operations in MPICH,
section 3). On two cores a gather of 1 MB takes 0.6 of gloo's time among two processes and 0.4 among
four, a reduce-scatter of 3 MB 0.5 and 0.3, an all-reduce of 64 KB 0.7.

What is large is not sent: each rank reads what it gets, or adds it up, from memory that ranks
share (:mod:`irc.runtime.shared_parts`); on x86-64 nothing is sent but parts of unequal sizes. On
two cores sums of 4 KB and of 4 MB among two processes take 0.4 of the time that messages and gloo
take, a sum of 1 MB among four 0.6.

What is not for it (other libraries, GPUs, many ranks, long all-reduces of many) goes to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import accumulate, count
from threading import Lock, Thread
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from irc.cluster.links import DIRECT_RANKS, DIRECT_SUM_BYTES, SHARED_SUM_BYTES
from irc.cost.collectives import SHARED_BYTES
from irc.errors import IrcError
from irc.runtime.shared_parts import TAG, Delivery, SharedParts, shared_parts

REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
NOT_REDUCED = (torch.int16,)
"""Dtypes that gloo does not reduce."""
_JOINS = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}

_library: Any = dist
"""torch's collectives, whose types are unknown in part."""
# torch 2.13 renamed both; the old names warn there, the new ones are missing before.
_gather = getattr(_library, "all_gather_single", None) or _library.all_gather_into_tensor
_scatter = getattr(_library, "reduce_scatter_single", None) or _library.reduce_scatter_tensor


class Exchange:
    """Messages under way and what is done once all are there: a work, as torch calls it.

    Args:
        works: torch's, one a message.
        then: done by the first that waits.
    """

    def __init__(self, works: Sequence[Any], then: Callable[[], object] | None = None) -> None:
        self._works, self._then = works, then
        self._lock = Lock()
        self._error: BaseException | None = None

    def wait(self) -> bool:
        """Wait for all messages; any thread may, and as often as it likes.

        Raises:
            RuntimeError: of the library, where a peer is lost: at each wait.
        """
        with self._lock:
            # A second wait for a message of gloo would wait for another message.
            works, self._works = self._works, ()
            then, self._then = self._then, None
            try:
                for work in works:
                    work.wait()
                if then is not None:
                    then()
            except BaseException as error:
                self._error = error
            if self._error is not None:
                raise self._error
        return True

    def get_future(self) -> Future[None]:
        """Return what is done once all messages are there; a thread of its own waits for them."""
        ended: Future[None] = Future()

        def await_end() -> None:
            try:
                # The caller may be in that mode, outside of which nobody writes to its tensors.
                with torch.inference_mode():
                    self.wait()
            except BaseException as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        Thread(target=await_end, name="irc-exchange", daemon=True).start()
        return ended


class _Messages:
    """Messages of one collective, between a rank and all others of a group.

    They are kept until they have arrived, also where a call ends in an error and nobody waits for
    them: gloo reads nothing more from a peer once it comes upon a message whose receiver is gone.

    Args:
        works: torch's.
        group: of processes.
    """

    def __init__(self, works: Sequence[Any], group: Any) -> None:
        self._works, self._number = works, next(_numbers)
        self._is_full = len(works) == 2 * (group.size() - 1)
        self._under_way = _under_way.setdefault(group, {})
        self._under_way[self._number] = works

    def wait(self) -> None:
        """Wait for all; to be called once."""
        for work in self._works:
            work.wait()
        # Between two ranks they keep their order: what began before has arrived as well, but
        # nothing is known of peers that send or receive nothing here.
        before = [n for n in list(self._under_way) if n < self._number] if self._is_full else []
        for number in (*before, self._number):
            self._under_way.pop(number, None)


class _Taken:
    """What is taken of peers once their messages say where it lies.

    Args:
        delivery: under way.
        group: of processes.
    """

    def __init__(self, delivery: Delivery, group: Any) -> None:
        self._messages = _Messages(delivery.works, group) if delivery.works else None
        self._delivery = delivery

    def wait(self) -> None:
        """Wait for what says where it lies, and take; to be called once."""
        if self._messages is not None:
            self._messages.wait()
        self._delivery.take()


_numbers = count()
_under_way: WeakKeyDictionary[Any, dict[int, Sequence[Any]]] = WeakKeyDictionary()
"""By group, messages that have perhaps not arrived, in the order in which they began."""


def is_direct(group: Any, tensor: torch.Tensor) -> bool:
    """Return whether the ranks of a group send such tensors to each other by themselves.

    It is the same on all ranks of a group.

    Args:
        group: of processes, as torch has it.
        tensor: what a rank sends or receives.
    """
    if tensor.device.type != "cpu" or not 1 < group.size() <= DIRECT_RANKS:
        return False
    gloo = getattr(dist, "ProcessGroupGloo", None)
    # A wrapper of torch's (TORCH_DISTRIBUTED_DEBUG=DETAIL) compares what ranks ask a library for.
    return gloo is not None and isinstance(group._get_backend(tensor.device), gloo)


def all_gather(
    target: torch.Tensor, source: torch.Tensor, *, group: Any, async_op: bool = False
) -> Any:
    """Gather what each rank has, one after another.

    Args:
        target: contiguous, [ranks * n].
        source: contiguous, [n]; kept until the end, as the target is.
        group: of processes.
        async_op: the result is waited for by the caller.

    Returns:
        A work to wait for; of no use without ``async_op``.
    """
    if not is_direct(group, source):
        return _gather(target, source, group=group, async_op=async_op)
    if (shared := _shared(group, target.nbytes, SHARED_BYTES)) is not None:
        return _begun(_gathered(shared, [target], [source], group), async_op)
    rows = target.view(group.size(), -1)
    rows[group.rank()].copy_(source)
    return _begun(Exchange([_sent_to_all(rows, source, group)]), async_op)


def gather_together(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], *, group: Any
) -> Exchange | None:
    """Begin gathers with one message to each peer; None where ranks share no memory for them.

    It is the same on all ranks of a group. The first that is large enough waits for all of them.

    Args:
        targets: as of :func:`all_gather`, one for each gather.
        sources: as of it, one for each.
        group: of processes.
    """
    if not is_direct(group, sources[0]):
        return None

    shared = _shared(group, sum(target.nbytes for target in targets), SHARED_BYTES)
    return None if shared is None else _gathered(shared, targets, sources, group)


def _gathered(
    shared: SharedParts,
    targets: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    group: Any,
) -> Exchange:
    """Begin gathers of what ranks read from memory that they share."""
    every = [target.view(group.size(), -1) for target in targets]

    def take(packed: Sequence[torch.Tensor]) -> None:
        start = 0
        for rows in every:
            num_bytes = rows[0].nbytes
            for row, own in zip(rows, packed, strict=True):
                row.view(torch.uint8).copy_(own[start : start + num_bytes])
            start += num_bytes

    return Exchange([_Taken(shared.begin(group, sources, take), group)])


def all_reduce(tensor: torch.Tensor, fn: str, *, group: Any, async_op: bool = False) -> Any:
    """Reduce a contiguous tensor in place, over all ranks and to the same number on each.

    Args:
        tensor: of every rank.
        fn: ``sum``, ``max`` or ``min``.
        group: of processes.
        async_op: as of :func:`all_gather`.

    Raises:
        IrcError: ``op-unsupported`` for a dtype that gloo does not reduce.
    """
    op = _reduction(fn, tensor)
    if not is_direct(group, tensor):
        return _library.all_reduce(tensor, op=op, group=group, async_op=async_op)
    own, peers = tensor.view(-1), group.size() - 1
    is_long = peers > 1 and peers * tensor.nbytes > SHARED_SUM_BYTES
    shared = None if is_long else _shared(group, tensor.nbytes, DIRECT_SUM_BYTES)
    if shared is not None:

        def take(packed: Sequence[torch.Tensor]) -> None:
            _reduce_rows([row.view(own.dtype) for row in packed], own, fn)

        return _begun(Exchange([_Taken(shared.begin(group, [own], take), group)]), async_op)
    if tensor.nbytes > DIRECT_SUM_BYTES:
        return _library.all_reduce(tensor, op=op, group=group, async_op=async_op)
    rows = own.new_empty(group.size(), own.numel())
    rows[group.rank()].copy_(own)
    then = partial(_reduce_rows, list(rows), own, fn)
    return _begun(Exchange([_sent_to_all(rows, own, group)], then), async_op)


def reduce_scatter(
    target: torch.Tensor, source: torch.Tensor, fn: str, *, group: Any, async_op: bool = False
) -> Any:
    """Reduce what all ranks have, of which each gets its part.

    Args:
        target: contiguous, [n].
        source: contiguous, [ranks * n].
        fn: ``sum``, ``max`` or ``min``.
        group: of processes.
        async_op: as of :func:`all_gather`.

    Raises:
        IrcError: ``op-unsupported`` for a dtype that gloo does not reduce.
    """
    op = _reduction(fn, source)
    if not is_direct(group, source):
        return _scatter(target, source, op=op, group=group, async_op=async_op)
    if (shared := _shared(group, source.nbytes, SHARED_BYTES)) is not None:
        here, length = group.rank(), target.numel()

        def take(packed: Sequence[torch.Tensor]) -> None:
            rows = [row.view(target.dtype)[here * length :][:length] for row in packed]
            _reduce_rows(rows, target, fn)

        return _begun(Exchange([_Taken(shared.begin(group, [source], take), group)]), async_op)
    landing = torch.empty_like(source)
    comes, goes = (_parts(each, None, group.size()) for each in (landing, source))
    sent = _exchanged(comes, goes, group)
    return _begun(Exchange([sent], partial(_reduce_rows, comes, target, fn)), async_op)


def all_to_all(
    target: torch.Tensor,
    source: torch.Tensor,
    *,
    group: Any,
    coming: Sequence[int] | None = None,
    going: Sequence[int] | None = None,
    async_op: bool = False,
) -> Any:
    """Send each rank its part of a tensor, and put what comes one after another.

    Args:
        target: contiguous, one dimension.
        source: contiguous, one dimension, of the target's dtype; kept until the end.
        group: of processes.
        coming: elements from each rank; by default as many from each.
        going: elements to each rank, of which that rank's ``coming`` says the same.
        async_op: as of :func:`all_gather`.
    """
    if not is_direct(group, source):
        return _library.all_to_all_single(
            target, source, coming, going, group=group, async_op=async_op
        )
    if coming is going is None and (shared := _shared(group, source.nbytes, SHARED_BYTES)):
        rows, here = target.view(group.size(), -1), group.rank()
        length = rows.shape[1]

        def take(packed: Sequence[torch.Tensor]) -> None:
            for row, its in zip(rows, packed, strict=True):
                row.copy_(its.view(target.dtype)[here * length :][:length])

        return _begun(Exchange([_Taken(shared.begin(group, [source], take), group)]), async_op)
    comes = _parts(target, coming, group.size())
    goes = _parts(source, going, group.size())
    return _begun(Exchange([_exchanged(comes, goes, group)]), async_op)


def _shared(group: Any, num_bytes: int, least: int) -> SharedParts | None:
    """Return what ranks share for collectives of a size; None: messages carry them.

    Args:
        group: of processes that send to each other by themselves.
        num_bytes: of what a rank holds in full, alike on all ranks.
        least: messages carry fewer, unless ranks look for notices.
    """

    def gather(row: torch.Tensor) -> torch.Tensor:
        rows = row.new_empty(group.size(), len(row))
        rows[group.rank()].copy_(row)
        _sent_to_all(rows, row, group).wait()
        return rows

    shared = shared_parts(group, gather)
    return shared if shared is not None and (shared.looks or num_bytes >= least) else None


def _parts(tensor: torch.Tensor, counts: Sequence[int] | None, ranks: int) -> list[torch.Tensor]:
    """Return so many elements for each rank, one after another."""
    counts = [tensor.numel() // ranks] * ranks if counts is None else counts
    ends = accumulate(counts)
    return [tensor[end - length : end] for length, end in zip(counts, ends, strict=True)]


def _exchanged(
    comes: Sequence[torch.Tensor], goes: Sequence[torch.Tensor], group: Any
) -> _Messages:
    """Send each rank its part and receive one from each; empty ones are no messages."""
    here: int = group.rank()
    comes[here].copy_(goes[here])
    peers = [peer for peer in range(len(goes)) if peer != here]
    works = [group.recv([comes[peer]], peer, TAG) for peer in peers if comes[peer].numel()]
    works += [group.send([goes[peer]], peer, TAG) for peer in peers if goes[peer].numel()]
    return _Messages(works, group)


def _sent_to_all(rows: torch.Tensor, own: torch.Tensor, group: Any) -> _Messages:
    """Send a rank's tensor to all others, and have theirs put in rows."""
    here = group.rank()
    peers = [peer for peer in range(len(rows)) if peer != here]
    works = [group.recv([rows[peer]], peer, TAG) for peer in peers]
    return _Messages(works + [group.send([own], peer, TAG) for peer in peers], group)


def _reduce_rows(rows: Sequence[torch.Tensor], target: torch.Tensor, fn: str) -> None:
    """Reduce rows in the order of ranks, so that every rank has the same number.

    Sums of half types are rounded once.

    Args:
        rows: of each rank; none is where the target is.
        target: as long as a row.
        fn: ``sum``, ``max`` or ``min``.
    """
    first, second, *others = rows
    if others and fn == "sum" and target.dtype in (torch.float16, torch.bfloat16):
        torch.sum(torch.stack(list(rows)), 0, out=target)
        return
    join = _JOINS[fn]
    join(first, second, out=target)
    for row in others:
        join(target, row, out=target)


def _begun(exchange: Exchange, async_op: bool) -> Exchange:
    if not async_op:
        exchange.wait()
    return exchange


def _reduction(fn: str, tensor: torch.Tensor) -> Any:
    if tensor.dtype in NOT_REDUCED:
        raise IrcError("op-unsupported", f"gloo does not reduce {tensor.dtype}")
    return REDUCTIONS[fn]

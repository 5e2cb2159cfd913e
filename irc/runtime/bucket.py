"""Collectives of one bucket: one call of the library, without copies on GPUs.

torch's coalescing manager takes calls of one kind and hands them to the library together: NCCL
begins them as one (``ncclGroupStart``). Among few processes of a host large gathers are copied from
memory that these share, which begins as one message, too. Else they are laid side by side in one
message; that takes longer than messages apart unless they are small, so others are begun one by one
there.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any

from torch.distributed.distributed_c10d import _coalescing_manager, _world

from irc.plan.schema import Start
from irc.runtime.direct import is_direct
from irc.runtime.message import Message, gathered, together


@dataclass(frozen=True)
class Prepared:
    """A collective that may be begun.

    Attributes:
        begin: has the library begin it, given ``group`` and ``async_op``.
        message: what it moves.
        unpack: what is to be done when it has ended; None: nothing.
        is_apart: it is a message of its own in any case.
    """

    begin: Callable[..., Any]
    message: Message
    unpack: Callable[[], None] | None = None
    is_apart: bool = False


class Bucket:
    """The collectives of a bucket as they start; the last one begins them all.

    Args:
        group: of processes.
        size: how many collectives there are.
    """

    def __init__(self, group: Any, size: int) -> None:
        self._group, self._size = group, size
        self._members: dict[str, Prepared] = {}
        # A thread that notes ends for a trace may wait before the last member has started.
        self._work: Future[list[Any]] = Future()
        self._has_ended = False

    @property
    def is_begun(self) -> bool:
        """True when the library has it."""
        return self._work.done()

    def has(self, action: Start) -> bool:
        """True where a collective has started: also one of a call that ended in an error."""
        return action.id in self._members

    def add(self, action: Start, prepared: Prepared) -> BucketEnd:
        """Start a collective, and all of them with the last.

        Raises:
            Exception: of the library that begins them, here and at each wait.
        """
        self._members[action.id] = prepared
        if len(self._members) == self._size:
            try:
                self._work.set_result(self._begun())
            except BaseException as error:
                self._work.set_exception(error)
                raise
        return BucketEnd(self, prepared.unpack)

    def _begun(self) -> list[Any]:
        messages = [each.message for each in self._members.values()]
        if messages[0].kind == "all_gather" and (one := gathered(messages, self._group)):
            return [one]
        apart = [each for each in self._members.values() if each.is_apart]
        works = [each.begin(group=self._group, async_op=True) for each in apart]
        joined = [each for each in self._members.values() if not each.is_apart]
        if not joined:
            return works
        if is_direct(self._group, joined[0].message.own):
            return [*works, together([each.message for each in joined], self._group)]
        if _is_scattered_on_host(joined[0].message):
            return works + [each.begin(group=self._group, async_op=True) for each in joined]
        try:
            with _coalescing_manager(self._group, async_ops=True) as coalesced:
                for each in joined:
                    each.begin(group=self._group)
        except BaseException:
            # torch leaves it, and would only note what the group is asked for from then on.
            _world.pg_coalesce_state.pop(self._group, None)
            raise
        return works + coalesced.works

    def wait(self) -> None:
        """Wait until all have ended; the first wait of a member is that of all."""
        works = self._work.result()
        if not self._has_ended:
            for work in works:
                work.wait()
            self._has_ended = True

    def get_future(self) -> Future[None]:
        """Return what is done once all have ended, as torch's works have it.

        It ends with the error of a library that does not begin them, and not at all where a kind of
        work has no future.
        """
        ended: Future[None] = Future()
        lock, left = Lock(), 0

        def one_ended(_: object) -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = not left
            if is_last:
                ended.set_result(None)

        def begun(works: Future[list[Any]]) -> None:
            nonlocal left
            if (error := works.exception()) is not None:
                ended.set_exception(error)
                return
            try:
                futures = [work.get_future() for work in works.result()]
            except RuntimeError:  # torch: this kind of work has no future
                return
            left = len(futures)
            for each in futures:
                each.add_done_callback(one_ended)

        self._work.add_done_callback(begun)
        return ended


def _is_scattered_on_host(message: Message) -> bool:
    """True for what gloo reduces one by one also where it is given together.

    Before torch 2.12 its wrapper (TORCH_DISTRIBUTED_DEBUG=DETAIL) does not take it together at all.
    """
    return message.kind == "reduce_scatter" and message.own.device.type == "cpu"


@dataclass(frozen=True)
class BucketEnd:
    """Waits for the bucket of a collective, and unpacks the collective's own result."""

    work: Bucket
    unpack: Callable[[], None] | None

    def __call__(self) -> None:
        self.work.wait()
        if self.unpack is not None:
            self.unpack()

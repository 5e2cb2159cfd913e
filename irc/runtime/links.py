"""The links of a cluster between processes of one machine: messages take as long as there.

``irc run PLAN --links`` runs a cluster's plan on a laptop. Its kernels are the laptop's. Its
collectives and messages take as long as the plan says that they are on their link, one after the
other. They move through shared memory or sockets at once, which takes little at the sizes that a
laptop runs, beside what computes; who waits for one waits until it would have arrived. So a run
shows what compute hides of communication. What is added up over the ranks of several stages when
all micro-batches are done (tied weights, the norm, the loss) takes no time: predictions do not
count it either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from irc.cluster.load import THIS_HOST, find_cluster
from irc.cluster.topology import Cluster
from irc.cost.between import crossing
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan, Start
from irc.runtime.due_times import Board, Boards
from irc.sharding.between import Channel

if TYPE_CHECKING:
    from irc.runtime.collectives import Communicator, Finish, Operands


class Link:
    """What carries messages one after the other.

    Args:
        now: seconds of a clock that all ranks of the machine share.
        sleep: for some seconds.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now, self._sleep = now, sleep
        self._free_s = 0.0

    def take(self, seconds: float, latency_s: float) -> float:
        """Take a message, and return when it is due at its receiver.

        Args:
            seconds: for which it has the link to itself.
            latency_s: until it arrives after that; the link is free meanwhile.
        """
        self._free_s = max(self._now(), self._free_s) + seconds
        return self._free_s + latency_s

    def delivery(self, finish: Finish, due: Callable[[], float]) -> Delivery:
        """Return what waits for a message.

        Args:
            finish: waits until the library has moved it.
            due: when its last part is due, once the library has moved it.
        """
        return Delivery(finish, due, self._now, self._sleep)


class Delivery:
    """A message on its way; call it to wait for its end, in any thread and as often as you like."""

    def __init__(
        self,
        finish: Finish,
        due: Callable[[], float],
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.work = self
        self._finish, self._due, self._now, self._sleep = finish, due, now, sleep
        self._lock, self._is_there = Lock(), False

    def __call__(self) -> None:
        """Wait until the message has arrived.

        Raises:
            Exception: of the library that moves it.
        """
        with self._lock:
            if self._is_there:
                return
            self._finish()
            if (left := self._due() - self._now()) > 0.0:
                self._sleep(left)
            self._is_there = True

    def get_future(self) -> Future[None]:
        """Return what is done once the message is there; a thread of its own waits for it."""
        ended: Future[None] = Future()

        def await_end() -> None:
            try:
                self()
            except BaseException as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        Thread(target=await_end, name="irc-link", daemon=True).start()
        return ended


class Links:
    """The links of one rank: one for each mesh axis, and for each set of ranks that it sends to.

    Args:
        cluster: whose links they are.
        boards: where its ranks tell each other when messages are due; None where no other is there.
    """

    def __init__(self, cluster: Cluster, boards: Boards | None = None) -> None:
        self._cluster, self._boards = cluster, boards
        self._links: dict[Hashable, Link] = {}

    def collectives(
        self, communicator: Communicator, mesh: Mesh, rank: int, processes: Sequence[int] = ()
    ) -> Communicator:
        """Return a communicator whose collectives take as long as the plan says.

        Args:
            communicator: that moves them.
            mesh: that they are over.
            rank: of this process on it.
            processes: the numbers of its ranks where it is one of several.
        """
        boards: dict[str, tuple[Board, int]] = {}
        if self._boards is not None:
            numbers = processes or range(mesh.num_ranks)
            for axis, size in mesh.axes:
                group = [numbers[each] for each in mesh.group_of(rank, axis)]
                board = self._boards.between(group, axis, size)
                boards[axis] = board, group.index(numbers[rank])
        return _Collectives(self, communicator, boards)

    def message(
        self, channel: Channel, rank: int, name: str = ""
    ) -> Callable[[Callable[[], Finish]], Finish]:
        """Return what carries a rank's messages of a channel, given what begins them.

        They take as long as all messages of the channel together, as in a simulation. A rank that
        only receives, from others that are not there, has them carried to it.

        Args:
            channel: between the ranks.
            rank: of this process.
            name: of the message on its channel, by which its receivers know when it is due.
        """
        there = sorted(message.target for message in channel.sends(rank))
        sources = [] if there else sorted(each.source for each in channel.receives(rank))
        link = self.of((*there, *(("from", each) for each in sources)))
        seconds, latency_s = crossing(channel, self._cluster)
        boards = [self._board(name, rank, each) for each in there]

        def carry(begin: Callable[[], Finish]) -> Finish:
            due_s = link.take(seconds, latency_s)
            for board in boards:
                if board is not None:
                    board.tell(board.next(), 0, due_s)
            return link.delivery(begin(), lambda: due_s)

        return carry

    def arrival(self, channel: Channel, rank: int, name: str) -> Callable[[Finish], Finish]:
        """Return what has a message that this rank receives arrive when its senders say."""
        sources = sorted({message.source for message in channel.receives(rank)})
        boards = [self._board(name, each, rank) for each in sources]

        def arrive(finish: Finish) -> Finish:
            told = [(board, board.next()) for board in boards if board is not None]
            return Delivery(
                finish, lambda: max((board.latest(number) for board, number in told), default=0.0)
            )

        return arrive

    def of(self, key: Hashable) -> Link:
        """Return the link of an axis or of some ranks, which is there from its first message on."""
        if key not in self._links:
            self._links[key] = Link()
        return self._links[key]

    def _board(self, name: str, source: int, target: int) -> Board | None:
        return None if self._boards is None else self._boards.between((source, target), name)


class _Collectives:
    def __init__(
        self, links: Links, inner: Communicator, boards: Mapping[str, tuple[Board, int]]
    ) -> None:
        self._links, self._inner, self._boards = links, inner, boards

    def start(self, action: Start, operands: Operands) -> Finish:
        """Give a collective to the link of its axis, and to the library."""
        axis = action.attrs["axis"]
        link = self._links.of(axis)
        due_s = link.take(action.seconds or 0.0, 0.0)
        if axis not in self._boards:
            return link.delivery(self._inner.start(action, operands), lambda: due_s)
        board, place = self._boards[axis]
        number = board.next()
        board.tell(number, place, due_s)
        return link.delivery(self._inner.start(action, operands), lambda: board.latest(number))


def links_of(plan: LoadedPlan | PartsPlan, folder: str | Path | None = None) -> Links:
    """Return links as slow as those of a plan's cluster, for one rank of a run.

    Args:
        plan: of the run.
        folder: that its ranks share; None for a rank whose others are not there.

    Raises:
        IrcError: ``option-value``, ``cluster-unknown``.
    """
    check_links(plan)
    first = next(iter(_programs(plan)))
    boards = None if folder is None else Boards(Path(folder))
    return Links(find_cluster(first.cluster).fit(_mesh(plan)), boards)


def check_links(plan: LoadedPlan | PartsPlan) -> None:
    """Refuse to run a plan over its cluster's links where it has none.

    Raises:
        IrcError: ``option-value``.
    """
    each = _programs(plan)
    first = next(iter(each))
    if _mesh(plan).num_ranks == 1:
        raise IrcError("option-value", "--links: the plan is for one rank, which has no links")
    if first.cluster in ("", THIS_HOST):
        raise IrcError(
            "option-value",
            "--links: the plan is for this host, whose links are its own",
            help="compile it for a cluster: irc compile --cluster 2x8xH100, or a cluster file",
        )
    starts = (action for one in each for action in one.actions if isinstance(action, Start))
    if lacking := next((start for start in starts if start.seconds is None), None):
        raise IrcError(
            "option-value", f"--links: the plan does not say how long '{lacking.id}' takes"
        )


def _mesh(plan: LoadedPlan | PartsPlan) -> Mesh:
    return plan.mesh if isinstance(plan, PartsPlan) else plan.plan.device_mesh


def _programs(plan: LoadedPlan | PartsPlan) -> Iterable[Plan]:
    if isinstance(plan, LoadedPlan):
        return [plan.plan]
    return [loaded.plan for part in plan.parts for loaded in part.values()]

"""The links of a cluster between processes of one machine: messages take as long as there.

``irc run PLAN --links`` runs a cluster's plan on a laptop. Its kernels are the laptop's. Its
collectives and messages are held back for as long as the plan says that they are on their link, one
after the other, and then move through shared memory or sockets, which takes little at the sizes
that a laptop runs. So a run shows what compute hides of communication. What is added up over the
ranks of several stages when all micro-batches are done (tied weights, the norm, the loss) is not
held back: predictions do not count it either.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from irc.cluster.load import THIS_HOST, find_cluster
from irc.cluster.topology import Cluster
from irc.cost.between import crossing
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.schema import Plan, Start
from irc.sharding.between import Channel

if TYPE_CHECKING:
    from irc.runtime.collectives import Communicator, Finish, Operands


class _Message(NamedTuple):
    due_s: float
    begin: Callable[[], Finish]
    begun: Future[Finish]


class Link:
    """A thread that begins messages when they would have arrived, in the order in which they come.

    A rank holds back what it gives to a collective, so that a collective ends when the message of
    its last rank would have: the library itself waits for that one. The receiver of a message holds
    nothing back.

    Its thread lives as long as the process.

    Args:
        now: seconds of a clock.
        sleep: for some seconds.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now, self._sleep = now, sleep
        self._free_s = 0.0
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        # It may hold a message of a run that was given up.
        threading.Thread(target=self._carry, name="irc-link", daemon=True).start()

    def carry(self, seconds: float, latency_s: float, begin: Callable[[], Finish]) -> Delivery:
        """Take a message; return at once.

        Args:
            seconds: for which it has the link to itself.
            latency_s: until it arrives after that; the link is free meanwhile.
            begin: has the library move it, without gradients, and returns what waits for the end.
        """
        self._free_s = max(self._now(), self._free_s) + seconds
        message = _Message(self._free_s + latency_s, begin, Future())
        self._messages.put(message)
        return Delivery(message.begun)

    def _carry(self) -> None:
        import torch

        with torch.no_grad():
            while True:
                message = self._messages.get()
                if (left := message.due_s - self._now()) > 0.0:
                    self._sleep(left)
                try:
                    message.begun.set_result(message.begin())
                # Whatever it is, it is raised where the message is waited for.
                except BaseException as error:
                    message.begun.set_exception(error)


class Delivery:
    """A message that a link has; call it once to wait for its end."""

    def __init__(self, begun: Future[Finish]) -> None:
        self.work = self
        self._begun = begun

    def __call__(self) -> None:
        """Wait until the message has arrived.

        Raises:
            Exception: of the library that moves it.
        """
        self._begun.result()()

    def get_future(self) -> Future[Finish]:
        """Return what is done once the message has been on its link, as torch's works have it."""
        return self._begun


class Links:
    """The links of one rank: one for each mesh axis, and for each set of ranks that it sends to.

    Args:
        cluster: whose links they are.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._links: dict[Hashable, Link] = {}

    def collectives(self, communicator: Communicator) -> Communicator:
        """Return a communicator whose collectives take as long as the plan says."""
        return _Collectives(self, communicator)

    def message(self, channel: Channel, rank: int) -> Callable[[Callable[[], Finish]], Finish]:
        """Return what carries a rank's messages of a channel, given what begins them.

        They take as long as all messages of the channel together, as in a simulation. A rank that
        only receives, from others that are not there, has them carried to it.
        """
        there = [message.target for message in channel.sends(rank)]
        sources = [] if there else [("from", each.source) for each in channel.receives(rank)]
        link = self.of((*sorted(there), *sorted(sources)))
        seconds, latency_s = crossing(channel, self._cluster)
        return lambda begin: link.carry(seconds, latency_s, begin)

    def of(self, key: Hashable) -> Link:
        """Return the link of an axis or of some ranks, which is there from its first message on."""
        if key not in self._links:
            self._links[key] = Link()
        return self._links[key]


class _Collectives:
    def __init__(self, links: Links, inner: Communicator) -> None:
        self._links, self._inner = links, inner

    def start(self, action: Start, operands: Operands) -> Finish:
        """Give a collective to the link of its axis."""
        link, inner = self._links.of(action.attrs["axis"]), self._inner
        return link.carry(action.seconds or 0.0, 0.0, lambda: inner.start(action, operands))


def links_of(plan: LoadedPlan | PartsPlan) -> Links:
    """Return links as slow as those of a plan's cluster, for one rank of a run.

    Raises:
        IrcError: ``option-value``, ``cluster-unknown``.
    """
    check_links(plan)
    first = next(iter(_programs(plan)))
    return Links(find_cluster(first.cluster).fit(_mesh(plan)))


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

"""Seconds of a channel: all its messages at once, over the links of a cluster.

A message goes over the innermost level that holds both its devices; each device has a port to a
level, of its speed in either direction, and where the devices of a node share one port, all that
leave or reach the node have that together. The level that takes longest decides; it speaks the
protocol that ends first. In a graph, each wire carries the messages whose paths lead over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from irc.cluster.graph import Graph
from irc.cluster.links import Link, Protocol
from irc.cluster.topology import Cluster
from irc.errors import IrcError
from irc.sharding.between import Channel, Message


class Crossing(NamedTuple):
    """What a channel takes.

    Attributes:
        seconds: for which its links are busy.
        latency_s: that it takes beside them.
    """

    seconds: float
    latency_s: float


def crossing(channel: Channel, cluster: Cluster) -> Crossing:
    """Return what the messages of a channel take: its ranks are the devices of those numbers.

    O(messages): on equal sides each rank has one.

    Raises:
        IrcError: ``mesh-mismatch`` where there is no device for a rank.

    >>> from irc.cluster.presets import PRESETS
    >>> from irc.dialects.placement import Mesh, Placement
    >>> from irc.sharding.between import Side
    >>> mesh = Mesh.parse("tensor=8")
    >>> sides = (Side(Placement.replicated(mesh.names), mesh, range(r, r + 8)) for r in (0, 8))
    >>> found = crossing(Channel((1024, 1024), "bf16", *sides), PRESETS["2x8xH100"])
    >>> f"{found.seconds * 1e6:.0f} us and {found.latency_s * 1e6:.1f} us"
    '52 us and 22.4 us'
    """
    if (most := max((*channel.before.ranks, *channel.after.ranks))) >= cluster.num_devices:
        raise IrcError(
            "mesh-mismatch",
            f"there is a rank {most}; cluster '{cluster.name}' has {cluster.num_devices} devices",
        )
    if cluster.graph is not None:
        return _through(cluster.graph, _moved(channel))
    levels = [_Level(link) for link in cluster.links]
    for message in _moved(channel):
        inner = 1
        for level in levels:
            devices = level.link.devices
            if message.source // devices == message.target // devices:
                level.add(message, inner)
                break
            inner = devices
    return max((level.crossing() for level in levels if level.sent), key=sum, default=NOTHING)


NOTHING = Crossing(0.0, 0.0)


def port_of(channel: Channel, cluster: Cluster) -> Literal["link", "nic"]:
    """Return which port of its ranks a channel takes: to the links of a node, or to the network."""
    leaves = any(cluster.joins_nodes(each.source, each.target) for each in _moved(channel))
    return "nic" if leaves else "link"


def _moved(channel: Channel) -> Iterator[Message]:
    return (message for rank in channel.before.ranks for message in channel.sends(rank))


@dataclass
class _Level:
    """The bytes that go over a level: by device, by group of the level below, and by pair."""

    link: Link
    sent: Counter[int] = field(default_factory=Counter[int])
    received: Counter[int] = field(default_factory=Counter[int])
    left: Counter[int] = field(default_factory=Counter[int])
    reached: Counter[int] = field(default_factory=Counter[int])
    most: int = 0

    def add(self, message: Message, inner: int) -> None:
        self.sent[message.source] += message.num_bytes
        self.received[message.target] += message.num_bytes
        self.left[message.source // inner] += message.num_bytes
        self.reached[message.target // inner] += message.num_bytes
        self.most = max(self.most, message.num_bytes)

    def crossing(self) -> Crossing:
        link = self.link
        seconds = max(*self.sent.values(), *self.received.values()) / link.bytes_per_s
        if link.shared_bytes_per_s:
            together = max(*self.left.values(), *self.reached.values())
            seconds = max(seconds, together / link.shared_bytes_per_s)
        if link.peer_bytes_per_s:
            seconds = max(seconds, self.most / link.peer_bytes_per_s)
        plain = Protocol("", link.latency_s, link.launch_s)
        choices = [Crossing(seconds / each.part, each.launch_s + each.latency_s)
                   for each in link.protocols or (plain,)]  # fmt: skip
        return min(choices, key=sum)


def _through(graph: Graph, messages: Iterator[Message]) -> Crossing:
    loads: Counter[object] = Counter()
    latency = seconds = 0.0
    speeds = {way: edge.bytes_per_s for edge in graph.edges for way in (edge.ends, edge.ends[::-1])}
    delays = {way: edge.latency_s for edge in graph.edges for way in (edge.ends, edge.ends[::-1])}
    for message in messages:
        path = graph.path(message.source, message.target)
        latency = max(latency, graph.launch_s + sum(delays[wire] for wire in path))
        for wire in path:
            loads[wire] += message.num_bytes
            seconds = max(seconds, loads[wire] / speeds[wire])
    return Crossing(seconds, latency)

"""Links: one level of a cluster, and what one mesh axis sees of all levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal, TypeAlias

Collective: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

DIRECT_RANKS = 8
"""So many processes that gloo joins, and no more, send to each other at once, not around a ring."""
DIRECT_SUM_BYTES = 1 << 19
"""Of an all-reduce by messages: by these, each rank receives and adds up more than in a ring."""
SHARED_SUM_BYTES = 1 << 23
"""So much at most a rank reads of its peers to add up, if it has several: more goes in a ring."""


@dataclass(frozen=True)
class Protocol:
    """One way in which a library sends over a link, such as NCCL's LL and Simple.

    Attributes:
        name: levels that a collective crosses use the protocol of one name.
        latency_s: of one step.
        launch_s: of the collective, whatever its size and its group.
        part: of the link's bandwidth that it reaches.
    """

    name: str
    latency_s: float
    launch_s: float
    part: float = 1.0


@dataclass(frozen=True)
class Fit:
    """Measured figures of one collective: ``launch + steps * (latency + bytes / bytes_per_s)``.

    Attributes:
        launch_s, latency_s, bytes_per_s: what they are of.
        cores: of the host that they were measured on. Sending and receiving is work of a core, so
            where ranks share one, each step takes as many times as long. 0: nobody shares one, or
            it is not known.
    """

    launch_s: float
    latency_s: float
    bytes_per_s: float
    cores: int = 0


@dataclass(frozen=True)
class Link:
    """One level of links.

    Attributes:
        devices: how many devices a group of this level holds.
        latency_s: time that one step of a collective takes beside its bytes.
        bytes_per_s: what a device sends over this level while all others send as well.
        launch_s: time that a collective takes whatever its size and its group.
        emulated: collectives that the runtime does not have here: ``all_to_all`` is an all-gather
            and a local chunk then, ``reduce_scatter`` an all-reduce and a local chunk.
        protocols: ways of sending that the library chooses from; none: the one that latency and
            launch describe.
        tree: whether a library may run a tree of all-reduces over this level: between nodes it
            does, inside a node it runs a chain.
        shared_bytes_per_s: what the devices of one group of the level below send together, where
            they share a port (a node with one network card); 0 where each has its own.
        peer_bytes_per_s: what a device sends to one other, where every pair has wires of its own,
            so that a small group does not reach ``bytes_per_s``; 0 behind a switch.
        in_switch_bytes_per_s: what a device sends while the switches themselves reduce (NVLink
            SHARP); 0 where they cannot.
        fits: collectives that were measured; these figures then stand for those of the level.
    """

    devices: int
    latency_s: float
    bytes_per_s: float
    launch_s: float = 0.0
    emulated: frozenset[Collective] = frozenset()
    protocols: tuple[Protocol, ...] = ()
    tree: bool = False
    shared_bytes_per_s: float = 0.0
    peer_bytes_per_s: float = 0.0
    in_switch_bytes_per_s: float = 0.0
    fits: Mapping[Collective, Fit] = field(default_factory=dict[Collective, Fit])


@dataclass(frozen=True)
class Hop:
    """One level as a group sees it.

    Attributes:
        fan: how many groups of the level below are joined; the ranks of the group are the product
            over its hops.
        bytes_per_s: what one rank sends over this level while all ranks of all groups send.
        latency_s, launch_s, protocols, tree, in_switch_bytes_per_s: as of the link.
    """

    fan: int
    bytes_per_s: float
    latency_s: float
    launch_s: float
    protocols: tuple[Protocol, ...] = ()
    tree: bool = False
    in_switch_bytes_per_s: float = 0.0

    def protocol(self, name: str) -> Protocol:
        """Return the protocol of a name, or the plain one of the level where it has none."""
        plain = Protocol(name, self.latency_s, self.launch_s)
        return next((p for p in self.protocols if p.name == name), plain)


@dataclass(frozen=True)
class AxisLink:
    """What the collectives of one mesh axis run over: see `Cluster.axis_link`.

    Attributes:
        ranks: of one group of the axis.
        latency_s, launch_s: of the outermost level that a group crosses.
        bytes_per_s: of a ring through the whole group, per rank.
        emulated: as of the link.
        hops: the levels that a group crosses, innermost first; one stands for all where groups
            fill a level unevenly, and where none are stated.
        fits: measured figures by collective.
        direct: the ranks are few processes of hosts, which send to each other at once.
        processes: of the host, in all groups; 0 where ranks have devices of their own.
    """

    ranks: int
    latency_s: float
    bytes_per_s: float
    launch_s: float
    emulated: frozenset[Collective] = frozenset()
    hops: tuple[Hop, ...] = ()
    fits: Mapping[Collective, Fit] = field(default_factory=dict[Collective, Fit])
    direct: bool = False
    processes: int = 0

    @property
    def levels(self) -> tuple[Hop, ...]:
        """The hops; one of all ranks where none are stated.

        >>> AxisLink(4, 1e-6, 1e9, 0.0).levels[0].fan
        4
        """
        if self.hops:
            return self.hops
        return (Hop(self.ranks, self.bytes_per_s, self.latency_s, self.launch_s),)


def ring_bytes_per_s(hops: tuple[Hop, ...]) -> float:
    """Return the speed of a ring through all levels, per rank.

    A ring through several nodes leaves and enters each node once, with all the ports that the
    group's ranks in the node have.

    >>> inside, between = Hop(8, 360e9, 6e-7, 6e-6), Hop(2, 40e9, 2.7e-6, 6e-6)
    >>> f"{ring_bytes_per_s((inside, between)) / 1e9:.0f} GB/s"
    '320 GB/s'
    """
    return min(
        hop.bytes_per_s * prod(inner.fan for inner in hops[:level])
        for level, hop in enumerate(hops)
        if hop.fan > 1
    )

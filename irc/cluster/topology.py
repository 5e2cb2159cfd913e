"""A cluster: devices, and the links that join them, by level or as a graph.

Level 0 joins the devices of a node, level 1 joins nodes, and so on; a level's ``devices`` says how
many devices one group of that level holds. Ranks of a mesh are laid out row-major on the devices,
so the last mesh axis runs over neighbouring devices and gets the fastest level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from irc.cluster.device import Device, slowest
from irc.cluster.graph import Graph
from irc.cluster.launching import NOTHING_ASKED, Launching
from irc.cluster.links import (
    COLLECTIVES,
    DIRECT_RANKS,
    AxisLink,
    Collective,
    Fit,
    Hop,
    Link,
    Protocol,
    ring_bytes_per_s,
)
from irc.dialects.placement import Mesh
from irc.errors import IrcError

__all__ = [
    "COLLECTIVES",
    "AxisLink",
    "Cluster",
    "Collective",
    "Device",
    "Fit",
    "Graph",
    "Hop",
    "Link",
    "Protocol",
]


@dataclass(frozen=True)
class Cluster:
    """Devices joined by levels of links, innermost first, or by a graph of links.

    Invariants (checked): there are levels or a graph, not both; a level holds a whole number of
    groups of the level below it; the last level, or the graph, holds all devices.

    Attributes:
        name: of the preset or file.
        device: what every device is; of unequal ones, what an even split over all runs at.
        links: levels, innermost first.
        unequal: where devices differ, each kind with how many there are, in the order of devices.
        graph: links between single devices and switches.
        launching: what launchers ask for besides.
    """

    name: str
    device: Device
    links: tuple[Link, ...] = ()
    unequal: tuple[tuple[Device, int], ...] = ()
    graph: Graph | None = None
    launching: Launching = NOTHING_ASKED

    def __post_init__(self) -> None:
        if self.graph is not None and self.links:
            raise ValueError(f"cluster '{self.name}' has link levels and a graph")
        if self.graph is None and not self.links:
            raise ValueError(f"cluster '{self.name}' has no link level")
        inner = 1
        for link in self.links:
            if link.devices < inner or link.devices % inner:
                raise ValueError(
                    f"a link level of {link.devices} devices does not hold whole groups of {inner}"
                )
            inner = link.devices
        counted = sum(count for _, count in self.unequal)
        if self.unequal and counted != self.num_devices:
            raise ValueError(f"there are {counted} devices, and links for {self.num_devices}")

    @property
    def num_devices(self) -> int:
        """The number of devices; processes that share a host's cores are not limited by it."""
        return self.links[-1].devices if self.graph is None else self.graph.num_devices

    def fit(self, mesh: Mesh) -> Cluster:
        """Return what the ranks of a mesh see: itself, or a host's cores divided among the ranks.

        Of unequal devices, the first ones are used, and an even split runs at the slowest of them.

        Raises:
            IrcError: ``mesh-mismatch`` where the mesh has more ranks than there are devices.
        """
        return self._fitted(mesh, sharing=True)

    def alone(self, mesh: Mesh) -> Cluster:
        """Return what one rank sees while the others wait: a simulator shares the cores itself."""
        return self._fitted(mesh, sharing=False)

    def _fitted(self, mesh: Mesh, *, sharing: bool) -> Cluster:
        ranks = mesh.num_ranks
        if not self.device.cores:
            if ranks > self.num_devices:
                raise IrcError(
                    "mesh-mismatch",
                    f"mesh {mesh} has {ranks} ranks; cluster '{self.name}' has"
                    f" {self.num_devices} devices",
                    help="choose a smaller mesh or a larger cluster",
                )
            used = [device for device, _ in self._kinds(ranks)]
            return replace(self, device=slowest(used)) if used else self
        device = self.device.of_ranks(ranks, sharing=sharing)
        if self.graph is not None:
            return replace(self, device=device)
        outer = replace(self.links[-1], devices=max(ranks, self.num_devices))
        return replace(self, device=device, links=(*self.links[:-1], outer))

    def of_kinds(self, kinds: Sequence[int]) -> Cluster:
        """Return what ranks on some kinds of unequal devices see: the same links, those devices.

        Raises:
            IrcError: ``cluster-unknown`` for a kind that there is not.
        """
        if missing := [kind for kind in kinds if kind >= len(self.unequal)]:
            raise IrcError(
                "cluster-unknown",
                f"cluster '{self.name}' has no kind {missing[0]} of devices",
                because=f"it has {len(self.unequal)}, counted from 0"
                if self.unequal
                else "all its devices are alike",
            )
        return replace(self, device=slowest([self.unequal[k][0] for k in kinds]), unequal=())

    def _kinds(self, ranks: int) -> Iterator[tuple[Device, int]]:
        """Yield the kinds of the first devices, with how many of each are among them."""
        for device, count in self.unequal:
            if ranks <= 0:
                return
            yield device, min(count, ranks)
            ranks -= count

    def axis_link(self, mesh: Mesh, axis: str) -> AxisLink:
        """Return what a collective over one mesh axis sees while all groups of the axis run it.

        Groups that pass through the same node share its ports. With g of the group's ranks in a
        node of n, whose other ranks belong to groups that leave it as well, each group has ``g *
        bytes_per_s``. Where devices of a node share one port, each has its part of that.

        >>> from irc.cluster.presets import PRESETS
        >>> two_nodes = PRESETS["2x8xH100"]
        >>> mesh = Mesh.parse("data=4,tensor=4")
        >>> [f"{two_nodes.axis_link(mesh, axis).bytes_per_s / 1e9:.0f} GB/s" for axis in mesh.names]
        ['80 GB/s', '362 GB/s']
        """
        link = self._axis_link(mesh, axis)
        if not self.device.cores:
            return link
        return replace(link, direct=link.ranks <= DIRECT_RANKS, processes=mesh.num_ranks)

    def _axis_link(self, mesh: Mesh, axis: str) -> AxisLink:
        ranks = mesh.size(axis)
        if self.graph is not None:
            return self.graph.axis_link(mesh, axis)
        if ranks == 1:
            link = self.links[0]
            return AxisLink(1, link.latency_s, link.bytes_per_s, link.launch_s, link.emulated)
        stride = _stride(mesh, axis)
        inside = self._members(stride, ranks, mesh.num_ranks)
        if inside is None:
            return self._unaligned(stride * ranks, ranks, mesh.num_ranks)
        hops: list[Hop] = []
        below, crossed = 1, self.links[0]
        for level, (link, members) in enumerate(zip(self.links, inside, strict=True)):
            if members > below:
                active = min(self.links[level - 1].devices if level else 1, mesh.num_ranks)
                hops.append(_hop(link, members // below, active))
                below, crossed = members, link
        return AxisLink(
            ranks,
            crossed.latency_s,
            ring_bytes_per_s(tuple(hops)),
            crossed.launch_s,
            crossed.emulated,
            tuple(hops),
            crossed.fits if len(hops) == 1 else {},
        )

    def crosses_nodes(self, mesh: Mesh, axis: str) -> bool:
        """Return whether some group of a mesh axis has ranks on several nodes.

        A node is what lies below the levels over which collectives may go by trees (``tree``). A
        graph says nothing of nodes: its devices are taken to be in one.

        >>> from irc.cluster.presets import PRESETS
        >>> mesh = Mesh.parse("data=4,tensor=4")
        >>> [PRESETS["2x8xH100"].crosses_nodes(mesh, axis) for axis in mesh.names]
        [True, False]
        """
        node = self._node
        if self.graph is not None or mesh.num_ranks <= node or mesh.size(axis) == 1:
            return False
        return node % (_stride(mesh, axis) * mesh.size(axis)) != 0

    def joins_nodes(self, device: int, other: int) -> bool:
        """Return whether two devices are on different nodes, as :meth:`crosses_nodes` has them.

        >>> from irc.cluster.presets import PRESETS
        >>> [PRESETS["2x8xH100"].joins_nodes(0, device) for device in (7, 8)]
        [False, True]
        """
        return self.graph is None and device // self._node != other // self._node

    @property
    def _node(self) -> int:
        """How many devices a node has."""
        return max((link.devices for link in self.links if not link.tree), default=1)

    def _members(self, stride: int, ranks: int, used: int) -> list[int] | None:
        """Return how many ranks of a group lie in one group of each level.

        None where some group of the axis fills a level unevenly: an axis of 3 on nodes of 8.
        """
        counts: list[int] = []
        for link in self.links:
            if link.devices >= used:
                counts.append(ranks)
                continue
            if link.devices % stride and stride % link.devices:
                return None
            members = max(1, link.devices // stride)
            if max(members, ranks) % min(members, ranks):
                return None
            counts.append(min(members, ranks))
        return counts if all(b % a == 0 for a, b in pairwise(counts)) else None

    def _unaligned(self, span: int, ranks: int, used: int) -> AxisLink:
        """Price a ring whose worst group has one rank in some node, and so one port."""
        level = next(
            i
            for i, link in enumerate(self.links)
            if link.devices >= used or link.devices % span == 0
        )
        active = min(self.links[level - 1].devices if level else 1, used)
        link = self.links[level]
        hop = replace(_hop(link, 2, active), fan=ranks, tree=False, in_switch_bytes_per_s=0.0)
        speed = min([hop.bytes_per_s, *(inner.bytes_per_s for inner in self.links[:level])])
        hop = replace(hop, bytes_per_s=speed)
        return AxisLink(ranks, link.latency_s, speed, link.launch_s, link.emulated, (hop,))


def _stride(mesh: Mesh, axis: str) -> int:
    """Return how far apart the devices of neighbours on an axis are."""
    stride = 1
    for name, size in reversed(mesh.axes):
        if name == axis:
            break
        stride *= size
    return stride


def _hop(link: Link, fan: int, active: int) -> Hop:
    """Show a level to a group, while ``active`` devices of each group below it send."""
    speed = link.bytes_per_s
    if link.shared_bytes_per_s:
        speed = min(speed, link.shared_bytes_per_s / active)
    if link.peer_bytes_per_s:
        speed = min(speed, link.peer_bytes_per_s * (fan - 1))
    return Hop(
        fan,
        speed,
        link.latency_s,
        link.launch_s,
        link.protocols,
        link.tree,
        link.in_switch_bytes_per_s,
    )

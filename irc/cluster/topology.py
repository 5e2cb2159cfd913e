"""A cluster: equal devices, and the levels of links that join them.

Level 0 joins the devices of a node, level 1 joins nodes, and so on; a level's ``devices`` says how
many devices one group of that level holds. Ranks of a mesh are laid out row-major on the devices,
so the last mesh axis runs over neighbouring devices and gets the fastest level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from irc.dialects.placement import Mesh
from irc.errors import IrcError

Collective: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
COLLECTIVES: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Device:
    """One device that computes.

    Attributes:
        name: what people call it, ``H100-SXM``.
        peak_flops: floating-point operations per second that a good matmul reaches, by dtype.
        bytes_per_s: memory bandwidth that a good copy reaches, reads and writes counted.
        memory_bytes: memory that a program may use.
        launch_s: the least time that one kernel takes, launch included.
        cores: where ranks share the host's processors, how many there are; 0 where they do not.
    """

    name: str
    peak_flops: Mapping[str, float]
    bytes_per_s: float
    memory_bytes: int
    launch_s: float
    cores: int = 0

    def flops(self, dtype: str) -> float:
        """Return the peak for a dtype; one that is not listed computes as float32.

        >>> device = Device("d", {"f32": 2e12, "bf16": 8e12}, 1e12, 2**34, 5e-6)
        >>> device.flops("bf16"), device.flops("i64")
        (8000000000000.0, 2000000000000.0)
        """
        return self.peak_flops.get(dtype, self.peak_flops["f32"])


@dataclass(frozen=True)
class Link:
    """One level of links.

    Attributes:
        devices: how many devices a group of this level holds.
        latency_s: time that one step of a collective takes beside its bytes.
        bytes_per_s: what a device sends over this level while all others send as well.
        launch_s: time that a collective takes whatever its size and its group.
        emulated: collectives that the runtime does not have here: ``all_to_all`` is an all-gather
        and
            a local chunk then, ``reduce_scatter`` an all-reduce and a local chunk.
    """

    devices: int
    latency_s: float
    bytes_per_s: float
    launch_s: float = 0.0
    emulated: frozenset[Collective] = frozenset()


@dataclass(frozen=True)
class AxisLink:
    """What the collectives of one mesh axis run over: see :meth:`Cluster.axis_link`."""

    ranks: int
    latency_s: float
    bytes_per_s: float
    launch_s: float
    emulated: frozenset[Collective] = frozenset()


@dataclass(frozen=True)
class Cluster:
    """Equal devices joined by levels of links, innermost first.

    Invariants (checked): a level holds a whole number of groups of the level below it, and the last
    one holds all devices.
    """

    name: str
    device: Device
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        if not self.links:
            raise ValueError(f"cluster '{self.name}' has no link level")
        inner = 1
        for link in self.links:
            if link.devices < inner or link.devices % inner:
                raise ValueError(
                    f"a link level of {link.devices} devices does not hold whole groups of {inner}"
                )
            inner = link.devices

    @property
    def num_devices(self) -> int:
        """The number of devices; processes that share a host's cores are not limited by it."""
        return self.links[-1].devices

    def fit(self, mesh: Mesh) -> Cluster:
        """Return what the ranks of a mesh see: itself, or a host's cores divided among the ranks.

        Raises:
            IrcError: ``mesh-mismatch`` where the mesh has more ranks than there are devices.
        """
        ranks = mesh.num_ranks
        if not self.device.cores:
            if ranks > self.num_devices:
                raise IrcError(
                    "mesh-mismatch",
                    f"mesh {mesh} has {ranks} ranks; cluster '{self.name}' has"
                    f" {self.num_devices} devices",
                    help="choose a smaller mesh or a larger cluster",
                )
            return self
        return replace(
            self,
            device=_share(self.device, ranks),
            links=(*self.links[:-1], replace(self.links[-1], devices=max(ranks, self.num_devices))),
        )

    def axis_link(self, mesh: Mesh, axis: str) -> AxisLink:
        """Return what a collective over one mesh axis sees while all groups of the axis run it.

        A ring through several nodes leaves and enters each node once, with all the ports of the
        node; groups that pass through the same node share them. With g of the group's ranks in a
        node of n, whose other ranks belong to groups that leave it as well, each group has ``g *
        bytes_per_s``.

        >>> from irc.cluster.presets import PRESETS
        >>> two_nodes = PRESETS["2x8xH100"]
        >>> mesh = Mesh.parse("data=4,tensor=4")
        >>> [f"{two_nodes.axis_link(mesh, axis).bytes_per_s / 1e9:.0f} GB/s" for axis in mesh.names]
        ['80 GB/s', '360 GB/s']
        """
        ranks, stride = mesh.size(axis), 1
        for name, size in reversed(mesh.axes):
            if name == axis:
                break
            stride *= size
        span = stride * ranks
        inner, level = 1, 0
        while self.links[level].devices < span and level + 1 < len(self.links):
            inner, level = self.links[level].devices, level + 1
        link = self.links[level]
        together = max(1, min(ranks, inner // stride))
        speed = link.bytes_per_s * together
        if together > 1:
            speed = min(speed, self.links[level - 1].bytes_per_s)
        return AxisLink(ranks, link.latency_s, speed, link.launch_s, link.emulated)


def _share(device: Device, ranks: int) -> Device:
    """Divide a host among ranks: a rank has a whole core at most, and its part of the memory."""
    part = min(1.0, device.cores / ranks)
    return replace(
        device,
        peak_flops={dtype: flops * part for dtype, flops in device.peak_flops.items()},
        bytes_per_s=device.bytes_per_s / ranks,
        memory_bytes=device.memory_bytes // ranks,
    )

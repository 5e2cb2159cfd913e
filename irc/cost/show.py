"""What the collectives of a mesh cost on a cluster, as a table for people."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from irc.cluster.links import COLLECTIVES
from irc.cluster.topology import Cluster
from irc.cost.collectives import chosen, lines
from irc.dialects.placement import Mesh

SIZES = (1 << 10, 1 << 20, 64 << 20, 1 << 30)


@dataclass(frozen=True)
class Cost:
    """What a collective takes.

    Attributes:
        kind: of collective.
        bytes: that a rank holds in full.
        seconds: that it takes.
        algorithm: that wins.
    """

    kind: str
    bytes: int
    seconds: float
    algorithm: str


@dataclass(frozen=True)
class Axis:
    """The collectives over an axis of a mesh.

    Attributes:
        axis: its name.
        ranks: along it.
        ring_bytes_per_s: of a ring through them.
        collectives: by kind, each at all of `SIZES`; none where there is one rank.
    """

    axis: str
    ranks: int
    ring_bytes_per_s: float
    collectives: tuple[Cost, ...]


def axis_costs(cluster: Cluster, mesh: Mesh) -> tuple[Axis, ...]:
    """Return what each collective takes over each axis of a mesh, by size.

    Raises:
        IrcError: ``mesh-mismatch``.
    """
    fitted, axes = cluster.fit(mesh), list[Axis]()
    for name in mesh.names:
        link, costs = fitted.axis_link(mesh, name), list[Cost]()
        for kind in COLLECTIVES:
            if not (choices := lines(kind, link, fitted.device.bytes_per_s)):
                continue
            for n in SIZES:
                line = chosen(choices, n)
                costs.append(Cost(kind, n, line.seconds(n), line.name))
        axes.append(Axis(name, link.ranks, link.bytes_per_s, tuple(costs)))
    return tuple(axes)


def axis_table(cluster: Cluster, mesh: Mesh) -> str:
    """Return the seconds of each collective over each axis by size, with the algorithm that wins.

    >>> from irc.cluster.presets import PRESETS
    >>> print(*axis_table(PRESETS["8xH100"], Mesh.parse("t=8")).splitlines()[2].split()[:4])
    all_reduce 18.2 us ring/LL

    Raises:
        IrcError: ``mesh-mismatch``.
    """
    rows = [f"{'':<18}" + "".join(f"{_size(n):>16}{'':<14}" for n in SIZES)]
    for axis in axis_costs(cluster, mesh):
        ring = f"a ring {axis.ring_bytes_per_s / 1e9:.4g} GB/s"
        rows.append(f"axis {axis.axis} ({axis.ranks} ranks), {ring}")
        for kind, costs in groupby(axis.collectives, key=lambda cost: cost.kind):
            texts = [f"{cost.seconds * 1e6:>13.1f} us {cost.algorithm:<16}" for cost in costs]
            rows.append(f"  {kind:<15}{''.join(texts)}".rstrip())
    return "\n".join(row.rstrip() for row in rows)


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if num_bytes >= size:
            return f"{num_bytes // size} {unit}"
    return f"{num_bytes // 1024} KiB"

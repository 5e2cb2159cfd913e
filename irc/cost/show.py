"""What the collectives of a mesh cost on a cluster, as a table for people."""

from __future__ import annotations

from irc.cluster.links import COLLECTIVES
from irc.cluster.topology import Cluster
from irc.cost.collectives import chosen, lines
from irc.dialects.placement import Mesh

SIZES = (1 << 10, 1 << 20, 64 << 20, 1 << 30)


def axis_table(cluster: Cluster, mesh: Mesh) -> str:
    """Return the seconds of each collective over each axis by size, with the algorithm that wins.

    >>> from irc.cluster.presets import PRESETS
    >>> print(*axis_table(PRESETS["8xH100"], Mesh.parse("t=8")).splitlines()[2].split()[:4])
    all_reduce 18.2 us ring/LL

    Raises:
        IrcError: ``mesh-mismatch``.
    """
    fitted = cluster.fit(mesh)
    rows = [f"{'':<18}" + "".join(f"{_size(n):>16}{'':<14}" for n in SIZES)]
    for axis in mesh.names:
        link = fitted.axis_link(mesh, axis)
        rows.append(f"axis {axis} ({link.ranks} ranks), a ring {link.bytes_per_s / 1e9:.4g} GB/s")
        for kind in COLLECTIVES:
            choices = lines(kind, link, fitted.device.bytes_per_s)
            if not choices:
                continue
            cells = [(chosen(choices, n), n) for n in SIZES]
            texts = [f"{line.seconds(n) * 1e6:>13.1f} us {line.name:<16}" for line, n in cells]
            rows.append(f"  {kind:<15}{''.join(texts)}".rstrip())
    return "\n".join(row.rstrip() for row in rows)


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if num_bytes >= size:
            return f"{num_bytes // size} {unit}"
    return f"{num_bytes // 1024} KiB"

"""What it takes to move a value between a device and its host's memory or disk."""

from __future__ import annotations

from irc.cluster.topology import Cluster
from irc.errors import IrcError

HOST, DISK = "host_gb_per_s", "disk_gb_per_s"


def move_seconds(cluster: Cluster, where: str, num_bytes: float) -> float:
    """Return the seconds of a move, one way, while all devices of a node move as much.

    What goes to a disk from a GPU goes through memory of its host.

    Args:
        cluster: as the ranks of the mesh see it (:meth:`irc.cluster.topology.Cluster.fit`).
        where: ``disk`` or ``host``.
        num_bytes: of the value.

    Raises:
        IrcError: ``cluster-invalid`` where the cluster does not say how fast that is.

    >>> from irc.cluster.presets import PRESETS
    >>> [f"{move_seconds(PRESETS['8xH100'], where, 2**30):.3f}" for where in ("host", "disk")]
    ['0.021', '0.395']
    """
    device = cluster.device
    speeds = {DISK: device.disk_bytes_per_s} if where == "disk" else {}
    if where == "host" or device.host_bytes_per_s:
        speeds[HOST] = device.host_bytes_per_s
    for key, speed in speeds.items():
        if not speed:
            raise IrcError(
                "cluster-invalid",
                f"cluster '{cluster.name}' does not say how fast values are moved to the {where}",
                help=f"give its devices {key}",
            )
    return sum(num_bytes / speed for speed in speeds.values())

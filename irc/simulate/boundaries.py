"""What a channel is to a simulation of a schedule: a transfer."""

from __future__ import annotations

from irc.cluster.topology import Cluster
from irc.cost.between import crossing, port_of
from irc.dialects.items import ITEM_BYTES
from irc.sharding.between import Channel
from irc.simulate.costs import Transfer


def transfer_of(channel: Channel, cluster: Cluster, slots: int | None = None) -> Transfer:
    """Return what a channel takes on a cluster, for all ranks of its two sides at once.

    >>> from irc.cluster.presets import PRESETS
    >>> from irc.dialects.placement import Mesh, Placement
    >>> from irc.sharding.between import Side
    >>> mesh = Mesh.parse("tensor=8")
    >>> sides = (Side(Placement.replicated(mesh.names), mesh, range(r, r + 8)) for r in (0, 8))
    >>> transfer_of(Channel((1024, 1024), "bf16", *sides), PRESETS["2x8xH100"]).num_bytes
    2097152
    """
    seconds, latency = crossing(channel, cluster)
    largest = max(side.largest(channel.shape) for side in (channel.before, channel.after))
    num_bytes = largest * ITEM_BYTES[channel.dtype]
    return Transfer(seconds, latency, num_bytes, slots, port_of(channel, cluster))

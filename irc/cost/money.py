"""What devices cost while they run: in the user's own money, and only where a price is given."""

from __future__ import annotations

from irc.cluster.topology import Cluster

HOUR_S = 3600.0


def per_hour(cluster: Cluster, devices: int, price_per_hour: float | None = None) -> float | None:
    """Return what the first devices of a cluster cost an hour; None where a price is missing.

    The processes of a host are on one device, which is the host.

    >>> from irc.cluster.presets import PRESETS
    >>> per_hour(PRESETS["2x8xH100"], 16, 2.5), per_hour(PRESETS["2x8xH100"], 16)
    (40.0, None)

    Args:
        cluster: whose file may state a price of each kind of device.
        devices: in use, in the order of ranks.
        price_per_hour: of each device, in the place of what the cluster states.
    """
    count = 1 if cluster.device.cores else devices
    if price_per_hour is not None:
        return count * price_per_hour
    kinds = cluster.unequal or ((cluster.device, count),)
    total = 0.0
    for device, held in kinds:
        used = min(held, count)
        count -= used
        if used and not device.price_per_hour:
            return None
        total += used * device.price_per_hour
    return total

"""What no plan of a model is faster than, so that a search can say how far its best may be off."""

from __future__ import annotations

from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.search.configurations import FORWARDS, NOTHING, Outline


def least_s(outline: Outline, cluster: Cluster, devices: int, *, is_training: bool) -> float:
    """Return what a step, or a call, takes at least: its products, on all devices at their peak.

    Nothing else is counted: no communication, no bubble, no launch, nothing that is computed again.
    Attention is not, either, of which kernels leave out what a mask hides.

    Args:
        outline: of the forward pass of the whole batch.
        cluster: the machines.
        devices: the most that are used.
        is_training: a step, in which backward takes two forward passes.

    >>> from irc.cluster.presets import PRESETS
    >>> small = Outline(2e15, "bf16", 1.0, 1.0, layers=2, samples=4, launches=1, product_flops=1e15)
    >>> eight = least_s(small, PRESETS["8xH100"], 8, is_training=True)
    >>> 0.3 < eight < 0.8, eight / least_s(small, PRESETS["8xH100"], 8, is_training=False)
    (True, 3.0)
    """
    times = FORWARDS[NOTHING] if is_training else 1.0
    return times * outline.product_flops / _peak(cluster, outline.dtype, devices)


def _peak(cluster: Cluster, dtype: str, devices: int) -> float:
    """Return the arithmetic of so many devices in a second: of unequal ones, of the fastest."""
    if cluster.unequal:
        every = [device.flops(dtype) for device, count in cluster.unequal for _ in range(count)]
        return sum(sorted(every, reverse=True)[:devices])
    mesh = Mesh((("data", devices),) if devices > 1 else ())
    return devices * cluster.fit(mesh).device.flops(dtype)

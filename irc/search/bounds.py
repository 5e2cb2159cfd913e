"""What no plan of a model is faster than, and what none holds less than.

By the former a search says how far its best may be off; by the latter it leaves alone what cannot
fit, without a plan of it.
"""

from __future__ import annotations

from math import ceil

from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.search.configurations import Configuration, Outline


def least_s(outline: Outline, cluster: Cluster, devices: int) -> float:
    """Return what a step, or a call, takes at least: its products, on all devices at their peak.

    Nothing else is counted: no communication, no bubble, no launch, nothing that is computed again.
    Attention is not, either, of which kernels leave out what a mask hides. Each product is at the
    peak of its dtype. Unequal devices may each compute the dtype that they are fastest at, so that
    of them the dtype counts alone whose products take longest.

    Args:
        outline: of the whole batch; of a step with the products of backward.
        cluster: the machines.
        devices: the most that are used.

    >>> from irc.cluster.presets import PRESETS
    >>> products = (("bf16", 3e15), ("f32", 1e12))
    >>> small = Outline(2e15, "bf16", 1.0, 1.0, layers=2, samples=4, launches=1, products=products)
    >>> 0.3 < least_s(small, PRESETS["8xH100"], 8) < 0.8
    True
    """
    each = (flops / _peak(cluster, dtype, devices) for dtype, flops in outline.products)
    return max(each, default=0.0) if cluster.unequal else sum(each)


def least_bytes(outline: Outline, configuration: Configuration) -> int:
    """Return what some rank of a plan holds at least: its part of parameters, states and sums.

    Each byte of them lies on one rank or on more, so that the rank that holds most holds the mean
    at least. Nothing else is counted: no activations, no padding, no replicas, and of a step in one
    micro-batch no gradients, each of which may be used as soon as it is there.

    Args:
        outline: of the whole batch.
        configuration: whose ranks and micro-batches count.

    >>> small = Outline(1.0, "f32", 8.0, 1.0, 2, 4, 1, stored_bytes=24.0, sums_bytes=8.0)
    >>> least_bytes(small, Configuration(Mesh.parse("data=4")))
    6
    >>> least_bytes(small, Configuration(Mesh.parse("data=4"), micro_batches=2))
    8
    """
    sums = outline.sums_bytes if configuration.micro_batches > 1 else 0.0
    return ceil((outline.stored_bytes + sums) / configuration.mesh.num_ranks)


def _peak(cluster: Cluster, dtype: str, devices: int) -> float:
    """Return the arithmetic of so many devices in a second: of unequal ones, of the fastest."""
    if cluster.unequal:
        every = [device.flops(dtype) for device, count in cluster.unequal for _ in range(count)]
        return sum(sorted(every, reverse=True)[:devices])
    mesh = Mesh((("data", devices),) if devices > 1 else ())
    return devices * cluster.fit(mesh).device.flops(dtype)

"""Whether a plan's kernels are for the devices that it is priced for."""

from __future__ import annotations

from irc.cluster.topology import Cluster

OF_GPUS = ("triton", "cuda")
"""Backends whose kernels are for GPUs; the cpu's are for the cores of a host."""


def kernels_note(backend: str, cluster: Cluster) -> str:
    """Return what a user is to know where kernels and prices are for different devices.

    >>> from irc.cluster.presets import PRESETS
    >>> kernels_note("cpu", PRESETS["2x8xH100"])[:48]
    'kernels are for CPUs, prices for H100-80GB-SXM; '
    >>> kernels_note("triton", PRESETS["2x8xH100"])
    ''

    Args:
        backend: what writes the kernels; of one that a plug-in brings nothing is known.
        cluster: the machines.
    """
    name = cluster.device.name
    if backend == "cpu" and not cluster.device.cores:
        return (
            f"kernels are for CPUs, prices for {name}; --backend triton or cuda writes kernels "
            "for GPUs"
        )
    if backend in OF_GPUS and cluster.device.cores:
        return f"kernels are for GPUs, prices for {name}, a CPU; --cluster names machines with GPUs"
    return ""

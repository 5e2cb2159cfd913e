"""Seconds of local work: the roofline with a floor for the launch (Williams et al. 2009)."""

from __future__ import annotations

from irc.cluster.topology import Device


def roofline_s(device: Device, *, flops: float, num_bytes: float, dtype: str) -> float:
    """Return the seconds of one kernel: arithmetic or memory, the longer of them, and the launch.

    T = max(flops / peak, bytes / bandwidth) + launch

    The launch is added, not a floor, so that less work is always cheaper and no choice is free.

    >>> device = Device("d", {"f32": 1e12}, bytes_per_s=1e11, memory_bytes=2**30, launch_s=1e-6)
    >>> seconds = roofline_s(device, flops=2e9, num_bytes=1e7, dtype="f32")
    >>> f"{seconds * 1e3:.3f} ms"  # 2 ms of arithmetic, 0.1 ms of memory
    '2.001 ms'
    """
    return max(flops / device.flops(dtype), num_bytes / device.bytes_per_s) + device.launch_s

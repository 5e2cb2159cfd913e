"""A device that computes, and what is left of it where processes share one host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from irc.cluster.interference import NO_INTERFERENCE, Interference, slowest_of


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
            The peaks are then those of one core, bandwidth and memory those of the host.
        host_bytes_per_s: between its memory and pinned memory of the host, each way; 0: not known,
            or its memory is the host's.
        disk_bytes_per_s: to and from a disk of its node while all devices of the node do that (of a
            host: what its ranks share); 0: not known.
        units: multiprocessors that the tiles of a product are handed to; 0: not known, and products
            of all shapes are taken to reach the peak.
        attention, attention_backward: parts of the peak that attention reaches, its exponentials
            counted; they count where ``units`` are known.
        interference: how much what runs at a time slows each other down; without rows, not at all.
            Of a host that is not known: its ranks share the cores.
        price_per_hour: of one device, in the user's own money; 0: not known.
        stated_flops: what its vendor states for dense products, by dtype, which MFU is a part of;
            empty: not known.
    """

    name: str
    peak_flops: Mapping[str, float]
    bytes_per_s: float
    memory_bytes: int
    launch_s: float
    cores: int = 0
    host_bytes_per_s: float = 0.0
    disk_bytes_per_s: float = 0.0
    interference: Interference = NO_INTERFERENCE
    units: int = 0
    attention: float = 1.0
    attention_backward: float = 1.0
    price_per_hour: float = 0.0
    stated_flops: Mapping[str, float] = field(default_factory=dict[str, float], compare=False)

    def flops(self, dtype: str) -> float:
        """Return the peak for a dtype; one that is not listed computes as float32.

        >>> device = Device("d", {"f32": 2e12, "bf16": 8e12}, 1e12, 2**34, 5e-6)
        >>> device.flops("bf16"), device.flops("i64")
        (8000000000000.0, 2000000000000.0)
        """
        return self.peak_flops.get(dtype, self.peak_flops["f32"])

    def threads(self, ranks: int) -> int:
        """Return the cores that one of several ranks of a host computes with: one at least."""
        return max(1, self.cores // ranks)

    def of_ranks(self, ranks: int, *, sharing: bool = True) -> Device:
        """Divide a host among ranks, each with its threads; another device is nobody else's.

        Args:
            ranks: processes on the host.
            sharing: count what the others take of the cores while they compute as well. Without
                it, this is one rank that runs while the others wait: a simulator shares by itself.

        >>> host = Device("h", {"f32": 1e9}, 10e9, 4 * 2**30, 1e-6, cores=4)
        >>> [host.of_ranks(n).flops("f32") / 1e9 for n in (1, 2, 3, 8)]
        [4.0, 2.0, 1.0, 0.5]
        >>> host.of_ranks(8, sharing=False).flops("f32") / 1e9
        1.0
        """
        if not self.cores:
            return self
        threads = self.threads(ranks)
        part = threads * (min(1.0, self.cores / (ranks * threads)) if sharing else 1.0)
        # One core cannot draw all that the memory gives, but two or three do.
        drawn = self.bytes_per_s / ranks if sharing else self.bytes_per_s
        return replace(
            self,
            peak_flops={dtype: flops * part for dtype, flops in self.peak_flops.items()},
            bytes_per_s=drawn,
            memory_bytes=self.memory_bytes // ranks,
            disk_bytes_per_s=self.disk_bytes_per_s / ranks,
        )


def slowest(devices: Sequence[Device]) -> Device:
    """Return what an even split over unequal devices runs at: the worst figure of each kind.

    >>> fast = Device("fast", {"f32": 2e12, "bf16": 8e12}, 1e12, 80, 5e-6)
    >>> large = Device("large", {"f32": 1e12}, 2e12, 96, 7e-6)
    >>> both = slowest([fast, large])
    >>> both.name, both.flops("bf16"), both.bytes_per_s, both.memory_bytes, both.launch_s
    ('fast + large', 1000000000000.0, 1000000000000.0, 80, 7e-06)
    """
    if len({id(device) for device in devices}) == 1:
        return devices[0]
    dtypes = dict.fromkeys(dtype for device in devices for dtype in device.peak_flops)
    return Device(
        " + ".join(dict.fromkeys(device.name for device in devices)),
        {dtype: min(device.flops(dtype) for device in devices) for dtype in dtypes},
        min(device.bytes_per_s for device in devices),
        min(device.memory_bytes for device in devices),
        max(device.launch_s for device in devices),
        min(device.cores for device in devices),
        min(device.host_bytes_per_s for device in devices),
        min(device.disk_bytes_per_s for device in devices),
        slowest_of([device.interference for device in devices]),
        min(device.units for device in devices),
        min(device.attention for device in devices),
        min(device.attention_backward for device in devices),
    )

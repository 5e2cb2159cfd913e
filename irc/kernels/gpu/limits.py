"""What limits a kernel on a GPU: the figures that schedules are checked and ranked by.

From NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and the
data sheets of the A100 SXM 80 GB, the H100 SXM and the B200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REGISTERS = 65536
"""Registers of a multiprocessor, the same on all targets here."""
THREADS = 2048
"""Threads of a multiprocessor."""
MAX_REGISTERS = 255
"""Registers of one thread."""


@dataclass(frozen=True)
class Gpu:
    """One target.

    Attributes:
        name: ``sm_90``.
        multiprocessors: of the device.
        block_bytes: of shared memory that one block may have.
        shared_bytes: of shared memory that the blocks of a multiprocessor have together.
        peak_flops: operations per second, dense, by the dtype of the operands (``tf32`` beside
            ``f32``, which is the plain rate).
        bytes_per_s: of the device's memory.
        cache_bytes_per_s: of its L2 cache: 64 bytes a clock for each multiprocessor, 0.7 of it.
    """

    name: str
    multiprocessors: int
    block_bytes: int
    shared_bytes: int
    peak_flops: Mapping[str, float]
    bytes_per_s: float
    cache_bytes_per_s: float

    @property
    def arch(self) -> int:
        """The compute capability as a number: 90 for 9.0."""
        return int(self.name.removeprefix("sm_"))

    def flops(self, dtype: str) -> float:
        """Return the peak for operands of a dtype; integers multiply on the plain units."""
        return self.peak_flops.get(dtype, self.peak_flops["f32"])


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "sm_80", 108, 163 * 1024, 164 * 1024,
            {"f16": 312e12, "bf16": 312e12, "tf32": 156e12, "f32": 19.5e12, "f64": 19.5e12},
            2.039e12, 6.8e12,
        ),
        Gpu(
            "sm_90", 132, 227 * 1024, 228 * 1024,
            {"f16": 989e12, "bf16": 989e12, "tf32": 494e12, "f32": 67e12, "f64": 67e12},
            3.35e12, 10e12,
        ),
        Gpu(
            "sm_100", 148, 227 * 1024, 228 * 1024,
            {"f16": 2250e12, "bf16": 2250e12, "tf32": 1125e12, "f32": 75e12, "f64": 37e12},
            7.7e12, 12.6e12,
        ),
    )
}  # fmt: skip


def gpu(target: str) -> Gpu:
    """Return the limits of a target.

    >>> gpu("sm_90").multiprocessors
    132
    """
    return GPUS[target]

"""What the CPU can do, as far as generated code depends on it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import llvmlite.binding as llvm

from irc.cluster.host import USUAL_SECOND_CACHE, second_cache_bytes
from irc.runtime.native.processor import permit_tiles

ROOMY = 2 << 20
"""Bytes from which a second cache is :attr:`Features.roomy`."""


@dataclass(frozen=True)
class Features:
    """The instruction set that kernels are written for: their lanes, register tiles and tails.

    LLVM splits vectors that a machine does not have, and knows no other way for instructions that
    kernels name: what is written for more than a processor has does not run there
    (:meth:`runs_on`).

    Attributes:
        vector_bytes: the width of a vector register.
        masked: tails are masked vectors (AVX-512), not scalar loops.
        fma: fused multiply-add is one instruction.
        half: float16 converts in hardware.
        cpu: the processor name for LLVM.
        flags: the feature string for LLVM.
        second_cache: bytes of a core's second cache.
    """

    vector_bytes: int
    masked: bool
    fma: bool
    half: bool
    cpu: str
    flags: str = ""
    second_cache: int = USUAL_SECOND_CACHE

    @property
    def float_lanes(self) -> int:
        """How many float32 fit in a register."""
        return self.vector_bytes // 4

    @property
    def dot_bf16(self) -> bool:
        """True where dot products of pairs of bfloat16 are one instruction (AVX512-BF16)."""
        return "+avx512bf16" in self.flags.split(",")

    @property
    def tiles(self) -> bool:
        """True where there are tile registers for bfloat16 and bytes (AMX)."""
        return {"+amx-tile", "+amx-bf16", "+amx-int8"} <= set(self.flags.split(","))

    @property
    def roomy(self) -> bool:
        """True where rows of A stay in the second cache beside a panel of B.

        So it is in Intel's servers, whose last cache is a mesh, and slow: a core that waits for it
        loses more than what it costs to fetch ahead.
        """
        return self.second_cache >= ROOMY

    @property
    def avx512(self) -> bool:
        """True where instructions of AVX-512 are there."""
        return self.masked or "+avx512f" in self.flags.split(",")

    def runs_on(self, machine: Features) -> bool:
        """Return whether a processor with a machine's features has all of these.

        >>> AVX2.runs_on(AVX512), AVX512.runs_on(AVX2)
        (True, False)
        """
        names = ("fma", "half", "avx512", "dot_bf16", "tiles")
        return all(getattr(machine, name) for name in names if getattr(self, name))

    @property
    def registers(self) -> int:
        """How many vector registers there are: on x86, 16 but with AVX-512.

        >>> AVX2.registers, AVX512.registers
        (16, 32)
        """
        x86 = self.cpu.startswith("x86-64") or "+sse2" in self.flags.split(",")
        return 16 if x86 and not self.masked else 32


AVX512 = Features(64, masked=True, fma=True, half=True, cpu="x86-64-v4")
AVX2 = Features(32, masked=False, fma=True, half=True, cpu="x86-64-v3")
BASELINE = Features(16, masked=False, fma=False, half=False, cpu="x86-64")


@functools.cache
def host() -> Features:
    """Return the features of this machine."""
    flags = llvm.get_host_cpu_features()
    cpu, text = llvm.get_host_cpu_name(), flags.flatten()
    second = second_cache_bytes()
    if "+amx-tile" in text and not permit_tiles():
        text = ",".join(part for part in text.split(",") if not part.startswith("+amx"))
    if all(flags.get(f) for f in ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "f16c")):
        return Features(
            64, masked=True, fma=True, half=True, cpu=cpu, flags=text, second_cache=second
        )
    if flags.get("avx2") and flags.get("fma") and flags.get("f16c"):
        return Features(
            32, masked=False, fma=True, half=True, cpu=cpu, flags=text, second_cache=second
        )
    neon = bool(flags.get("neon"))
    return Features(16, masked=False, fma=neon, half=neon, cpu=cpu, flags=text, second_cache=second)

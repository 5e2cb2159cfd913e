"""Kernels as LLVM IR, compiled in process by llvmlite."""

from irc.backends.cpu.backend import CpuBackend
from irc.backends.cpu.emit import KernelInfo, emit, info_of
from irc.backends.cpu.features import Features, host
from irc.backends.cpu.segment import (
    KernelCall,
    Segment,
    compile_read,
    compile_segment,
    load_segment,
)

__all__ = [
    "CpuBackend",
    "Features",
    "KernelCall",
    "KernelInfo",
    "Segment",
    "compile_read",
    "compile_segment",
    "emit",
    "host",
    "info_of",
    "load_segment",
]

"""Object code of several LLVM modules, generated side by side.

Code generation is most of what kernels take to compile, and LLVM lets threads do it at once where
they share neither a context nor a machine (LLVM Programmer's Manual, "Threads and LLVM"). llvmlite
holds one lock over all of its calls; the one call that takes long is made without it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from irc.cluster.host import num_cores

Job: TypeAlias = tuple[llvm.ModuleRef, llvm.TargetMachine]
"""A module in a context of its own, and a machine that no other job has."""


def emit_objects(jobs: Sequence[Job]) -> list[bytes]:
    """Return the object code of modules, in order.

    Raises:
        RuntimeError: LLVM's words, where it cannot generate code.
    """
    if len(jobs) <= 1:
        return [machine.emit_object(module) for module, machine in jobs]
    with ThreadPoolExecutor(min(len(jobs), num_cores())) as pool:
        return list(pool.map(lambda job: _object_of(*job), jobs))


@functools.cache
def _emit() -> Callable[..., Any]:
    """Return llvmlite's function as the library has it, which no lock guards."""
    guarded = ffi.lib.LLVMPY_TargetMachineEmitToMemory
    emit = ctypes.CDLL(ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
    emit.argtypes, emit.restype = guarded.argtypes, guarded.restype
    return emit


def _object_of(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> bytes:
    with ffi.OutputString() as error:
        buffer = _emit()(machine, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
    try:
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)

"""The OpenMP runtime whose threads kernels share with torch.

One pool for both: two would fight for the cores. After a fork the pool's threads are gone and
entering it would hang, so a forked child runs kernels on one thread.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
import os
from pathlib import Path

from irc.errors import IrcError
from irc.runtime.native.entry import refresh_entries

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True
    refresh_entries()


os.register_at_fork(after_in_child=_after_fork)


def is_forked() -> bool:
    """True in a child process made by fork."""
    return _forked


@functools.cache
def functions() -> tuple[int, int, int]:
    """Return the addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads.

    Raises:
        IrcError: ``openmp-missing`` where there is no libgomp.
    """
    library = ctypes.CDLL(_library())
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    one, two, three = (
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names
    )
    return one, two, three


def _library() -> str:
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for parent in (Path(folder) / "lib", Path(folder).parent / "torch.libs"):
            for path in sorted(parent.glob("libgomp*.so*")):
                return str(path)
    if name := ctypes.util.find_library("gomp"):
        return name
    raise IrcError(
        "openmp-missing",
        "no OpenMP runtime (libgomp) was found for kernels on several threads",
        help="install libgomp, or a torch that brings it, or run with one thread",
    )

"""The processors that a process may run on, also where OpenMP has bound its threads to some.

With ``OMP_PROC_BIND``, ``OMP_PLACES`` or ``GOMP_CPU_AFFINITY`` set, an OpenMP runtime binds the
thread that loads it to the first of its *places* (a core, unless told otherwise), and its own
threads to the others. Whatever that thread starts, threads and processes, inherits its one place.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
"""Variables that make an OpenMP runtime bind threads when it is loaded."""


def usable_cpus() -> frozenset[int]:
    """Return the processors that this process may run on, by Linux's numbers.

    They are those of the calling thread, or where OpenMP has bound it to one place, those of all
    places.

    Raises:
        AttributeError: the system has no affinity of threads.
    """
    own = frozenset(os.sched_getaffinity(0))
    places = _places()
    return own.union(*places) if own in places else own


def use_all_cpus() -> None:
    """Let the calling thread run on all of :func:`usable_cpus`."""
    if _may_be_bound():
        # Where the system has taken them away meanwhile, the thread stays where it is.
        with suppress(OSError):
            os.sched_setaffinity(0, usable_cpus())


@contextmanager
def on_all_cpus() -> Generator[None]:
    """Let the calling thread, and what it starts meanwhile, run on all of :func:`usable_cpus`."""
    before = os.sched_getaffinity(0) if _may_be_bound() else None
    use_all_cpus()
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def _may_be_bound() -> bool:
    return hasattr(os, "sched_setaffinity") and any(map(os.environ.get, BINDING))


def _places() -> list[frozenset[int]]:
    """Return the processors of each place of GNU's runtime; none where it is not there or unbound.

    Asking for the *calling* thread's place would bind it, so that is not asked.
    """
    if not _may_be_bound():
        return []
    try:
        # What is loaded already, and nothing else: loading it binds.
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
        count, size, read = (
            getattr(library, f"omp_get_{name}")
            for name in ("num_places", "place_num_procs", "place_proc_ids")
        )
    except (AttributeError, OSError):  # it is not loaded, or older than OpenMP 4.5
        return []
    places: list[frozenset[int]] = []
    for place in range(count()):
        numbers = (ctypes.c_int * size(place))()
        read(place, numbers)
        places.append(frozenset(numbers))
    return places

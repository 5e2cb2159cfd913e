"""The processors that a process may run on, also where OpenMP has bound its threads to some.

With ``OMP_PROC_BIND``, ``OMP_PLACES`` or ``GOMP_CPU_AFFINITY`` set, an OpenMP runtime binds the
thread that loads it to the first of its *places* (a core, unless told otherwise), and its own
threads to the others. Whatever that thread starts, threads and processes, inherits its one place.

The ranks of one machine divide its processors: :func:`cpus_of_rank`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
"""Variables that make an OpenMP runtime bind threads when it is loaded."""

_TOPOLOGY = Path("/sys/devices/system/cpu")


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


def cpus_of_rank(rank: int, ranks: int) -> frozenset[int]:
    """Return the processors of one of some ranks that divide :func:`usable_cpus`.

    The threads of a core stay together, and the cores of a socket. Where there are more ranks than
    processors, neighbouring ranks have the same one.

    Args:
        rank: of this process, among those of its machine.
        ranks: how many its machine has.

    Raises:
        AttributeError: the system has no affinity of threads.
    """
    return frozenset(part_of_cpus(sorted(usable_cpus(), key=_where), rank, ranks))


def bind_crowded(rank: int, ranks: int) -> None:
    """Bind the calling thread, and what it starts, to one processor if there are more ranks.

    A rank has no second processor to go to then, but where it is moved it meets other peers: four
    ranks on two processors, with 44 sums in a step of 160 ms, take 125 bound. Where each has one
    to itself, it stays free to leave it to other programs.

    Args:
        rank: of this process, among those of its machine.
        ranks: how many its machine has.
    """
    if not hasattr(os, "sched_setaffinity") or ranks <= len(usable_cpus()):
        return
    # Where the system has taken it away meanwhile, the thread stays where it is.
    with suppress(OSError):
        os.sched_setaffinity(0, cpus_of_rank(rank, ranks))


def part_of_cpus(cpus: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    """Return the processors of one rank, of those that all divide.

    >>> part_of_cpus([0, 4, 1, 5], 1, 2), part_of_cpus([0, 1], 2, 4), part_of_cpus([0, 1, 2], 0, 2)
    ([1, 5], [1], [0])
    """
    first, end = (place * len(cpus) // ranks for place in (rank, rank + 1))
    return cpus[first : max(end, first + 1)]


def _where(cpu: int) -> tuple[int, int, int]:
    """Return the socket of a processor, the first thread of its core, and its own number."""
    folder = _TOPOLOGY / f"cpu{cpu}" / "topology"
    try:
        socket = int((folder / "physical_package_id").read_text("ascii"))
        siblings = (folder / "thread_siblings_list").read_text("ascii")
        return socket, int(siblings.replace("-", ",").split(",")[0]), cpu
    except (OSError, ValueError):  # a container that hides it
        return 0, cpu, cpu


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

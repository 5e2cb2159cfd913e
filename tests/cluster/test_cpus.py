"""Where OpenMP binds its threads, those of irc and its processes may run on all that there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from irc.cluster import cpus
from irc.cluster.cpus import bind_crowded, cpus_of_rank, usable_cpus, use_all_cpus
from irc.runtime.network_threads import local_place

PROGRAM = """
import ctypes, json, os, sys, threading
from irc.backends.cpu import openmp
from irc.cluster.cpus import on_all_cpus
from irc.cluster.host import num_cores
from irc.runtime.native.pool import Pool
from irc.runtime.shared_jobs import share

before = num_cores()
openmp.functions()
seen = {}
asked = threading.Event()

def worker(address, number, spins):
    seen["pool"] = sorted(os.sched_getaffinity(0))
    asked.set()

Pool().want(2, worker)
asked.wait()
done = threading.Event()
def beside():
    seen["shared job"] = sorted(os.sched_getaffinity(0))
    done.set()
share([done.wait, beside], 2)
with on_all_cpus():
    seen["process"] = sorted(os.sched_getaffinity(0))
seen["caller"] = sorted(os.sched_getaffinity(0))
print(json.dumps({"cores": [before, num_cores()], **seen}))
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="there is one processor, or no affinity",
)
@pytest.mark.parametrize("how", ["OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_what_a_bound_thread_starts_runs_anywhere(how: str) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    # Two listed processors of all: the others are not taken either.
    listed = cpus[-2:] if how == "GOMP_CPU_AFFINITY" else cpus
    values = {"OMP_PLACES": "threads", "GOMP_CPU_AFFINITY": " ".join(map(str, listed))}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"OMP_PROC_BIND": "true", how: values[how]},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told.pop("caller") == listed[:1]  # else nothing was bound, and nothing is shown
    assert told.pop("cores") == [len(cpus), len(listed)]
    assert told == dict.fromkeys(("pool", "shared job", "process"), listed)


def test_a_thread_that_was_not_bound_by_openmp_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "true")  # too late: the runtime has read it, if it is there
    before = os.sched_getaffinity(0)
    use_all_cpus()
    assert os.sched_getaffinity(0) == before == usable_cpus()


def test_ranks_divide_the_processors_core_by_core(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four cores of two threads, as Linux numbers them: the second threads behind all first ones.
    def where(cpu: int) -> tuple[int, int, int]:
        return 0, cpu % 4, cpu

    monkeypatch.setattr(cpus, "usable_cpus", lambda: frozenset(range(8)))
    monkeypatch.setattr(cpus, "_where", where)
    assert [sorted(cpus_of_rank(rank, 4)) for rank in range(4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [sorted(cpus_of_rank(rank, 3)) for rank in range(3)] == [[0, 4], [1, 2, 5], [3, 6, 7]]
    assert [*map(min, (cpus_of_rank(rank, 16) for rank in (0, 1, 2, 15)))] == [0, 0, 4, 7]


def test_only_ranks_without_a_processor_to_themselves_are_bound() -> None:
    before = os.sched_getaffinity(0)
    try:
        bind_crowded(0, len(before))
        assert os.sched_getaffinity(0) == before
        own = cpus_of_rank(1, 2 * len(before))
        bind_crowded(1, 2 * len(before))
        assert os.sched_getaffinity(0) == own <= before
        assert len(own) == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (1, 2)),
        ({"LOCAL_WORLD_SIZE": "2"}, None),  # all ranks took the part of the first one
        ({"LOCAL_RANK": "1"}, None),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, None),
        ({"RANK": "3", "WORLD_SIZE": "4"}, None),
    ],
)
def test_only_ranks_that_a_launcher_places_divide_a_machine(
    words: dict[str, str], place: tuple[int, int] | None
) -> None:
    assert local_place(words) == place

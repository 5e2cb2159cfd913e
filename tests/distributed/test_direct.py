"""Processes of a host gather, reduce and scatter directly, and have the numbers of a library."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from irc.cluster.cpus import cpus_of_rank, usable_cpus
from irc.cluster.links import DIRECT_RANKS
from tests.distributed.test_loop import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


@pytest.mark.parametrize("world", [2, 4])
def test_collectives_have_the_numbers_of_all_ranks(tmp_path: Path, world: int) -> None:
    for rank in run_ranks(tmp_path, world, "tests.distributed.direct_program"):
        assert rank == right([True, True], [sys.platform == "linux"] * 2)


def right(direct: list[bool], shared: list[bool]) -> dict[str, object]:
    """Return what a rank says: of the world, and of its pair, which way collectives go."""
    return {"wrong": [], "direct": direct, "shared": shared, "ended": True}


def test_ranks_gather_by_messages_where_one_can_share_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_MEMORY", "1")
    ranks = run_ranks(tmp_path, 4, "tests.distributed.direct_program")
    pairs = [[False, False]] * 2 + [[False, sys.platform == "linux"]] * 2
    assert ranks == [right([True, True], shared) for shared in pairs]


@pytest.mark.slow
def test_many_go_around_a_ring(tmp_path: Path) -> None:
    for rank in run_ranks(tmp_path, DIRECT_RANKS + 2, "tests.distributed.direct_program"):
        assert rank == right([False, True], [False, sys.platform == "linux"])


def test_ranks_that_torch_watches_ask_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    for rank in run_ranks(tmp_path, 2, "tests.distributed.direct_program"):
        assert rank == right([False, False], [False, False])


@pytest.mark.skipif(sys.platform != "linux", reason="a policy of Linux")
@pytest.mark.skipif(torch.__version__ < "2.13", reason="gloo's threads have no names")
def test_threads_of_all_groups_let_those_that_compute_run_first(tmp_path: Path) -> None:
    cpus = sorted(usable_cpus())
    answers = run_ranks(tmp_path, 4, "tests.distributed.deferring_program")
    for rank, (states, own) in enumerate(answers):
        # The whole group, those of an axis, and those of torch's mesh.
        assert [len(each) for each in states] == sorted({len(each) for each in states})
        here = sorted(cpus_of_rank(rank, 4))
        assert all(thread == [os.SCHED_BATCH, here] for each in states for thread in each)
        assert own == [os.SCHED_OTHER, cpus]

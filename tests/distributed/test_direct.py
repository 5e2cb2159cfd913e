"""Processes of a host gather, reduce and scatter directly, and have the numbers of a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from irc.cluster.links import DIRECT_RANKS
from tests.distributed.test_loop import run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


@pytest.mark.parametrize("world", [2, 4])
def test_collectives_have_the_numbers_of_all_ranks(tmp_path: Path, world: int) -> None:
    for rank in run_ranks(tmp_path, world, "tests.distributed.direct_program"):
        assert rank == {"wrong": [], "direct": [True, True], "ended": True}


@pytest.mark.slow
def test_many_go_around_a_ring(tmp_path: Path) -> None:
    for rank in run_ranks(tmp_path, DIRECT_RANKS + 2, "tests.distributed.direct_program"):
        assert rank == {"wrong": [], "direct": [False, True], "ended": True}


def test_ranks_that_torch_watches_ask_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    for rank in run_ranks(tmp_path, 2, "tests.distributed.direct_program"):
        assert rank == {"wrong": [], "direct": [False, False], "ended": True}

"""Notices in shared memory: read whole or not at all, and for a while."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from irc.runtime import notices
from irc.runtime.notices import NOTICES, PATIENCE_S, Notices, may_look


@pytest.fixture
def both() -> list[Notices]:
    memory = [torch.zeros(4096, dtype=torch.uint8) for _ in range(2)]
    return [Notices(rank, memory, 4) for rank in range(2)]


def test_a_rank_sees_what_all_show(both: list[Notices]) -> None:
    for number in range(3 * NOTICES):
        for rank, each in enumerate(both):
            each.show([number, 10 * number, rank, -1])
        for each in both:
            assert each.look(number) == [[number, 10 * number, rank, -1] for rank in range(2)]


def test_what_is_not_shown_is_waited_for_a_while(both: list[Notices]) -> None:
    both[0].show([0, 1, 2, 3])
    start = time.perf_counter()
    assert both[0].look(0) is None
    assert PATIENCE_S <= time.perf_counter() - start < 100 * PATIENCE_S


def test_what_a_later_one_replaced_is_not_seen(both: list[Notices]) -> None:
    for number in range(NOTICES + 1):
        both[1].show([number, 1, 2, 3])
    both[0].show([0, 1, 2, 3])
    assert both[0].look(0) is None
    both[0].show([1, 1, 2, 3])
    assert both[0].look(1) is not None


def test_no_row_is_seen_half(both: list[Notices]) -> None:
    """Neither the one that is being written nor the one that it replaces."""
    for number in range(NOTICES):
        for each in both:
            each.show([number] * 4)
    seen: list[object] = []

    class Row(list[int]):
        def __getitem__(self, place: Any) -> Any:
            return halfway() if isinstance(place, slice) else NOTICES

    def halfway() -> Iterator[int]:
        yield NOTICES
        seen.append(both[0].look(0))
        both[0].show([NOTICES] * 4)
        seen.append(both[0].look(NOTICES))
        yield from (NOTICES, NOTICES)

    both[1].show(Row())
    assert seen == [None, None]
    assert both[0].look(NOTICES) == [[NOTICES] * 4] * 2


def test_ranks_that_share_cores_do_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "usable_cpus", lambda: frozenset({0, 1}))
    can = sys.platform == "linux" and platform.machine() == "x86_64"
    assert may_look(2, {}) is can
    assert may_look(2, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}) is can
    assert not may_look(3, {})
    assert not may_look(2, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"})
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not may_look(2, {})

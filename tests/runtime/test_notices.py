"""Notices in shared memory: none is replaced before all ranks have read it, and none is lost."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from irc.runtime import notices
from irc.runtime.notices import (
    LOOK_S,
    NOTICES,
    PATIENCE_S,
    Notices,
    can_look,
    num_bytes,
    patience_s,
)

LENGTH = 4


class LostError(Exception):
    """A peer does not come."""


def lost(waited_s: float) -> None:
    assert waited_s > LOOK_S
    raise LostError


def unread() -> None:
    """Read nothing meanwhile."""


@pytest.fixture
def both() -> list[Notices]:
    memory = [torch.zeros(num_bytes(LENGTH), dtype=torch.uint8) for _ in range(2)]
    return [Notices(rank, memory, LENGTH, PATIENCE_S, lost) for rank in range(2)]


def test_a_rank_sees_what_all_show(both: list[Notices]) -> None:
    assert both[0].newest(1) is None
    for number in range(3 * NOTICES):
        for rank, each in enumerate(both):
            each.show([number, 10 * number, rank, -1], unread)
        for each in both:
            each.await_all(number, unread)
            assert each.rows(number) == [[number, 10 * number, rank, -1] for rank in range(2)]
            assert each.newest(0) == [number, 10 * number, 0, -1]
            each.have_read([])


def test_one_that_waits_for_ever_asks_whether_its_peer_is_there(both: list[Notices]) -> None:
    both[0].show([0, 1, 2, 3], unread)
    with pytest.raises(LostError):
        both[0].await_all(0, unread)


def test_what_a_peer_has_not_read_is_not_replaced(both: list[Notices]) -> None:
    for number in range(NOTICES):
        both[1].show([number] * LENGTH, unread)
    with pytest.raises(LostError):
        both[1].show([NOTICES] * LENGTH, unread)
    for number in range(NOTICES):
        both[0].show([number] * LENGTH, unread)
        assert both[0].rows(number) == [[number] * LENGTH] * 2
    both[0].have_read([NOTICES - 1])
    for number in range(NOTICES, 2 * NOTICES - 1):
        both[1].show([number] * LENGTH, unread)
    with pytest.raises(LostError):
        both[1].show([2 * NOTICES - 1] * LENGTH, unread)
    assert both[0].rows(NOTICES - 1) == [[NOTICES - 1] * LENGTH] * 2


def read_while_waiting(
    both: list[Notices], monkeypatch: pytest.MonkeyPatch, steps: Callable[[], None]
) -> None:
    """Have rank 0 show more than there is room for, all open; rank 1 takes steps while it naps."""
    naps: list[float] = []

    def nap(seconds: float) -> None:
        if not naps:
            steps()
        naps.append(seconds)

    monkeypatch.setattr(notices.time, "sleep", nap)
    still_open: set[int] = set()
    for number in range(NOTICES + 1):
        still_open.add(number)
        both[0].have_read(still_open)
        both[0].show([number, 10 * number, 0, 7], lambda: both[0].have_read(still_open))
    assert naps


def test_an_open_row_of_ones_own_is_copied_before_it_is_replaced(
    both: list[Notices], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the peer shows its own, and has read, while this rank naps."""

    def steps() -> None:
        both[1].show([0, 0, 1, 7], unread)
        both[1].have_read([])

    read_while_waiting(both, monkeypatch, steps)
    both[0].await_all(0, unread)
    assert both[0].rows(0) == [[0, 0, 0, 7], [0, 0, 1, 7]]


def test_one_that_is_behind_waits_for_nobody(
    both: list[Notices], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the rank that is ahead does something else, and looks no more."""

    def steps() -> None:
        for number in range(33):
            both[1].show([number, 0, 1, 7], unread)
        both[1].have_read(range(33))

    read_while_waiting(both, monkeypatch, steps)
    for number in range(33, NOTICES + 1):
        both[1].have_read(range(number))
        both[1].show([number, 0, 1, 7], lambda number=number: both[1].have_read(range(number)))


def test_a_peer_may_end_when_it_has_shown() -> None:
    """Between a look for its notice and one whether it is there."""
    memory = [torch.zeros(num_bytes(LENGTH), dtype=torch.uint8) for _ in range(2)]
    peer = Notices(1, memory, LENGTH, 0.0, lost)

    def ends(waited_s: float) -> None:
        peer.show([0, 1, 1, 7], unread)
        raise LostError

    own = Notices(0, memory, LENGTH, 0.0, ends)
    own.show([0, 1, 0, 7], unread)
    own.await_all(0, unread)
    assert own.rows(0)[1] == [0, 1, 1, 7]


def test_a_peer_that_left_is_lost() -> None:
    memory = [torch.zeros(num_bytes(LENGTH), dtype=torch.uint8) for _ in range(2)]
    own, peer = (Notices(rank, memory, LENGTH, 0.0, lambda waited_s: None) for rank in range(2))
    for each in (own, peer):
        each.show([0, 1, 0, 7], unread)
    peer.leave()
    own.await_all(0, unread)
    own.show([1, 1, 0, 7], unread)
    with pytest.raises(RuntimeError, match=r"gloo. Connection closed by peer"):
        own.await_all(1, unread)


def test_what_is_open_for_long_is_copied(both: list[Notices]) -> None:
    for number in range(5 * NOTICES):
        for each in both:
            each.show([number] * LENGTH, lambda: None)
            each.have_read([2, number])
    assert both[0].rows(2) == [[2] * LENGTH] * 2
    both[0].forget(2)
    assert both[0].rows(2) != [[2] * LENGTH] * 2


def test_ranks_of_their_own_pace_lose_nothing() -> None:
    """Each a thread, which leaves some open for longer than there are notices."""
    memory = [torch.zeros(num_bytes(LENGTH), dtype=torch.uint8) for _ in range(3)]
    wrong: list[object] = []

    def run(rank: int) -> None:
        def fail(waited_s: float) -> None:
            if waited_s > 60:
                raise LostError

        own = Notices(rank, memory, LENGTH, PATIENCE_S, fail)
        still_open: set[int] = set()

        def read_on() -> None:
            own.have_read(still_open)

        for number in range(20 * NOTICES):
            still_open.add(number)
            own.show([number, rank, number * rank, 7], read_on)
            read_on()
            ended = number - (rank * 5 if number % 50 else 3 * NOTICES)
            if ended in still_open:
                own.await_all(ended, read_on)
                if own.rows(ended) != [[ended, each, ended * each, 7] for each in range(3)]:
                    wrong.append((rank, ended, own.rows(ended)))
                still_open.remove(ended)
                own.forget(ended)
            read_on()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    seen = Notices(0, memory, LENGTH, PATIENCE_S, lost)
    assert [seen.newest(rank) for rank in range(3)] == [
        [20 * NOTICES - 1, rank, (20 * NOTICES - 1) * rank, 7] for rank in range(3)
    ]


def test_ranks_that_share_cores_nap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "usable_cpus", lambda: frozenset({0, 1}))
    assert patience_s(2, {}) == PATIENCE_S
    assert patience_s(2, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}) == PATIENCE_S
    assert patience_s(3, {}) == 0
    assert patience_s(2, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}) == 0


def test_other_processors_have_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_look() is (sys.platform == "linux" and platform.machine() == "x86_64")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not can_look()

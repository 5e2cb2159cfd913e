"""Memory that ranks share: written again once all have read it, and no sooner."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from irc.errors import IrcError
from irc.runtime import shared_parts
from irc.runtime.shared_parts import Delivery, SharedParts

SIZE = 1 << 16


class Network:
    """Messages of some ranks of one process, in the order in which they were sent."""

    def __init__(self) -> None:
        self.sent: defaultdict[tuple[int, int], list[torch.Tensor]] = defaultdict(list)


class Received:
    """A message that comes to the place of its turn, whichever is waited for first."""

    def __init__(self, into: torch.Tensor, sent: list[torch.Tensor], turn: int) -> None:
        self._into, self._sent, self._turn = into, sent, turn

    def wait(self) -> None:
        self._into.copy_(self._sent[self._turn])


class Sent:
    """A message that has been sent."""

    def wait(self) -> None: ...


class Group:
    """What torch's group of processes does for one rank."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network, self._rank = network, rank
        self._turns = Counter[int]()

    def rank(self) -> int:
        return self._rank

    def recv(self, tensors: list[torch.Tensor], peer: int, _tag: int) -> Received:
        turn = self._turns[peer]
        self._turns[peer] += 1
        return Received(tensors[0], self.network.sent[peer, self._rank], turn)

    def send(self, tensors: list[torch.Tensor], peer: int, _tag: int) -> Sent:
        self.network.sent[self._rank, peer].append(tensors[0].clone())
        return Sent()


class Rank:
    """One of the ranks, which notes what it takes."""

    def __init__(self, network: Network, rank: int, memory: list[torch.Tensor]) -> None:
        self.group: Any = Group(network, rank)
        self.parts = SharedParts(self.group, memory)
        self.got: list[tuple[int, float]] = []

    def begin(self, value: float, count: int = 5000) -> Callable[[], None]:
        """Give a number so many times; return what waits and notes what came."""

        def take(peer: int, received: torch.Tensor) -> None:
            numbers = received.view(torch.float32)
            assert bool((numbers == numbers[0]).all())
            self.got.append((peer, float(numbers[0])))

        delivery: Delivery = self.parts.begin(self.group, [torch.full((count,), value)], take)

        def wait() -> None:
            for work in delivery.works:
                work.wait()
            delivery.take()

        return wait


@pytest.fixture
def ranks() -> list[Rank]:
    network, memory = Network(), [torch.zeros(SIZE, dtype=torch.uint8) for _ in range(3)]
    return [Rank(network, rank, memory) for rank in range(3)]


def test_memory_is_written_again_once_all_have_read_it(ranks: list[Rank]) -> None:
    # Of 20,000 bytes three times as many as there is room for.
    for turn in range(10):
        waits = [rank.begin(10.0 * turn + place) for place, rank in enumerate(ranks)]
        for wait in waits:
            wait()
    for place, rank in enumerate(ranks):
        others = [other for other in range(3) if other != place]
        assert rank.got == [(o, 10.0 * turn + o) for turn in range(10) for o in others]


def test_what_a_slow_peer_has_not_read_stays(ranks: list[Rank]) -> None:
    slow: list[Callable[[], None]] = []
    for turn in range(3):
        waits = [rank.begin(10.0 * turn + place) for place, rank in enumerate(ranks)]
        slow.append(waits.pop())
        for wait in waits:
            wait()
    for wait in reversed(slow):  # in any order
        wait()
    assert ranks[2].got == [(p, 10.0 * turn + p) for turn in (2, 1, 0) for p in (0, 1)]


def test_what_nobody_waits_for_is_not_kept(ranks: list[Rank]) -> None:
    for turn in range(10):
        waits = [rank.begin(10.0 * turn + place) for place, rank in enumerate(ranks)]
        # As after calls of the first rank that have ended in an error.
        if turn < 2:
            del waits[0]
        for wait in waits:
            wait()
    assert (len(ranks[0].got), len(ranks[1].got)) == (16, 20)


def test_ranks_that_gather_other_sizes_differ(ranks: list[Rank]) -> None:
    waits = [rank.begin(1.0, count) for rank, count in zip(ranks, (8, 8, 9), strict=True)]
    with pytest.raises(IrcError, match="gathers 32 bytes of each rank, rank 2 gives 36") as caught:
        waits[0]()
    assert caught.value.code == "ranks-differ"


@pytest.mark.skipif(sys.platform != "linux", reason="memfd is of Linux")
def test_memory_of_another_process_is_told_by_its_mark() -> None:
    fd, memory = shared_parts._new(SIZE, 7)  # pyright: ignore[reportPrivateUsage]
    shown = shared_parts._shown(os.getpid(), fd, SIZE, 7)  # pyright: ignore[reportPrivateUsage]
    memory[100] = 3
    assert shown[100] == 3
    with pytest.raises(ValueError, match="is not that of the rank"):
        shared_parts._shown(os.getpid(), fd, SIZE, 8)  # pyright: ignore[reportPrivateUsage]
    os.close(fd)
    with pytest.raises(OSError, match="No such file"):
        shared_parts._shown(os.getpid(), fd, SIZE, 7)  # pyright: ignore[reportPrivateUsage]

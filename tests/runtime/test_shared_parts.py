"""Memory that ranks share: written again once all have read it, and no sooner."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from irc.errors import InternalError, IrcError
from irc.runtime import notices, shared_parts
from irc.runtime.shared_parts import Delivery, SharedParts

SIZE = 1 << 16
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memfd is of Linux")


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

    def _get_backend(self, device: torch.device) -> object:
        return device

    def recv(self, tensors: list[torch.Tensor], peer: int, _tag: int) -> Received:
        turn = self._turns[peer]
        self._turns[peer] += 1
        return Received(tensors[0], self.network.sent[peer, self._rank], turn)

    def send(self, tensors: list[torch.Tensor], peer: int, _tag: int) -> Sent:
        self.network.sent[self._rank, peer].append(tensors[0].clone())
        return Sent()


class Rank:
    """One of the ranks, which notes what it takes."""

    def __init__(
        self,
        network: Network,
        rank: int,
        memory: list[torch.Tensor],
        trim: shared_parts.Trim = lambda start, end: None,
        *,
        looks: bool = False,
    ) -> None:
        self.group: Any = Group(network, rank)
        self.parts = SharedParts(self.group, memory, trim, (0.001, fails) if looks else None)
        self.got: list[tuple[int, float]] = []

    def begin(self, value: float, count: int = 5000) -> Callable[[], None]:
        """Give a number so many times; return what waits and notes what came."""

        def take(parts: Sequence[torch.Tensor]) -> None:
            rows = [part.view(torch.float32) for part in parts]
            assert all(bool((row == row[0]).all()) for row in rows)
            here: int = self.group.rank()
            assert float(rows[here][0]) == value
            self.got += [(peer, float(row[0])) for peer, row in enumerate(rows) if peer != here]

        own = torch.full((count,), value, device="cpu")
        delivery: Delivery = self.parts.begin(self.group, [own], take)

        def wait() -> None:
            for work in delivery.works:
                work.wait()
            delivery.take()

        return wait


def fails(waited_s: float) -> None:
    """Say that a rank waits for ever."""
    raise RuntimeError(f"no peer for {waited_s} s")


def untaken(parts: Sequence[torch.Tensor]) -> None:
    """Take nothing."""


@pytest.fixture(params=[False, True], ids=["messages", "notices"])
def ranks(request: pytest.FixtureRequest) -> list[Rank]:
    # Behind notices as much as behind the first page.
    size = SIZE + (4 * shared_parts.PAGE if request.param else 0)
    network, memory = Network(), [torch.zeros(size, dtype=torch.uint8) for _ in range(3)]
    return [Rank(network, rank, memory, looks=request.param) for rank in range(3)]


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
    with pytest.raises(IrcError, match="takes 32 bytes of each rank, rank 2 gives 36") as caught:
        waits[0]()
    assert caught.value.code == "ranks-differ"


def test_a_kept_gather_keeps_its_own_bytes_alone(ranks: list[Rank]) -> None:
    kept = [rank.begin(float(place)) for place, rank in enumerate(ranks)]
    kept.pop()()
    for turn in range(1, 50):  # longer than a message names gathers
        waits = [rank.begin(10.0 * turn + place) for place, rank in enumerate(ranks)]
        for wait in waits:
            wait()
    for wait in kept:
        wait()
    assert ranks[0].got[-2:] == [(1, 1.0), (2, 2.0)]
    assert [len(rank.got) for rank in ranks] == [100, 100, 100]


@pytest.mark.parametrize(("looks", "num_notices"), [(False, 0), (True, 64), (True, 6)])
def test_ranks_may_keep_more_gathers_than_a_message_names(
    looks: bool, num_notices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And more than there are notices."""
    monkeypatch.setattr(notices, "NOTICES", num_notices)
    network, memory = Network(), [torch.zeros(1 << 24, dtype=torch.uint8) for _ in range(3)]
    ranks = [Rank(network, rank, memory, looks=looks) for rank in range(3)]
    draw = random.Random(1)
    kept: list[list[tuple[int, Callable[[], None]]]] = [[] for _ in ranks]
    for turn in range(300):
        count = draw.choice((100, 3000, 20_000))
        for place, rank in enumerate(ranks):
            kept[place].append((turn, rank.begin(10.0 * turn + place, count)))
        for place, rank in enumerate(ranks):
            while len(kept[place]) > draw.randint(0, 60):
                began, wait = kept[place].pop(draw.randrange(len(kept[place])))
                wait()
                others = [other for other in range(3) if other != place]
                assert rank.got[-2:] == [(other, 10.0 * began + other) for other in others]


def test_what_cannot_be_copied_is_not_kept(ranks: list[Rank]) -> None:
    for rank in ranks:
        with pytest.raises(RuntimeError, match="device meta"):
            rank.parts.begin(rank.group, [torch.ones(5000, device="meta")], untaken)
    for turn in range(10):
        waits = [rank.begin(10.0 * turn + place) for place, rank in enumerate(ranks)]
        for wait in waits:
            wait()
    assert len(ranks[0].got) == 20


def test_what_is_too_large_says_what_is_under_way(ranks: list[Rank]) -> None:
    for rank in ranks:
        with pytest.raises(InternalError, match="80000 bytes are under way"):
            rank.begin(0.0, 20_000)
    for turn in range(10):
        waits = [rank.begin(10.0 * turn + place) for place, rank in enumerate(ranks)]
        for wait in waits:
            wait()
    under_way = [rank.begin(0.0, 5000) for rank in ranks]
    # Of the gather before it no message has told yet that all have read it; notices have.
    held = 1 if ranks[0].parts.looks else 2
    with pytest.raises(InternalError, match=f"{SIZE + held * 5 * shared_parts.PAGE} bytes"):
        ranks[0].begin(0.0, SIZE // 4)
    del under_way


def test_gathers_that_grow_hold_few_of_the_largest() -> None:
    largest = 5000 + 59 * 300
    room = 3 * 4 * largest + 4 * shared_parts.PAGE
    network, memory = Network(), [torch.zeros(room, dtype=torch.uint8) for _ in range(2)]
    ranks = [Rank(network, rank, memory) for rank in range(2)]
    for turn in range(60):
        waits = [rank.begin(float(turn), 5000 + turn * 300) for rank in ranks]
        for wait in waits:
            wait()
    assert len(ranks[0].got) == 60


@LINUX
def test_pages_of_what_was_large_go_back() -> None:
    both = [shared_parts._new(1 << 24, 7) for _ in range(2)]  # pyright: ignore[reportPrivateUsage]
    network = Network()
    ranks = [Rank(network, rank, [own.memory for own in both], both[rank].trim) for rank in (0, 1)]
    held: list[int] = []
    kept: list[Callable[[], None]] = []
    for turn in range(shared_parts.TRIM_AFTER + 3):
        waits = [rank.begin(float(turn), 1 << 21 if turn == 1 else 3000) for rank in ranks]
        if turn == 2:  # behind the large one: its own pages stay
            kept.append(waits.pop())
        for wait in waits:
            wait()
        held.append(os.fstat(both[0].fd).st_blocks * 512)
    assert held[1] > 1 << 23
    assert held[-1] < 1 << 16
    kept.pop()()
    assert ranks[1].got[-1] == (0, 2.0)
    for own in both:
        os.close(own.fd)


def test_a_default_device_is_not_that_of_gathers(ranks: list[Rank]) -> None:
    with torch.device("meta"):
        waits = [rank.begin(float(place)) for place, rank in enumerate(ranks)]
        for wait in waits:
            wait()
    assert ranks[0].got == [(1, 1.0), (2, 2.0)]


@LINUX
def test_ranks_agree_whatever_the_default_device_is(ranks: list[Rank]) -> None:
    with torch.device("meta"):
        parts = shared_parts._agreed(  # pyright: ignore[reportPrivateUsage]
            ranks[0].group, lambda row: torch.stack([row, row])
        )
    assert parts is not None
    lines = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    rights = sorted(line.split()[1] for line in lines if "/memfd:irc" in line)
    assert rights == ["r--s", "rw-s"]


@LINUX
def test_memory_of_another_process_is_told_by_its_mark() -> None:
    own = shared_parts._new(SIZE, 7)  # pyright: ignore[reportPrivateUsage]
    shown = shared_parts._shown(os.getpid(), own.fd, SIZE, 7)  # pyright: ignore[reportPrivateUsage]
    own.memory[100] = 3
    assert shown[100] == 3
    for size, token in ((SIZE, 8), (SIZE // 2, 7)):
        with pytest.raises(ValueError, match="is not that of the rank"):
            shared_parts._shown(os.getpid(), own.fd, size, token)  # pyright: ignore[reportPrivateUsage]
    os.close(own.fd)
    with pytest.raises(OSError, match="No such file"):
        shared_parts._shown(os.getpid(), own.fd, SIZE, 7)  # pyright: ignore[reportPrivateUsage]


@LINUX
def test_other_files_of_another_process_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "irc").write_bytes(bytes(SIZE))
    pipe = os.pipe()
    files = (*pipe, os.open(tmp_path / "irc", os.O_RDWR), os.memfd_create("other"))
    for fd in files:
        with pytest.raises(ValueError, match="is not memory of a rank"):
            shared_parts._shown(os.getpid(), fd, SIZE, 0)  # pyright: ignore[reportPrivateUsage]
        os.close(fd)

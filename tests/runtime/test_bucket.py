"""Collectives of a bucket: one call of the library, begun by the last, waited for by any."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from irc.plan.schema import Start
from irc.runtime.bucket import Bucket, BucketEnd, Prepared
from irc.runtime.collectives import PREPARED, Operands
from irc.runtime.message import Message


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        world = dist.group.WORLD
        assert world is not None
        yield world
    finally:
        dist.destroy_process_group()


def start(name: str, op: str) -> Start:
    return Start("start", op, (0,), (1,), "comm:data", attrs={"axis": "data"}, id=name)


UNREAD = Message("all_reduce", torch.ones(1), torch.ones(1), "sum")
ATTRS = {
    "comm.all_gather": {"dim": 0},
    "comm.all_reduce": {"fn": "sum"},
    "comm.reduce_scatter": {"fn": "sum", "dim": 0},
}


@pytest.mark.parametrize("op", PREPARED)
def test_the_last_begins_them_all(group: ProcessGroup, op: str) -> None:
    values = [torch.full((n,), float(n)) for n in (3, 5)]
    results = [torch.zeros(n) for n in (3, 5)]
    bucket = Bucket(group, 2)
    ends: list[BucketEnd] = []
    for name, value, result in zip("ab", values, results, strict=True):
        assert not bucket.is_begun
        ends.append(
            bucket.add(start(name, op), PREPARED[op](1, ATTRS[op], Operands(value, result)))
        )
    assert bucket.is_begun
    for end in ends:
        end()
    assert all(torch.equal(a, b) for a, b in zip(values, results, strict=True))


def test_what_is_gathered_along_another_dim_is_unpacked(group: ProcessGroup) -> None:
    value, result, landing = torch.arange(6.0).view(2, 3), torch.zeros(2, 3), torch.zeros(1, 2, 3)
    bucket, op = Bucket(group, 1), "comm.all_gather"
    operands = Operands(value, result, receive=landing)
    bucket.add(start("a", op), PREPARED[op](1, {"dim": 1}, operands))()
    assert torch.equal(value, result)


def test_a_wait_in_another_thread_waits_for_the_last_start(group: ProcessGroup) -> None:
    """So it is where messages are held back for as long as a cluster's links take."""
    bucket, op = Bucket(group, 2), "comm.all_reduce"
    values, results = [torch.ones(2) for _ in "ab"], [torch.zeros(2) for _ in "ab"]
    prepared = [
        PREPARED[op](1, ATTRS[op], Operands(*pair)) for pair in zip(values, results, strict=True)
    ]
    end = bucket.add(start("a", op), prepared[0])
    waiting = threading.Thread(target=end)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    noted: list[object] = []
    end.work.get_future().add_done_callback(noted.append)
    bucket.add(start("b", op), prepared[1])()
    waiting.join(10)
    assert not waiting.is_alive() and noted


def test_an_error_of_the_library_ends_every_wait(group: ProcessGroup) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("no such peer")

    bucket = Bucket(group, 2)
    end = bucket.add(start("a", "comm.all_reduce"), Prepared(fail, UNREAD))
    with pytest.raises(RuntimeError, match="no such peer"):
        bucket.add(start("b", "comm.all_reduce"), Prepared(fail, UNREAD))
    with pytest.raises(RuntimeError, match="no such peer"):
        end()
    assert isinstance(end.work.get_future().exception(), RuntimeError)
    # The group is not left to note what it is asked for.
    dist.all_reduce(torch.ones(2), async_op=True).wait()  # pyright: ignore[reportOptionalMemberAccess]


def test_processors_join_small_messages_only(group: ProcessGroup) -> None:
    """Copies into one message and out of it take longer than a long message of its own."""
    values = [torch.ones(n) for n in (1 << 4, 1 << 18, 1 << 5)]
    results = [torch.zeros_like(value) for value in values]
    bucket, op = Bucket(group, 3), "comm.all_reduce"
    pairs = zip(values, results, strict=True)
    prepared = [PREPARED[op](1, ATTRS[op], Operands(*pair)) for pair in pairs]
    assert [each.is_apart for each in prepared] == [False, True, False]
    ends = [bucket.add(start(name, op), each) for name, each in zip("abc", prepared, strict=True)]
    ends[0]()
    assert all(torch.equal(a, b) for a, b in zip(values, results, strict=True))


class Work:
    """A work whose end the test decides."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    def get_future(self) -> Future[None]:
        return self.future

    def begin(self, **_: object) -> Work:
        return self


def test_a_bucket_has_ended_when_all_of_it_has() -> None:
    works = [Work(), Work()]
    bucket = Bucket(None, 2)
    for name, work in zip("ab", works, strict=True):
        bucket.add(start(name, "comm.all_reduce"), Prepared(work.begin, UNREAD, is_apart=True))
    ended = bucket.get_future()
    works[1].future.set_result(None)
    assert not ended.done()
    works[0].future.set_result(None)
    assert ended.done()

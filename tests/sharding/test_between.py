"""Channels: what ranks tell each other is what the side after needs, and no byte more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from itertools import product as cartesian
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from irc.dialects.placement import AxisPlacement, B, Mesh, Partial, Placement, Split
from irc.errors import IrcError
from irc.sharding.between import Channel, Message, Side
from irc.sharding.shards import shard, slices

Messages = dict[int, list[Message]]


@st.composite
def sides(draw: st.DrawFn, num_dims: int) -> Side:
    """A mesh of 0 to 3 axes on ranks of up to twice as many numbers, and a placement on it."""
    names = draw(st.permutations(["data", "context", "tensor"]))
    sizes = draw(st.lists(st.integers(1, 4), max_size=3).filter(lambda s: prod(s) <= 24))
    mesh = Mesh(tuple(zip(names, sizes, strict=False)))
    kinds: list[Any] = [st.just(B), *(st.just(Split(dim)) for dim in range(num_dims))]
    placed: list[AxisPlacement] = [draw(st.one_of(kinds)) for _ in sizes]
    for dim in range(num_dims):
        axes = [i for i, p in enumerate(placed) if isinstance(p, Split) and p.dim == dim]
        for order, i in enumerate(draw(st.permutations(axes))):
            placed[i] = Split(dim, order)
    placement = Placement(tuple(zip(mesh.names, placed, strict=True)))
    first = draw(st.integers(0, 24))
    if draw(st.booleans()):
        return Side(placement, mesh, range(first, first + mesh.num_ranks))
    ranks = draw(st.permutations(range(2 * mesh.num_ranks)))
    return Side(placement, mesh, tuple(ranks[: mesh.num_ranks]))


@st.composite
def channels(draw: st.DrawFn) -> Channel:
    shape = draw(st.lists(st.integers(0, 9), max_size=3).map(tuple))
    dtype = draw(st.sampled_from(["f64", "f32", "i8"]))
    return Channel(shape, dtype, draw(sides(len(shape))), draw(sides(len(shape))))


def all_ranks(channel: Channel) -> list[int]:
    return sorted({*channel.before.ranks, *channel.after.ranks})


def messages(channel: Channel) -> Messages:
    return {rank: list(channel.messages(rank)) for rank in all_ranks(channel)}


def value(shape: tuple[int, ...]) -> Any:
    return np.arange(1, 1 + prod(shape)).reshape(shape)


def run(channel: Channel, told: Messages) -> dict[int, Any]:
    """Do what each rank is told, message by message: a send waits until it is received."""
    shape, before, after = channel.shape, channel.before, channel.after
    shards = shard(value(shape), before.placement, before.mesh)
    held = dict(zip(before.ranks, shards, strict=True))
    needed = {
        rank: np.zeros([s.stop - s.start for s in slices(shape, after.placement, after.mesh, i)])
        for i, rank in enumerate(after.ranks)
    }
    queues = {rank: list(told[rank]) for rank in told}
    while any(queues.values()):
        moved = False
        for rank, queue in queues.items():
            if not queue:
                continue
            mine = queue[0]
            other = mine.source + mine.target - rank
            theirs = mine if mine.is_copy else next(iter(queues[other]), None)
            if theirs is None or (theirs.source, theirs.target) != (
                mine.source,
                mine.target,
            ):
                continue
            sent, taken = (mine, theirs) if mine.source == rank else (theirs, mine)
            needed[taken.target][taken.target_part] = held[sent.source][sent.source_part]
            del queue[0]
            if not mine.is_copy:
                del queues[other][0]
            moved = True
        if not moved:
            stuck = [rank for rank, queue in queues.items() if queue]
            raise RuntimeError(f"ranks {stuck} wait for each other")
    return needed


def is_right(channel: Channel, needed: dict[int, Any]) -> bool:
    wanted = shard(value(channel.shape), channel.after.placement, channel.after.mesh)
    return all(
        np.array_equal(needed[rank], part)
        for rank, part in zip(channel.after.ranks, wanted, strict=True)
    )


@given(channels())
@settings(max_examples=150, deadline=None)
def test_the_side_after_has_what_it_needs(channel: Channel) -> None:
    assert is_right(channel, run(channel, messages(channel)))


@given(channels())
@settings(max_examples=150, deadline=None)
def test_both_ends_of_a_message_agree_on_it(channel: Channel) -> None:
    by_rank = messages(channel)
    for rank, own in by_rank.items():
        for message in own:
            assert rank in (message.source, message.target)
            other = message.source + message.target - rank
            assert by_rank[other].count(message) == 1
            whole = value(channel.shape)[message.where]
            assert whole.size
            assert message.num_bytes == whole.size * {"f64": 8, "f32": 4, "i8": 1}[channel.dtype]
        assert len({(m.source, m.target) for m in own}) == len(own)
        assert all(m.is_copy for m in own[:1]) or not any(m.is_copy for m in own)


@given(channels())
@settings(max_examples=150, deadline=None)
def test_bytes_are_the_least_there_can_be(channel: Channel) -> None:
    """What a rank receives is what it needs, less what it holds: counted element by element."""
    whole = value(channel.shape)
    item = {"f64": 8, "f32": 4, "i8": 1}[channel.dtype]
    by_rank = messages(channel)
    in_all = 0
    for rank in all_ranks(channel):
        sets: list[set[int]] = []
        for side in (channel.before, channel.after):
            place = side.positions.get(rank)
            where = (
                None if place is None else slices(channel.shape, side.placement, side.mesh, place)
            )
            sets.append(set() if where is None else set(whole[where].ravel().tolist()))
        least = len(sets[1] - sets[0]) * item
        received = [m for m in by_rank[rank] if m.target == rank and not m.is_copy]
        assert sum(m.num_bytes for m in received) == channel.bytes_received(rank) == least
        sent = [m for m in by_rank[rank] if m.source == rank and not m.is_copy]
        assert channel.bytes_sent(rank) == sum(m.num_bytes for m in sent)
        in_all += least
    assert channel.total_bytes == in_all


@given(channels())
@settings(max_examples=100, deadline=None)
def test_the_first_rank_holds_the_most(channel: Channel) -> None:
    for side in (channel.before, channel.after):
        sizes = [part.size for part in shard(value(channel.shape), side.placement, side.mesh)]
        assert side.largest(channel.shape) == sizes[0] == max(sizes)


@given(channels())
@settings(max_examples=150, deadline=None)
def test_the_holders_of_a_block_share_its_readers_evenly(channel: Channel) -> None:
    counts = Counter[int]()
    for own in messages(channel).values():
        counts.update(m.source for m in own if not m.is_copy)
    blocks: dict[Any, list[int]] = {}
    for i, rank in enumerate(channel.before.ranks):
        part = slices(channel.shape, channel.before.placement, channel.before.mesh, i)
        if value(channel.shape)[part].size:
            key = tuple((s.start, s.stop) for s in part)
            blocks.setdefault(key, []).append(counts[rank] // 2)
    for sent in blocks.values():
        assert max(sent) - min(sent) <= 1 or max(sent) <= -(-sum(sent) // len(sent))


@given(channels(), st.randoms())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_swapped_pair_of_messages_is_seen(channel: Channel, random: Any) -> None:
    """A rank that sends to each of two readers what is the other's gives both wrong values."""
    by_rank = messages(channel)
    swaps: list[tuple[list[Message], int, int]] = []
    for rank, own in by_rank.items():
        sent = [i for i, m in enumerate(own) if m.source == rank]
        for i, j in combinations(sent, 2):
            a, b = own[i].where, own[j].where
            if a != b and [s.stop - s.start for s in a] == [s.stop - s.start for s in b]:
                swaps.append((own, i, j))
    assume(swaps)
    own, i, j = random.choice(swaps)
    a, b = own[i], own[j]
    own[i] = replace(a, source_part=b.source_part)
    own[j] = replace(b, source_part=a.source_part)
    assert not is_right(channel, run(channel, by_rank))


def test_ranks_that_disagree_about_the_order_wait_for_each_other() -> None:
    """Two ranks swap halves; one of them wants to receive first as well."""
    before = side("tensor=2", tensor=Split(0))
    channel = Channel((4, 4), "f32", before, side("tensor=2", tensor=Split(1)))
    by_rank = messages(channel)
    assert is_right(channel, run(channel, by_rank))
    assert [(m.source, m.target) for m in by_rank[1]] == [(1, 1), (0, 1), (1, 0)]
    by_rank[1][1:] = reversed(by_rank[1][1:])
    with pytest.raises(RuntimeError, match=r"ranks \[0, 1\] wait for each other"):
        run(channel, by_rank)


@given(channels(), st.randoms())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_slice_that_is_off_by_one_is_seen(channel: Channel, random: Any) -> None:
    by_rank = messages(channel)
    shifted: list[tuple[int, int, Message]] = []
    for rank, own in by_rank.items():
        for i, message in enumerate(own):
            for dim, part in enumerate(message.source_part):
                if message.source == rank and part.start > 0:
                    moved = list(message.source_part)
                    moved[dim] = slice(part.start - 1, part.stop - 1)
                    shifted.append((rank, i, replace(message, source_part=tuple(moved))))
    assume(shifted)
    rank, i, wrong = random.choice(shifted)
    by_rank[rank][i] = wrong
    assert not is_right(channel, run(channel, by_rank))


def side(mesh: str, first: int = 0, /, **axes: AxisPlacement) -> Side:
    grid = Mesh.parse(mesh)
    return Side(Placement.of(**axes), grid, range(first, first + grid.num_ranks))


def pairs(channel: Channel) -> set[tuple[int, int]]:
    return {(m.source, m.target) for r in all_ranks(channel) for m in channel.messages(r)}


def test_equal_sides_talk_in_line() -> None:
    """Rank r of a stage sends to rank r of the next one, whatever is split or copied."""
    for data, tensor in cartesian([B, Split(0), Split(1)], repeat=2):
        axes: dict[str, AxisPlacement] = {"data": data, "tensor": tensor}
        before, after = side("data=2,tensor=4", **axes), side("data=2,tensor=4", 8, **axes)
        channel = Channel((16, 16), "f32", before, after)
        assert pairs(channel) == {(r, r + 8) for r in range(8)}


def test_meshes_of_other_sizes_talk_in_line_where_it_is_as_even() -> None:
    before = side("data=2,tensor=4", data=B, tensor=B)
    after = side("data=2,tensor=2", 8, data=B, tensor=B)
    assert pairs(Channel((4,), "f32", before, after)) == {(0, 8), (1, 9), (4, 10), (5, 11)}
    # Each of two holders serves one of the two readers of its half, in line or not.
    before = side("data=2,tensor=2", data=Split(0), tensor=B)
    after = side("data=2,tensor=2", 4, data=B, tensor=Split(0))
    assert pairs(Channel((4,), "f32", before, after)) == {(0, 4), (1, 6), (2, 5), (3, 7)}


def test_what_does_not_move_is_copied() -> None:
    same = side("data=2,tensor=2", data=Split(0), tensor=B)
    channel = Channel((5, 3), "f32", same, same)
    assert channel.total_bytes == 0
    assert pairs(channel) == {(r, r) for r in range(4)}


def test_partial_values_are_refused() -> None:
    before, after = side("tensor=2", tensor=Partial()), side("tensor=2", 2, tensor=B)
    with pytest.raises(IrcError, match=r"P\(sum\) on axis 'tensor' before a channel"):
        Channel((4,), "f32", before, after)
    with pytest.raises(IrcError, match="after a channel"):
        Channel((4,), "f32", after, before)
    one = side("tensor=1", tensor=Partial())
    assert Channel((4,), "f32", one, after).total_bytes == 32


def test_sides_that_do_not_fit_are_refused() -> None:
    good = side("tensor=2", tensor=B)
    with pytest.raises(IrcError, match="of 3 ranks after a channel"):
        Channel((4,), "f32", good, Side(good.placement, good.mesh, (0, 1, 2)))
    with pytest.raises(IrcError, match="rank 5 is twice on a mesh before"):
        Channel((4,), "f32", Side(good.placement, good.mesh, (5, 5)), good)
    with pytest.raises(IrcError, match="splits dim 1 of a value of 1 dims"):
        Channel((4,), "f32", good, side("tensor=2", tensor=Split(1)))
    with pytest.raises(IrcError, match="mesh 'data=2'"):
        Channel((4,), "f32", good, Side(good.placement, Mesh.parse("data=2"), (0, 1)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"data": Split(0), "tensor": B}, {"data": B, "tensor": Split(1)}),
        ({"data": Split(0), "tensor": Split(1)}, {"data": Split(1), "tensor": Split(0)}),
        ({"data": B, "tensor": B}, {"data": Split(0), "tensor": Split(0)}),
        ({"data": Split(0), "tensor": Split(0)}, {"data": B, "tensor": B}),
    ],
)
def test_a_rank_of_16384_is_asked_without_listing_pairs(
    before: dict[str, AxisPlacement], after: dict[str, AxisPlacement]
) -> None:
    """A rank has at most 16,384 messages; pairs would be 2.7e8."""
    mesh = "data=128,tensor=128"
    channel = Channel((1 << 15, 1 << 15), "f32", side(mesh, **before), side(mesh, 1 << 14, **after))
    first, last = (
        channel.messages(channel.before.ranks[r])[0] for r in (0, channel.before.mesh.num_ranks - 1)
    )
    assert first in channel.messages(first.target)
    assert last in channel.messages(last.target)
    needed = (1 << 30) * prod(128 for p in after.values() if p == B)
    assert channel.total_bytes == 4 * needed
    assert channel.bytes_received(last.target) == 4 * needed >> 14

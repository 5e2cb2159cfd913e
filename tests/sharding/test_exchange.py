"""Exchanges say what channels say, byte for byte, and do without ranks that are lost."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.dialects.placement import B, Mesh, Placement, Split
from irc.sharding.between import Box, Channel, Side
from irc.sharding.exchange import Boxes, exchanged, lacking

PLACED = st.sampled_from([B, Split(0), Split(1)])


@st.composite
def sides(draw: st.DrawFn) -> Side:
    """Two axes of up to three ranks, on ranks that are numbered anyhow."""
    mesh = Mesh((("data", draw(st.integers(1, 3))), ("tensor", draw(st.integers(1, 3)))))
    data, tensor = draw(PLACED), draw(PLACED)
    if isinstance(data, Split) and data == tensor:
        tensor = Split(data.dim, 1)
    ranks = draw(st.permutations(range(9)))[: mesh.num_ranks]
    return Side(Placement.of(data=data, tensor=tensor), mesh, tuple(ranks))


def boxes(side: Side, shape: tuple[int, ...]) -> Boxes:
    return tuple(
        (side.box(shape, side.place(rank)),) if rank in side.positions else () for rank in range(9)
    )


def within(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*each) for each in box)


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(0, 7), st.integers(1, 7)), sides(), sides(), st.data())
def test_equals_channels_and_does_without_copies(
    shape: tuple[int, ...], before: Side, after: Side, data: st.DataObject
) -> None:
    channel = Channel(shape, "f32", before, after)
    held, needed = boxes(before, shape), boxes(after, shape)
    every = exchanged(held, needed, "f32")
    for rank in range(9):
        received = [m.message for m in every if m.message.target == rank]
        moved = sum(m.num_bytes for m in received if not m.is_copy)
        assert moved == channel.bytes_received(rank)
    # Ranks are lost as long as all of the value is on the others.
    for rank in data.draw(st.permutations(before.ranks)):
        fewer = (*held[:rank], (), *held[rank + 1 :])
        held = fewer if lacking(shape, fewer) is None else held
    value = np.arange(1, 1 + prod(shape)).reshape(shape)
    for rank, own in enumerate(needed):
        parts = [np.zeros([stop - start for start, stop in box], int) for box in own]
        for moved in exchanged(held, needed, "f32"):
            message = moved.message
            if message.target != rank:
                continue
            part = parts[moved.target_box][message.target_part]
            assert not part.any()  # nothing arrives twice
            source = value[within(held[message.source][moved.source_box])]
            part[...] = source[message.source_part]
        for box, part in zip(own, parts, strict=True):
            assert (part == value[within(box)]).all()


def test_holders_share_their_readers() -> None:
    whole: Box = ((0, 8),)
    held: Boxes = ((whole,), (whole,), (), (), (), ())
    sources = [m.message.source for m in exchanged(held, ((whole,),) * 6, "f32")]
    assert sorted(sources) == [0, 0, 0, 1, 1, 1]  # two copies of their own among them


def test_what_is_lost_is_said() -> None:
    front, back = ((0, 2),), ((3, 4),)
    assert lacking((4,), ((front,), (back,))) == ((2, 3),)
    assert lacking((4,), ((front,), (((1, 4),),))) is None
    assert lacking((0,), ()) is None
    assert lacking((), ()) == ()

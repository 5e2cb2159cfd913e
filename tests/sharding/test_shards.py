"""Index sets, against torch's chunks and DTensor's shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from irc.dialects.placement import AxisPlacement, B, Mesh, Partial, Placement, Split
from irc.sharding.shards import chunk_lengths, combine, local_shape, shard, slices

MESH = Mesh.parse("data=2,tensor=2")


@st.composite
def placed_arrays(draw: st.DrawFn) -> tuple[Any, Placement, Mesh]:
    """An array with odd sizes, a mesh of 1 to 3 axes, and any placement in any order."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    mesh = Mesh(tuple((f"x{i}", size) for i, size in enumerate(sizes)))
    shape = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple))
    partial = Partial(draw(st.sampled_from(["sum", "max", "min"])))
    kinds = st.one_of(st.just(B), st.just(partial), st.integers(0, len(shape) - 1).map(Split))
    placed: list[AxisPlacement] = [draw(kinds) for _ in sizes]
    for dim in range(len(shape)):
        axes = [i for i, p in enumerate(placed) if isinstance(p, Split) and p.dim == dim]
        for order, i in enumerate(draw(st.permutations(axes))):
            placed[i] = Split(dim, order)
    array = np.arange(np.prod(shape)).reshape(shape) - 5
    if draw(st.booleans()):
        return torch.from_numpy(array), Placement(tuple(zip(mesh.names, placed, strict=True))), mesh
    return array, Placement(tuple(zip(mesh.names, placed, strict=True))), mesh


@given(placed_arrays())
def test_shards_join_to_the_array(case: tuple[Any, Placement, Mesh]) -> None:
    array, placement, mesh = case
    parts = shard(array, placement, mesh)
    joined = combine(parts, placement, mesh, array.shape)
    assert type(joined) is type(array)
    assert joined.dtype == array.dtype
    assert bool((joined == array).all())


@given(placed_arrays())
def test_a_shard_has_the_shape_of_its_place(case: tuple[Any, Placement, Mesh]) -> None:
    array, placement, mesh = case
    for rank, part in enumerate(shard(array, placement, mesh)):
        assert local_shape(array.shape, placement, mesh, mesh.coordinates(rank)) == tuple(
            part.shape
        )


@pytest.mark.parametrize("parts", range(1, 9))
def test_chunks_are_those_of_torch(parts: int) -> None:
    for size in range(1, 41):
        lengths = [len(piece) for piece in torch.arange(size).chunk(parts)]
        assert chunk_lengths(size, [parts]) == lengths + [0] * (parts - len(lengths))


@pytest.mark.parametrize("shape", [(8, 3), (5, 3), (3, 7)])
def test_slices_are_those_of_dtensor(shape: tuple[int, ...]) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    for placed in ([Split(0), Split(0, 1)], [Split(0), Split(1)], [B, Split(1)], [Split(1), B]):
        placement = Placement(tuple(zip(MESH.names, placed, strict=True)))
        theirs = [Shard(p.dim) if isinstance(p, Split) else Replicate() for p in placed]
        for rank in range(MESH.num_ranks):
            place = list(MESH.coordinates(rank).values())
            sizes, starts = _compute_local_shape_and_global_offset(shape, (2, 2), place, theirs)
            ours = slices(shape, placement, MESH, rank)
            assert tuple(s.stop - s.start for s in ours) == tuple(sizes)
            if 0 not in sizes:  # where an empty shard starts is a matter of taste
                assert tuple(s.start for s in ours) == tuple(starts)


def test_the_order_of_application_decides_which_rank_holds_what() -> None:
    array = np.arange(4)
    data_first = Placement((("data", Split(0)), ("tensor", Split(0, 1))))
    tensor_first = Placement((("data", Split(0, 1)), ("tensor", Split(0))))
    assert [int(part[0]) for part in shard(array, data_first, MESH)] == [0, 1, 2, 3]
    assert [int(part[0]) for part in shard(array, tensor_first, MESH)] == [0, 2, 1, 3]
    swapped = combine(shard(array, data_first, MESH), tensor_first, MESH, (4,))
    assert swapped.tolist() != array.tolist()


def test_only_the_first_rank_holds_a_partial_sum() -> None:
    parts = shard(np.array([3, 4]), Placement.of(data=Partial(), tensor=B), MESH)
    assert [part.tolist() for part in parts] == [[3, 4], [3, 4], [0, 0], [0, 0]]


def test_a_replica_can_be_chosen() -> None:
    parts = [np.array([rank]) for rank in range(4)]
    placement = Placement.of(data=B, tensor=Partial())
    assert combine(parts, placement, MESH, (1,)).tolist() == [1]
    assert combine(parts, placement, MESH, (1,), {"data": 1}).tolist() == [5]


def test_a_part_of_the_wrong_shape_is_refused() -> None:
    placement = Placement.of(data=Split(0), tensor=B)
    with pytest.raises(ValueError, match=r"rank 2 holds \(3,\), its shard of \(5,\)"):
        combine([np.zeros(3)] * 4, placement, MESH, (5,))


def test_partial_kinds_do_not_mix() -> None:
    placement = Placement.of(data=Partial("sum"), tensor=Partial("max"))
    with pytest.raises(ValueError, match="mixes partial values"):
        combine([np.zeros(3)] * 4, placement, MESH, (3,))


def test_one_shape_for_all_ranks_needs_even_shards() -> None:
    placement = Placement.of(data=Split(0), tensor=Split(0))
    assert local_shape((8, 3), placement, MESH) == (2, 3)
    with pytest.raises(
        ValueError, match="dim 0 of size 6 does not split evenly over data and tensor"
    ):
        local_shape((6, 3), placement, MESH)

"""Placements to DTensor's and back, against torch's own shards."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from irc.dialects.placement import AxisPlacement, B, Mesh, Partial, Placement, Split
from irc.errors import IrcError
from irc.sharding.dtensor import from_dtensor, to_dtensor, to_oneflow
from irc.sharding.shards import slices

MESH = Mesh.parse("data=2,tensor=4")


@pytest.mark.parametrize("mesh", ["a=2,b=3,c=4", "a=2,b=2,c=2", "a=6,b=2,c=3"])
def test_every_order_of_application_comes_back(mesh: str) -> None:
    named = Mesh.parse(mesh)
    for order in permutations(range(3)):
        placement = Placement(
            tuple((n, Split(0, o)) for n, o in zip(named.names, order, strict=True))
        )
        assert from_dtensor(to_dtensor(placement, named), named, ndim=1) == placement


@pytest.mark.parametrize(
    "placed", list(product([B, Split(1), Partial(), Partial("max")], repeat=2))
)
def test_every_placement_comes_back(placed: tuple[AxisPlacement, ...]) -> None:
    placement = Placement.in_mesh_order(tuple(zip(MESH.names, placed, strict=True)))
    assert from_dtensor(to_dtensor(placement, MESH), MESH, ndim=2) == placement


def test_objects_of_torch_are_read() -> None:
    placement = from_dtensor([Shard(-1), TorchPartial()], MESH, ndim=3)
    assert placement == Placement.of(data=Split(2), tensor=Partial())
    strided = from_dtensor([_StridedShard(0, split_factor=4), Shard(0)], MESH, ndim=1)
    assert strided == Placement((("data", Split(0, 1)), ("tensor", Split(0))))
    assert from_dtensor([Replicate(), Replicate()], MESH, ndim=0).is_replicated


def test_a_strided_shard_holds_what_dtensor_says() -> None:
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    theirs = [_StridedShard(0, split_factor=4), Shard(0)]
    placement = from_dtensor(theirs, MESH, ndim=1)
    for rank in range(MESH.num_ranks):
        place = list(MESH.coordinates(rank).values())
        sizes, starts = _compute_local_shape_and_global_offset((16,), (2, 4), place, theirs)
        (ours,) = slices((16,), placement, MESH, rank)
        assert (ours.start, ours.stop - ours.start) == (starts[0], sizes[0])


@pytest.mark.parametrize(
    ("placements", "reason"),
    [
        (["Partial('avg')", "Replicate()"], "reduce_op='avg'"),
        ([TorchPartial("product"), Replicate()], "reduce_op='product'"),
        (["_MaskPartial()", "Replicate()"], "_MaskPartial"),
        (["Shard(2)", "Replicate()"], "tensor with 2 dims"),
        (["_StridedShard(0, split_factor=3)", "Shard(0)"], "split_factor=3"),
        (["Shard(0)"], "1 placements for a mesh of 2 axes"),
        (["Shard 0", "Replicate()"], "'Shard 0'"),
        (["Shard(x)", "Replicate()"], "'Shard"),
    ],
)
def test_what_has_no_equal_is_refused_by_name(placements: list[str], reason: str) -> None:
    with pytest.raises(IrcError) as caught:
        from_dtensor(placements, MESH, ndim=2)
    assert caught.value.code == "dtensor-placement"
    assert reason in caught.value.message


def test_oneflow_notation_is_left_to_right() -> None:
    assert to_oneflow(Placement.of(data=Split(0), tensor=Split(0))) == "(S(0), S(0))"
    assert to_oneflow(Placement.of(data=B, tensor=Partial())) == "(B, P)"
    for refused in (
        Placement((("data", Split(0, 1)), ("tensor", Split(0)))),
        Placement.of(data=B, tensor=Partial("max")),
    ):
        with pytest.raises(IrcError, match="OneFlow"):
            to_oneflow(refused)

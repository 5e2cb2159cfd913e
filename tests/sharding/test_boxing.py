"""Boxing: paths do what they say, and cost what their bytes cost."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir import Operation

from irc.cluster.presets import PRESETS
from irc.cost.model import ClusterCost
from irc.dialects.comm import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    LocalChunkOp,
    PendingType,
    ReduceScatterOp,
)
from irc.dialects.flow import FlowOp
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.dialects.types import TensorType
from irc.errors import InternalError
from irc.interpret.collectives import run_collective
from irc.sharding.boxing import Boxing, LocalShape, Step, even_shape, step_between, steps_from
from irc.sharding.shards import combine, shard

SHAPE = (8, 3, 24)
MESHES = [Mesh.parse(text) for text in ("a=4", "a=2,b=4", "a=2,b=3", "a=2,b=2,c=2")]


@cache
def boxing(mesh: Mesh, cluster: str = "8xH100") -> Boxing:
    return ClusterCost(PRESETS[cluster], mesh).boxing


@st.composite
def placements(draw: st.DrawFn, mesh: Mesh, *, partial: bool = True) -> Placement:
    """Any even placement of SHAPE, the axes of one dim in any order."""
    reduction = draw(st.sampled_from(["sum", "max", "min"]))
    choices = [B, *(Split(dim) for dim in range(len(SHAPE)))]
    choices += [Partial(reduction)] if partial else []
    kinds = {axis: draw(st.sampled_from(choices)) for axis in draw(st.permutations(mesh.names))}
    ordered = dict(Placement.in_mesh_order(tuple(kinds.items())).axes)
    placed = Placement(tuple((axis, ordered[axis]) for axis in mesh.names))
    if even_shape(SHAPE, placed, mesh) is None:
        return Placement.replicated(mesh.names)
    return placed


def as_op(step: Step) -> Operation:
    """Build the op of a step; virtual ranks look at its attributes only."""
    kind = TensorType.of((1,))
    source: FlowOp = LocalChunkOp.make([], [kind], axis=step.axis, dim=0)
    value, pending, axis = [source.outputs[0]], [PendingType(kind)], step.axis
    match step.kind:
        case "all_reduce":
            return AllReduceOp.make(value, pending, axis=axis, fn=step.reduction)
        case "all_gather":
            return AllGatherOp.make(value, pending, axis=axis, dim=step.concat_dim)
        case "reduce_scatter":
            return ReduceScatterOp.make(
                value, pending, axis=axis, fn=step.reduction, dim=step.split_dim
            )
        case "all_to_all":
            return AllToAllOp.make(
                value, pending, axis=axis, split_dim=step.split_dim, concat_dim=step.concat_dim
            )
        case "local_chunk":
            return LocalChunkOp.make(value, [kind], axis=axis, dim=step.split_dim)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_steps_of_a_path_do_what_combining_and_cutting_does(data: st.DataObject) -> None:
    mesh = data.draw(st.sampled_from(MESHES))
    source = data.draw(placements(mesh))
    target = data.draw(placements(mesh, partial=False))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    value = torch.randint(-9, 9, SHAPE, generator=generator)
    held = [
        # Each rank of a partial axis has numbers of its own, not zeros: whatever is dropped is
        # seen.
        part + torch.randint(-9, 9, part.shape, generator=generator) * bool(source.partial_axes())
        for part in shard(value, source, mesh)
    ]
    if source.partial_axes():
        held = _equal_copies(held, source, mesh)
    whole = combine(held, source, mesh, SHAPE)
    for step in boxing(mesh).path(SHAPE, "i64", source, target):
        held = run_collective(as_op(step), [held], mesh)
    for mine, expected in zip(held, shard(whole, target, mesh), strict=True):
        assert torch.equal(mine, expected)


def _equal_copies(held: list[torch.Tensor], placed: Placement, mesh: Mesh) -> list[torch.Tensor]:
    """Give ranks that differ on B axes only the same numbers."""
    copies = [axis for axis, p in placed.axes if p == B]

    def first(rank: int) -> int:
        return mesh.rank({**mesh.coordinates(rank), **dict.fromkeys(copies, 0)})

    return [held[first(rank)] for rank in range(mesh.num_ranks)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_path_costs_the_distance(mesh: Mesh) -> None:
    table = boxing(mesh)
    source = Placement(tuple((axis, Partial("sum")) for axis in mesh.names))
    for dims in product(range(3), repeat=len(mesh.names)):
        target = Placement.in_mesh_order(
            tuple((axis, Split(dim)) for axis, dim in zip(mesh.names, dims, strict=True))
        )
        if even_shape(SHAPE, target, mesh) is None:
            continue
        here, total = source, 0.0
        for step in table.path(SHAPE, "f32", source, target):
            priced = dict(table.steps(SHAPE, "f32", here))
            here, total = step.result, total + priced[step]
        assert here == target
        assert total == pytest.approx(table.seconds(SHAPE, "f32", source, target))


def test_distances_are_a_metric_without_symmetry() -> None:
    mesh = Mesh.parse("a=2,b=4")
    table = boxing(mesh)
    seen = [
        Placement.of(a=x, b=y) for x in (B, Split(0), Split(2)) for y in (B, Split(0), Split(2))
    ]
    d = table.matrix(SHAPE, "f32", seen, seen)
    assert (np.diag(d) == 0).all()
    assert (d[:, :, None] + d[None, :, :] >= d[:, None, :] - 1e-18).all()
    assert d[0, 4] < d[4, 0], "slicing is cheaper than gathering"


def test_only_the_last_applied_axis_of_a_dim_moves() -> None:
    both = Placement.of(a=Split(0), b=Split(0))
    assert {(s.axis, s.kind) for s in steps_from(both, 2)} == {
        ("b", "all_gather"),
        ("b", "all_to_all"),
    }


def test_nothing_makes_a_partial_value() -> None:
    mesh = Mesh.parse("a=4")
    whole, summed = Placement.of(a=B), Placement.of(a=Partial("sum"))
    assert not boxing(mesh).reaches(SHAPE, "f32", whole, summed)
    assert step_between(whole, summed, 3) is None
    with pytest.raises(InternalError, match="no boxing"):
        boxing(mesh).path(SHAPE, "f32", whole, summed)


def test_sums_of_maxima_stay_as_they_are() -> None:
    mixed = Placement.of(a=Partial("sum"), b=Partial("max"))
    assert list(steps_from(mixed, 3)) == []


def test_paths_stay_even() -> None:
    mesh = Mesh.parse("a=2,b=4")
    table = boxing(mesh)
    for here in [Placement.of(a=Partial("sum"), b=Split(2)), Placement.replicated(mesh.names)]:
        for step, _ in table.steps(SHAPE, "f32", here):
            assert even_shape(SHAPE, step.result, mesh) is not None
    with pytest.raises(InternalError, match="evenly"):
        table.steps(SHAPE, "f32", Placement.of(a=Split(1), b=B))


def test_two_sums_are_reduced_in_pieces_where_the_outer_link_is_slow() -> None:
    """Reduce-scatter inside the node, all-reduce the small part between nodes, gather inside."""
    mesh = Mesh.parse("node=2,gpu=8")
    shape: LocalShape = (4096, 4096)
    summed = Placement.of(node=Partial("sum"), gpu=Partial("sum"))
    path = boxing(mesh, "2x8xH100").path(shape, "f32", summed, Placement.replicated(mesh.names))
    assert [(s.kind, s.axis) for s in path] == [
        ("reduce_scatter", "gpu"),
        ("all_reduce", "node"),
        ("all_gather", "gpu"),
    ]

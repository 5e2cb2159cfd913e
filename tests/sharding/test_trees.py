"""Boxing trees against enumeration."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations, permutations, product

import pytest

from irc.cluster.presets import PRESETS
from irc.cost.model import ClusterCost
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.sharding.boxing import Boxing
from irc.sharding.trees import Trees

SHAPE = (48, 16)
P = Partial("sum")


@cache
def boxing(mesh: str) -> Boxing:
    return ClusterCost(PRESETS["demo-gpus"], Mesh.parse(mesh)).boxing


def cheapest(table: Boxing, source: Placement, targets: Sequence[Placement]) -> float:
    """Try every set of two further placements, and every order of attaching what is wanted."""
    states = [source]
    for state in states:
        states += [s.result for s, _ in table.steps(SHAPE, "f32", state) if s.result not in states]
    others = [s for s in states if s not in (source, *targets)]
    best = float("inf")
    d = {(a, b): float(table.matrix(SHAPE, "f32", [a], [b])[0, 0]) for a in states for b in states}
    for size in range(3):
        for extra in combinations(others, size):
            for order in permutations((*targets, *extra)):
                have, total = [source], 0.0
                for node in order:
                    total += min(d[h, node] for h in have)
                    have.append(node)
                best = min(best, total)
    return best


@pytest.mark.parametrize(
    ("mesh", "source", "targets"),
    [
        ("a=4", [P], [[B], [Split(0)]]),
        ("a=4", [P], [[B], [Split(0)], [Split(1)]]),
        ("a=4", [Split(0)], [[B], [Split(1)]]),
        ("a=2,b=2", [P, P], [[B, B], [Split(0), B]]),
        ("a=2,b=2", [P, B], [[Split(0), Split(1)], [Split(0), B]]),
        ("a=2,b=2", [Split(0), Split(1)], [[B, B], [B, Split(1)], [B, Split(0)]]),
    ],
)
def test_a_tree_is_the_cheapest(
    mesh: str, source: list[object], targets: list[list[object]]
) -> None:
    table = boxing(mesh)

    def place(kinds: list[object]) -> Placement:
        return Placement.in_mesh_order(tuple(zip(table.mesh.names, kinds, strict=True)))

    wanted = [place(t) for t in targets]
    tree = Trees(table).tree(SHAPE, "f32", place(source), wanted)
    assert tree is not None
    assert tree.seconds == pytest.approx(cheapest(table, place(source), wanted))
    reached = {place(source)}
    for branch in tree.branches:
        assert branch.source in reached, "parents come first"
        reached.add(branch.target)
    assert set(wanted) <= reached


def test_a_sum_that_is_read_split_and_whole_is_reduced_once() -> None:
    table = boxing("a=4")
    split, whole = Placement.of(a=Split(0)), Placement.of(a=B)
    tree = Trees(table).tree(SHAPE, "f32", Placement.of(a=P), [whole, split])
    assert tree is not None
    assert [(b.source, b.target) for b in tree.branches] == [
        (Placement.of(a=P), split),
        (split, whole),
    ]


def test_many_readers_are_served_greedily_and_no_dearer_than_apart() -> None:
    table = boxing("a=2,b=2")
    kinds = [B, Split(0), Split(1)]
    wanted = [Placement.of(a=x, b=y) for x, y in product(kinds, kinds)]
    source = Placement.of(a=P, b=P)
    tree = Trees(table).tree(SHAPE, "f32", source, wanted)
    assert tree is not None
    assert {b.target for b in tree.branches} == set(wanted)
    assert tree.seconds <= sum(table.seconds(SHAPE, "f32", source, w) for w in wanted)


def test_what_cannot_be_reached_has_no_tree() -> None:
    trees = Trees(boxing("a=4"))
    assert trees.tree(SHAPE, "f32", Placement.of(a=B), [Placement.of(a=P)]) is None
    nothing = trees.tree(SHAPE, "f32", Placement.of(a=B), [Placement.of(a=B)])
    assert nothing is not None
    assert (nothing.seconds, nothing.branches) == (0.0, ())

"""Hoisted and joined collectives: the same numbers on every rank, fewer of them, and earlier."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp
from xdsl.ir import Block, SSAValue

from irc.cluster.load import find_cluster
from irc.cost.buckets import best_buckets, best_groups, collected
from irc.cost.model import ClusterCost
from irc.dialects.builder import FlowBuilder, entry, finish_function, functions
from irc.dialects.comm import AllReduceOp, CollectiveOp, PendingType, WaitOp
from irc.dialects.dominance import verify_module
from irc.dialects.flow import ContractOp, SliceOp, id_of
from irc.dialects.types import TensorType
from irc.interpret.levels import difference, random_inputs
from irc.interpret.spmd import run_spmd
from irc.passes.bucket_collectives import BucketCollectivesPass
from irc.passes.hoist_collectives import HoistCollectivesPass
from irc.passes.order import OrderPass
from irc.pipeline import run_passes
from irc.sharding.mesh import mesh_of
from tests.passes.spmd_programs import random_program

PASSES = {
    "hoist": [HoistCollectivesPass()],
    "buckets": [BucketCollectivesPass(bytes=1 << 30)],
    "small buckets": [HoistCollectivesPass(), BucketCollectivesPass(bytes=700)],
    "priced": [
        HoistCollectivesPass(),
        BucketCollectivesPass(cluster="1x8xH100"),
        OrderPass(cluster="1x8xH100"),
    ],
}


@pytest.mark.parametrize("way", PASSES)
@pytest.mark.parametrize("seed", range(12))
def test_every_rank_gets_the_same(seed: int, way: str) -> None:
    check(seed, way)


@pytest.mark.slow
def test_many_programs_on_every_rank() -> None:
    for seed in range(100, 700):
        for way in PASSES:
            check(seed, way)


def check(seed: int, way: str) -> None:
    module = random_program(seed)
    inputs, mesh = random_inputs(module), mesh_of(module)
    before = run_spmd(module, inputs, mesh, dtype=torch.float64)
    run_passes(module, PASSES[way])
    verify_module(module)
    after = run_spmd(module, inputs, mesh, dtype=torch.float64)
    for old, new in zip(before, after, strict=True):
        assert difference(new, old) < 1e-12, (seed, way)


def starts(module: ModuleOp, name: str = "forward") -> int:
    """How many collectives a call of a function starts."""
    known = functions(module)

    def count(name: str) -> int:
        ops = known[name].body.block.ops
        inner = [count(op.callee.string_value()) for op in ops if isinstance(op, CallOp)]
        return sum(inner) + sum(isinstance(op, CollectiveOp) for op in ops)

    return count(name)


def test_programs_have_what_is_joined() -> None:
    fewer = 0
    for seed in range(12):
        module = random_program(seed)
        count = starts(module)
        run_passes(module, PASSES["hoist"])
        assert starts(module) == count
        run_passes(module, PASSES["buckets"])
        fewer += count - starts(module)
    assert fewer >= 20


def test_updates_are_cut_at_the_collectives_in_them() -> None:
    cut = inside = 0
    for seed in range(12):
        module = random_program(seed)
        run_passes(module, PASSES["hoist"])
        names = functions(module)
        cut += any(name.endswith("_before") for name in names)
        ids = [id_of(op) for op in functions(module)["forward"].body.block.ops if id_of(op)]
        assert len(set(ids)) == len(ids), seed
        for name in names:
            inside += starts(module, name) if name.startswith("block_1") else 0
    assert cut >= 6 and not inside


def gradients(
    count: int, size: int, side: int, *, at_once: bool = False, returned: bool = False
) -> ModuleOp:
    """Matmuls of ``side``, each of which gives a gradient of ``size`` that is reduced over data.

    The sums are read at the end, or each at once, or they are returned.
    """
    block = Block(arg_types=[TensorType.of((side, side))] * 2)
    b = FlowBuilder(block)
    b.loc = "m.py:1"
    value, weight = block.args
    grads: list[SSAValue] = []
    results: list[SSAValue] = []
    for _ in range(count):
        value = b.op(ContractOp, [value, weight], spec="mk,kn->mn")
        flat = b.reshape(value, (side * side,))
        grads.append(b.op(SliceOp, [flat], starts=(0,), stops=(size,), steps=(1,)))
        if at_once:
            results.append(summed(b, grads.pop()))
    results += [summed(b, grad, is_read=not returned) for grad in grads]
    module = ModuleOp([finish_function("forward", block, results)])
    module.attributes["irc.mesh"] = StringAttr("data=8")
    return module


def summed(b: FlowBuilder, grad: SSAValue, *, is_read: bool = True) -> SSAValue:
    (pending,) = b.ops(AllReduceOp, [grad], results=[PendingType(grad.type)], axis="data", fn="sum")
    (value,) = b.ops(WaitOp, [pending], results=[grad.type])
    return b.pointwise("neg", value) if is_read else value


def chosen(module: ModuleOp, cluster: str) -> list[int]:
    mesh = mesh_of(module)
    cost = ClusterCost(find_cluster(cluster), mesh, alone=True)
    block = entry(module).body.block
    (members,) = collected(block).values()
    return [len(each) for each in best_buckets(cost, block, members, functions(module))]


def test_small_gradients_are_joined_but_not_all_to_the_end() -> None:
    """One bucket would begin when compute has ended; the last one is all that is bare."""
    sizes = chosen(gradients(48, 1 << 16, 512), "1x8xH100")
    assert 1 < len(sizes) < 24
    assert sum(sizes) > 40


@pytest.mark.parametrize("count", [96, 200])
def test_large_gradients_of_a_deep_program_are_joined_for_no_more_than_one_of_them(
    count: int,
) -> None:
    """Two percent of all of them were lost for fewer, which is many of 64 MiB where 200 are."""
    module = gradients(count, 1 << 24, 4096, returned=True)
    cost = ClusterCost(find_cluster("1x8xH100"), mesh_of(module), alone=True)
    block = entry(module).body.block
    (members,) = collected(block, packs=False).values()
    sizes = [len(each) for each in best_groups(cost, block, members, functions(module))]
    assert sum(sizes) == count
    assert max(sizes) <= 4


def test_what_a_host_sends_is_one_message() -> None:
    """Its processes compute on the cores that carry the bytes: nothing is hidden by beginning."""
    assert chosen(gradients(24, 1 << 8, 64), "this-host") == [24]


def test_large_gradients_stay_where_they_lie() -> None:
    assert chosen(gradients(6, 1 << 24, 4096), "1x8xH100") == []


def test_what_is_read_at_once_is_not_joined() -> None:
    assert chosen(gradients(6, 1 << 12, 256, at_once=True), "1x8xH100") == []

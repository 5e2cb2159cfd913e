"""The cost model on ops and placements."""

from dataclasses import replace

import pytest
from xdsl.ir import Block

from irc.cluster.presets import PRESETS
from irc.cost.model import ClusterCost
from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ContractOp, FlowOp, TransposeOp
from irc.dialects.indexing import TakeOp
from irc.dialects.placement import B, Mesh, Partial, Placement, Split
from irc.dialects.types import TensorType
from irc.sharding.signatures import find_signature, signatures

MESH = Mesh.parse("data=2,tensor=4")
COST = ClusterCost(PRESETS["8xH100"], MESH)
SHAPE = (64, 48)


def seconds(source: Placement, target: Placement) -> float:
    return COST.boxing_seconds(SHAPE, "f32", source, target)


def contract() -> FlowOp:
    block = Block(arg_types=[TensorType.of((4096, 4096)), TensorType.of((4096, 4096))])
    op = FlowBuilder(block).op(ContractOp, block.args, spec="mk,kn->mn").owner
    assert isinstance(op, FlowOp)
    return op


def test_splitting_an_op_divides_its_arithmetic() -> None:
    op = contract()
    whole, *_ = signatures(op, MESH)
    rows = find_signature(
        op,
        MESH,
        [Placement.of(data=B, tensor=Split(0)), Placement.replicated(MESH.names)],
        [Placement.of(data=B, tensor=Split(0))],
    )
    assert rows is not None
    # Without multiprocessors, which tiles would divide unevenly.
    device = replace(COST.cluster.device, units=0)
    cost = ClusterCost(replace(COST.cluster, device=device), MESH)
    times = [cost.op_seconds(op, s) - device.launch_s for s in (whole, rows)]
    assert times[0] == pytest.approx(2 * 4096**3 / device.flops("f32"))
    assert times[1] == pytest.approx(times[0] / 4)


def test_no_signature_of_any_op_is_free() -> None:
    block = Block(arg_types=[TensorType.of((64, 48)), TensorType.of((8,), "i64")])
    b = FlowBuilder(block)
    b.op(TransposeOp, [block.args[0]], perm=(1, 0))
    b.op(TakeOp, block.args, dim=0)
    b.pointwise("relu", block.args[0])
    for op in block.ops:
        assert isinstance(op, FlowOp)
        assert all(COST.op_seconds(op, s) > 0 for s in signatures(op, MESH))


def test_a_strategy_pays_for_its_whole_local_program() -> None:
    block = Block(arg_types=[TensorType.of((64, 48)), TensorType.of((8,), "i64")])
    op = FlowBuilder(block).op(TakeOp, block.args, dim=0).owner
    assert isinstance(op, FlowOp)
    by_rows = [s for s in signatures(op, MESH) if set(s.strategy) != {"rule"}]
    assert by_rows
    assert all(COST.op_seconds(op, s) > 2 * COST.cluster.device.launch_s for s in by_rows)


def test_slicing_an_outer_axis_under_an_inner_one_is_not_free() -> None:
    """(B, S0) -> (S0, S0) moves the inner blocks; OneFlow's table says 0 (trap T-7)."""
    inner = Placement.of(data=B, tensor=Split(0))
    both = Placement.of(data=Split(0), tensor=Split(0))
    other_order = Placement((("data", Split(0, 1)), ("tensor", Split(0, 0))))
    copy = seconds(inner, other_order)
    assert seconds(inner, both) > copy + COST.collective_seconds("all_to_all", 0, "tensor")


def test_a_sum_costs_more_to_have_whole_than_split() -> None:
    summed = Placement.of(data=B, tensor=Partial("sum"))
    split = Placement.of(data=B, tensor=Split(0))
    whole = Placement.replicated(MESH.names)
    assert 0 < seconds(summed, split) < seconds(summed, whole)
    assert seconds(summed, whole) <= seconds(summed, split) + seconds(split, whole) + 1e-15


def test_collectives_off_the_outermost_dim_pay_for_packing() -> None:
    whole = Placement.replicated(MESH.names)
    rows = seconds(Placement.of(data=B, tensor=Split(0)), whole)
    columns = seconds(Placement.of(data=B, tensor=Split(1)), whole)
    assert columns > rows


def test_a_host_joins_small_messages_only() -> None:
    sizes = [1 << 10, 1 << 20, 1 << 11]
    host = ClusterCost(PRESETS["this-host"], Mesh.parse("data=2"))
    assert host.joined_bytes("all_gather", sizes, "data") == 3 << 10
    assert COST.joined_bytes("all_gather", sizes, "data") == sum(sizes)


def test_a_host_gathers_a_large_bucket_as_one() -> None:
    host = ClusterCost(PRESETS["this-host"], Mesh.parse("data=2"))
    sizes = [1 << 10, 1 << 20, 1 << 20]
    assert host.joined_bytes("all_gather", sizes, "data") == sum(sizes)
    assert host.joined_bytes("reduce_scatter", sizes, "data") == 1 << 10
    parts = (host.joined_seconds("all_gather", size, sum(sizes), "data") for size in sizes)
    assert sum(parts) == pytest.approx(host.collective_seconds("all_gather", sum(sizes), "data"))


def test_hosts_share_no_memory() -> None:
    host = PRESETS["this-host"]
    hosts = replace(host, links=(replace(host.links[0], devices=2), *host.links))
    cost = ClusterCost(hosts, Mesh.parse("data=4"))
    assert cost.joined_bytes("all_gather", [1 << 10, 3 << 20], "data") == 1 << 10

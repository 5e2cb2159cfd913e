"""What fused ops move: the search prices the bytes that pass ``fuse`` leaves."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

from irc.cluster.presets import PRESETS
from irc.cost.model import ClusterCost
from irc.dialects.builder import FlowBuilder, argument_attrs, entry, finish_function
from irc.dialects.flow import BroadcastOp, ContractOp, FlowOp, tensor
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.ops.work import Traffic, local_bytes
from irc.search.candidates import candidates
from irc.sharding.signatures import signatures

MESH = Mesh.parse("tensor=2")
ROWS, WIDTH = 64, 96


def norm_then_matmul() -> ModuleOp:
    """``(x / sum(x * x)) w + r``: a row kernel, and a matmul with an epilogue."""
    square, wide = TensorType.of((WIDTH, WIDTH)), TensorType.of((ROWS, WIDTH))
    block = Block(arg_types=[wide, square, wide])
    x, w, r = block.args
    b = FlowBuilder(block)
    total = b.reduce("sum", b.pointwise("mul", x, x), [1], keep_dims=True)
    spread = b.op(BroadcastOp, [total], result=TensorType.of((ROWS, WIDTH)))
    normed = b.pointwise("div", x, spread)
    out = b.pointwise("add", b.op(ContractOp, [normed, w], spec="mk,kn->mn"), r)
    names = [argument_attrs("input", n) for n in "xwr"]
    result = [argument_attrs("output", "y")]
    return ModuleOp([finish_function("forward", block, [out], arg_attrs=names, res_attrs=result)])


def traffic_of(module: ModuleOp) -> dict[str, Traffic]:
    traffic_by_op = dict(candidates(entry(module)))
    return {op.plain.get("fn", op.name): traffic for op, traffic in traffic_by_op.items()}


def test_what_a_kernel_keeps_is_neither_written_nor_read() -> None:
    traffic = traffic_of(norm_then_matmul())
    assert traffic["mul"] == Traffic((1.0, 0.0), (0.0,), launches=True)  # x is read once
    assert traffic["sum"] == Traffic((0.0,), (0.0,), launches=False)
    assert traffic["div"] == Traffic((0.0, 0.0), (1.0,), launches=False)
    assert traffic["flow.contract"] == Traffic((1.0, 1.0), (0.0,), launches=True)
    assert traffic["add"] == Traffic((0.0, 1.0), (1.0,), launches=False)


def test_bytes_of_the_whole_program_are_those_of_its_kernels() -> None:
    module, moved = norm_then_matmul(), 0
    traffic_by_op = dict(candidates(entry(module)))
    for op, traffic in traffic_by_op.items():
        moved += local_bytes(op, signatures(op, MESH)[0], MESH, traffic)
    wide, square = 4 * ROWS * WIDTH, 4 * WIDTH * WIDTH
    # x and the normed rows; the normed rows again, w, r and the result.
    assert moved == 2 * wide + 3 * wide + square


def test_a_kernel_is_launched_once() -> None:
    module = norm_then_matmul()
    cost = ClusterCost(PRESETS["demo-gpus"], MESH)
    traffic_by_op = dict(candidates(entry(module)))
    alone = fused = 0.0
    for op in entry(module).body.block.ops:
        if isinstance(op, FlowOp) and op in traffic_by_op:
            whole = signatures(op, MESH)[0]
            alone += cost.op_seconds(op, whole)
            fused += cost.op_seconds(op, whole, traffic_by_op[op])
    launch = cost.cluster.device.launch_s
    assert len(traffic_by_op) == 5
    assert fused < alone - 3 * launch + 1e-12
    assert fused > 2 * launch


def test_a_broadcast_operand_is_read_at_its_own_size() -> None:
    block = Block(arg_types=[TensorType.of((1, WIDTH)), TensorType.of((ROWS, WIDTH))])
    b = FlowBuilder(block)
    spread = b.op(BroadcastOp, [block.args[0]], result=TensorType.of((ROWS, WIDTH)))
    out = b.pointwise("mul", spread, block.args[1])
    names = [argument_attrs("input", n) for n in "xy"]
    module = ModuleOp(
        [
            finish_function(
                "forward", block, [out], arg_attrs=names, res_attrs=[argument_attrs("output", "z")]
            )
        ]
    )
    (traffic,) = dict(candidates(entry(module))).values()
    assert traffic.reads == (1 / ROWS, 1.0)
    assert tensor(out).static_shape() == (ROWS, WIDTH)


def test_an_unread_op_is_no_candidate_of_another() -> None:
    block = Block(arg_types=[TensorType.of((ROWS, WIDTH))])
    b = FlowBuilder(block)
    kept = b.pointwise("relu", block.args[0])
    b.pointwise("exp", kept)
    names, res = [argument_attrs("input", "x")], [argument_attrs("output", "y")]
    module = ModuleOp([finish_function("forward", block, [kept], arg_attrs=names, res_attrs=res)])
    traffic = traffic_of(module)
    assert traffic["relu"].launches and traffic["relu"].writes == (1.0,)

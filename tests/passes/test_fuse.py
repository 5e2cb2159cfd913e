"""What pass fuse puts together, and what it must not."""

import math
from collections.abc import Callable

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, entry, finish_function
from irc.dialects.comm import AllReduceOp, PendingType, WaitOp
from irc.dialects.flow import ContractOp, FlowOp, FusionOp, SliceOp, TransposeOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.searches import SortOp
from irc.dialects.text import context, load
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, execute, random_inputs
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass
from irc.pipeline import run_passes
from tests.growth import calls

T = TensorType.of
Body = Callable[..., list[SSAValue]]


def build(body: Body, *kinds: tuple[int, ...] | TensorType) -> ModuleOp:
    block = Block(arg_types=[k if isinstance(k, TensorType) else T(k) for k in kinds])
    results = body(FlowBuilder(block), *block.args)
    return ModuleOp([finish_function("forward", block, results)])


def fused(body: Body, *kinds: tuple[int, ...] | TensorType) -> list[str]:
    """Fuse; return each op of the function, a fusion as ``kind: functions``."""
    module = build(body, *kinds)
    comm = any(op.name.startswith("comm.") for op in module.walk())
    inputs = random_inputs(module)
    want = [] if comm else run_function(module, inputs, dtype=torch.float64)
    FusePass().apply(context(), module)
    module.verify()
    if not comm:
        got = run_function(module, inputs, dtype=torch.float64)
        assert all(difference(a, b) == 0 for a, b in zip(got, want, strict=True))
    MapTasksPass().apply(context(), copy := module.clone())
    copy.verify()
    return [shown(op) for op in entry(module).body.block.ops if isinstance(op, FlowOp)]


def shown(op: FlowOp) -> str:
    if not isinstance(op, FusionOp):
        return op.name.partition(".")[2]
    inner = [o for o in op.body.block.ops if isinstance(o, FlowOp) and o.name != "flow.yield"]
    names = [o.plain.get("fn", o.name.removeprefix("flow.")) for o in inner]
    assert op.attributes["why"]
    return f"{op.kind}: {' '.join(names)}"


def softmax(b: FlowBuilder, x: SSAValue, dim: int) -> SSAValue:
    e = b.pointwise("exp", b.pointwise("sub", x, b.reduce("max", x, [dim], keep_dims=True)))
    return b.pointwise("div", e, b.reduce("sum", e, [dim], keep_dims=True))


def layer_norm(b: FlowBuilder, x: SSAValue, weight: SSAValue, bias: SSAValue) -> SSAValue:
    *_, width = tensor(x).static_shape()
    dim, scale = tensor(x).ndim - 1, b.scalar(1 / width, "f32")
    mean = b.pointwise("mul", b.reduce("sum", x, [dim], keep_dims=True), scale)
    centred = b.pointwise("sub", x, mean)
    squares = b.reduce("sum", b.pointwise("mul", centred, centred), [dim], keep_dims=True)
    spread = b.pointwise("add", b.pointwise("mul", squares, scale), b.scalar(1e-5, "f32"))
    normed = b.pointwise("mul", centred, b.pointwise("rsqrt", spread))
    return b.pointwise("add", b.pointwise("mul", normed, weight), bias)


def linear(b: FlowBuilder, x: SSAValue, weight: SSAValue, bias: SSAValue) -> SSAValue:
    *lead, width = tensor(x).static_shape()
    flat = b.reshape(x, (math.prod(lead), width))
    turned = b.op(TransposeOp, [weight], perm=(1, 0))
    y = b.pointwise("add", b.op(ContractOp, [flat, turned], spec="mk,kn->mn"), bias)
    return b.reshape(y, (*lead, tensor(y).static_shape()[-1]))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax_is_one_kernel_over_any_dim(dim: int) -> None:
    names = fused(lambda b, x: [softmax(b, x, dim)], (5, 3, 7))
    # Down columns it would store with a stride: the last function reads what was reduced.
    assert len(names) == 1 if dim == 2 else len(names) <= 4


def test_layer_norm_is_one_kernel_and_reads_its_parameters() -> None:
    assert len(fused(lambda b, *v: [layer_norm(b, *v)], (5, 3, 7), (7,), (7,))) == 1


def test_residual_in_front_of_a_norm_is_a_second_output() -> None:
    def body(b: FlowBuilder, x: SSAValue, y: SSAValue, w: SSAValue) -> list[SSAValue]:
        total = b.pointwise("add", x, y)
        return [total, layer_norm(b, total, w, w)]

    (name,) = fused(body, (5, 7), (5, 7), (7,))
    assert name.startswith("rows: ")


def test_a_matmul_takes_bias_activation_and_residual() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue, c: SSAValue, r: SSAValue) -> list[SSAValue]:
        return [b.pointwise("add", r, b.pointwise("gelu", linear(b, x, w, c)))]

    names = fused(body, (2, 5, 7), (3, 7), (3,), (2, 5, 3))
    assert names == ["reshape", "transpose", "matmul: contract add reshape gelu add"]


def test_gated_mlp_is_two_matmuls() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue, v: SSAValue) -> list[SSAValue]:
        gate, up = (b.op(ContractOp, [x, m], spec="mk,kn->mn") for m in (w, v))
        return [b.pointwise("mul", b.pointwise("silu", gate), up)]

    names = fused(body, (5, 7), (7, 3), (7, 3))
    assert names == ["matmul: contract", "matmul: contract silu mul"]


def test_a_residual_of_bytes_is_read_where_a_matmul_leaves_its_result() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue, q: SSAValue) -> list[SSAValue]:
        wide = b.pointwise("mul", b.cast(q, "f32"), b.scalar(0.1, "f32"))
        return [b.pointwise("add", b.op(ContractOp, [x, w], spec="mk,kn->mn"), wide)]

    assert fused(body, (5, 7), (7, 3), T((5, 3), "u8")) == [
        "matmul: cast constant mul contract add"
    ]
    assert len(fused(body, (5, 7), (7, 3), T((5, 3), "i64"))) == 2


def test_a_widened_residual_that_others_read_is_made_once() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue, q: SSAValue) -> list[SSAValue]:
        wide = b.pointwise("mul", b.cast(q, "f32"), b.scalar(0.1, "f32"))
        y = b.pointwise("add", b.op(ContractOp, [x, w], spec="mk,kn->mn"), wide)
        return [y, b.reduce("sum", wide, [1], keep_dims=False)]

    assert len(fused(body, (5, 7), (7, 3), T((5, 3), "u8"))) > 1


def test_a_matmul_that_others_read_too_is_left_alone() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        y = b.op(ContractOp, [x, w], spec="mk,kn->mn")
        return [b.pointwise("mul", y, y), softmax(b, y, 1)]

    assert fused(body, (5, 7), (7, 3))[0] == "matmul: contract"


def test_a_matmul_may_save_its_value_for_later() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        y = b.op(ContractOp, [x, w], spec="mk,kn->mn")
        return [y, b.pointwise("gelu", y)]

    assert fused(body, (5, 7), (7, 3)) == ["matmul: contract gelu"]


def test_operands_of_a_matmul_are_not_computed_in_it() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        return [b.op(ContractOp, [b.pointwise("relu", x), w], spec="mk,kn->mn")]

    assert fused(body, (5, 7), (7, 3)) == ["rows: relu", "matmul: contract"]


def test_no_cycle_through_a_library_op() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        a = b.pointwise("neg", x)
        ordered = b.ops(SortOp, [a], dim=1, descending=False)[0]
        return [b.pointwise("add", a, ordered)]

    assert fused(body, (5, 7)) == ["rows: neg", "sort", "rows: add"]


def test_no_cycle_between_groups() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        a = b.pointwise("neg", x)
        y = b.pointwise("relu", b.op(ContractOp, [a, w], spec="mk,kn->mn"))
        return [b.pointwise("add", b.pointwise("abs", a), y)]

    names = fused(body, (5, 7), (7, 7))
    assert sum("contract" in name for name in names) == 1


def test_a_collective_is_a_barrier() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        a = b.pointwise("neg", x)
        pending = b.ops(AllReduceOp, [a], results=[PendingType(a.type)], axis="data", fn="sum")
        (done,) = b.ops(WaitOp, pending, results=[a.type])
        return [b.pointwise("exp", b.pointwise("add", done, a))]

    assert fused(body, (5, 7)) == ["rows: neg", "all_reduce", "wait", "rows: add exp"]


def test_reductions_over_different_dims_are_two_kernels() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        y = b.pointwise("neg", x)
        return [b.reduce("sum", y, [0], keep_dims=False), b.reduce("sum", y, [1], keep_dims=False)]

    assert len(fused(body, (20, 21))) == 2


def test_costly_functions_are_not_computed_again_for_each_row() -> None:
    def body(fn: str) -> Body:
        return lambda b, x, y: [b.pointwise("mul", x, b.pointwise(fn, y))]

    assert len(fused(body("exp"), (5, 7), (7,))) == 2
    assert len(fused(body("neg"), (5, 7), (7,))) == 1


def test_few_long_rows_keep_their_parallelism() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        return [b.reduce("sum", b.pointwise("exp", x), [0, 1], keep_dims=False)]

    assert len(fused(body, (512, 513))) == 2
    assert len(fused(body, (5, 7))) == 1


def test_literals_are_made_where_they_are_used() -> None:
    def body(b: FlowBuilder, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        half = b.broadcast(b.scalar(0.5, "f32"), (7,))
        return [b.pointwise("mul", x, half), softmax(b, b.pointwise("mul", y, half), 1)]

    names = fused(body, (5, 7), (4, 7))
    assert len(names) == 2 and all("constant" in name for name in names)


def test_an_embedding_takes_what_follows_it() -> None:
    def body(b: FlowBuilder, table: SSAValue, ids: SSAValue, p: SSAValue) -> list[SSAValue]:
        index = b.pointwise("neg", b.pointwise("neg", ids))
        return [b.pointwise("add", b.op(TakeOp, [table, index], dim=0), p)]

    (name,) = fused(body, (11, 7), T((3, 5), "i64"), (5, 7))
    assert name == "rows: neg neg take add"


def test_shape_ops_inside_fold_away() -> None:
    def body(b: FlowBuilder, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        split = b.reshape(b.pointwise("neg", x), (5, 3, 4))
        turned = b.op(TransposeOp, [split], perm=(1, 0, 2))
        return [b.pointwise("add", turned, y)]

    assert fused(body, (5, 12), (3, 5, 4)) == ["rows: neg reshape transpose add"]


def test_a_value_and_its_transpose_are_two_passes() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        y = b.pointwise("exp", x)
        return [b.pointwise("add", y, b.op(TransposeOp, [y], perm=(1, 0)))]

    assert fused(body, (5, 5)) == ["rows: exp", "transpose", "rows: add"]


def test_ids_and_lines_survive() -> None:
    module = build(lambda b, x: [softmax(b, x, 1)], (5, 7))
    FusePass().apply(context(), module)
    seen: list[str] = []
    run_function(module, random_inputs(module), trace=lambda name, *_: seen.append(name))
    assert seen == ["n0", "n1", "n2", "n3", "n4", "n4"]


def transformer(layers: int, *, heads: int = 3, width: int = 12) -> ModuleOp:
    """GPT-2 blocks of 2 x 7 tokens."""
    mats = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    shapes = [s for m in mats for s in (m, (m[0],))] + [(width,)] * 4

    def body(b: FlowBuilder, x: SSAValue, *values: SSAValue) -> list[SSAValue]:
        for layer in range(layers):
            p = values[layer * len(shapes) : (layer + 1) * len(shapes)]
            qkv = linear(b, layer_norm(b, x, p[8], p[9]), p[0], p[1])
            parts = [
                b.op(SliceOp, [qkv], starts=(0, 0, i * width), stops=(-1, -1, (i + 1) * width),
                     steps=(1, 1, 1)) for i in range(3)
            ]  # fmt: skip
            split = [b.reshape(part, (2, 7, heads, width // heads)) for part in parts]
            split = [b.op(TransposeOp, [part], perm=(0, 2, 1, 3)) for part in split]
            mixed = b.op(AttentionOp, split, is_causal=True, scale=0.5)
            mixed = b.reshape(b.op(TransposeOp, [mixed], perm=(0, 2, 1, 3)), (2, 7, width))
            x = b.pointwise("add", x, linear(b, mixed, p[2], p[3]))
            inner = b.pointwise("gelu", linear(b, layer_norm(b, x, p[10], p[11]), p[4], p[5]))
            x = b.pointwise("add", x, linear(b, inner, p[6], p[7]))
        return [x]

    return build(body, (2, 7, width), *shapes * layers)


def test_a_transformer_block_is_six_kernels_and_attention() -> None:
    module = transformer(1)
    CanonicalizePass().apply(context(), module)
    FusePass().apply(context(), module)
    kinds = [op.kind for op in module.walk() if isinstance(op, FusionOp)]
    assert kinds == ["rows", "matmul", "matmul", "rows", "matmul", "matmul"]


def test_fusion_is_near_linear_in_layers() -> None:
    def work(layers: int) -> int:
        module = transformer(layers)
        return calls(lambda: FusePass().apply(context(), module))

    work(1)
    few, many = work(2), work(16)
    assert many < 8 * few * 1.05


def test_rows_and_columns_of_one_iota_are_two_axes() -> None:
    """A causal mask compares an iota with itself turned on its side, as transformers writes it."""
    module = load(
        """
        func.func @forward() -> !flow.tensor<[1, 5, 5], i1> {
          %i = flow.iota() {dim = 0 : i64, loc = "m.py:1", id = "n0"} : () -> !flow.tensor<[5], i64>
          %r = flow.reshape(%i) {loc = "m.py:2", id = "n1"}
              : (!flow.tensor<[5], i64>) -> !flow.tensor<[1, 5, 1], i64>
          %c = flow.reshape(%i) {loc = "m.py:3", id = "n2"}
              : (!flow.tensor<[5], i64>) -> !flow.tensor<[1, 1, 5], i64>
          %m = flow.pointwise(%c, %r) {fn = "le", loc = "m.py:4", id = "n3"}
              : (!flow.tensor<[1, 1, 5], i64>, !flow.tensor<[1, 5, 1], i64>)
              -> !flow.tensor<[1, 5, 5], i1>
          func.return %m : !flow.tensor<[1, 5, 5], i1>
        }
        """
    )
    run_passes(module, [FusePass(), MapTasksPass(target="cpu")], verify_each="ir")
    (mask,) = execute(module, [])
    assert torch.equal(mask, torch.ones(1, 5, 5, dtype=torch.bool).tril())

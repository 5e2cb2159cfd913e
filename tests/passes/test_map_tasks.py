"""Random graphs through canonicalize, fuse and map-tasks: the numbers stay, in float64."""

import random

import pytest
import torch
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ContractOp, SliceOp, TransposeOp, tensor
from irc.dialects.indexing import GatherOp, TakeOp
from irc.dialects.launches import LaunchOp, ViewOp
from irc.dialects.literals import IotaOp
from irc.dialects.searches import SortOp
from irc.dialects.task import KernelOp
from irc.dialects.text import context, dump, load
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, execute, random_inputs
from irc.passes.canonicalize import CanonicalizePass
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass

T = TensorType.of


class Graph:
    """Draws a program: odd sizes, values of several shapes, most ops on what was made last."""

    def __init__(self, seed: int, ops: int) -> None:
        self.random = random.Random(seed)
        sizes = self.random.sample([1, 2, 3, 5, 6, 7, 12], 3)
        shapes = [tuple(sizes), (sizes[2],), (sizes[1], 1), (*sizes[:2], 1), (sizes[2], 9), (12, 7)]
        self.block = Block(arg_types=[T(shape) for shape in shapes])
        self.b = FlowBuilder(self.block)
        self.values: list[SSAValue] = list(self.block.args)
        for _ in range(ops):
            step = self.random.choice(
                [self.unary, self.binary, self.binary, self.reduce, self.reduce, self.reshape,
                 self.transpose, self.slice, self.broadcast, self.contract, self.take, self.where]
            )  # fmt: skip
            value = step(self.pick())
            if value is not None and max(tensor(value).static_shape(), default=1) < 200:
                self.values.append(value)

    def pick(self) -> SSAValue:
        """Prefer values made lately."""
        index = int(len(self.values) * self.random.random() ** 0.4)
        return self.values[min(index, len(self.values) - 1)]

    def unary(self, x: SSAValue) -> SSAValue:
        return self.b.pointwise(self.random.choice(["neg", "tanh", "sigmoid", "abs"]), x)

    def partner(self, x: SSAValue) -> SSAValue | None:
        shape = tensor(x).static_shape()
        fits = [
            v for v in self.values
            if len(s := tensor(v).static_shape()) <= len(shape)
            and all(n in (1, m) for n, m in zip(s[::-1], shape[::-1], strict=False))
        ]  # fmt: skip
        return self.random.choice(fits) if fits else None

    def binary(self, x: SSAValue) -> SSAValue | None:
        y = self.partner(x)
        operands = [x, y] if self.random.random() < 0.5 else [y, x]
        fn = self.random.choice(["add", "sub", "mul", "maximum"])
        return None if y is None else self.b.pointwise(fn, *operands)

    def where(self, x: SSAValue) -> SSAValue | None:
        y = self.partner(x)
        if y is None:
            return None
        return self.b.pointwise("where", self.b.pointwise("lt", x, y), x, self.b.scalar(0.5, "f32"))

    def reduce(self, x: SSAValue) -> SSAValue | None:
        ndim = tensor(x).ndim
        if ndim == 0:
            return None
        dims = [ndim - 1] if self.random.random() < 0.5 else self.random.sample(range(ndim), 1)
        fn = self.random.choice(["sum", "max", "min"])
        keep = self.random.random() < 0.6
        return self.b.reduce(fn, x, sorted(dims), keep_dims=keep)

    def reshape(self, x: SSAValue) -> SSAValue:
        shape = list(tensor(x).static_shape())
        if len(shape) > 1 and self.random.random() < 0.6:
            at = self.random.randrange(len(shape) - 1)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        else:
            shape = [p for n in shape for p in ([3, n // 3] if n % 3 == 0 and n > 3 else [n])]
        return self.b.reshape(x, shape)

    def transpose(self, x: SSAValue) -> SSAValue:
        perm = list(range(tensor(x).ndim))
        self.random.shuffle(perm)
        return self.b.op(TransposeOp, [x], perm=tuple(perm))

    def slice(self, x: SSAValue) -> SSAValue:
        shape = tensor(x).static_shape()
        starts = [self.random.randrange(n) if self.random.random() < 0.3 else 0 for n in shape]
        steps = [self.random.choice([1, 1, 1, 2]) for _ in shape]
        return self.b.op(
            SliceOp, [x], starts=tuple(starts), stops=tuple(-1 for _ in shape), steps=tuple(steps)
        )

    def broadcast(self, x: SSAValue) -> SSAValue:
        shape = [
            3 if n == 1 and self.random.random() < 0.5 else n for n in tensor(x).static_shape()
        ]
        lead = [2] if self.random.random() < 0.3 and len(shape) < 4 else []
        return self.b.broadcast(x, [*lead, *shape])

    def contract(self, x: SSAValue) -> SSAValue | None:
        shape = tensor(x).static_shape()
        letters = "abcde"[: len(shape)]
        for y in self.random.sample(self.values, len(self.values)):
            other = tensor(y).static_shape()
            if shape and other and len(shape) < 5 and other[0] == shape[-1]:
                right = letters[-1] + "xyzw"[: len(other) - 1]
                result = list(letters[:-1] + right[1:])
                self.random.shuffle(result)
                spec = f"{letters},{right}->{''.join(result)}"
                return self.b.op(ContractOp, [x, y], spec=spec) if len(result) < 5 else None
        return None

    def take(self, x: SSAValue) -> SSAValue | None:
        shape = tensor(x).static_shape()
        if not shape or len(shape) > 3:
            return None
        dim = self.random.randrange(len(shape))
        count = self.random.randint(1, shape[dim])
        index = self.b.op(IotaOp, [], result=T((count,), "i64"), dim=0)
        return self.b.op(TakeOp, [x, index], dim=dim)

    def module(self) -> ModuleOp:
        computed = self.values[len(self.block.args) :]
        results = self.random.sample(computed, min(3, len(computed)))
        return ModuleOp([finish_function("forward", self.block, results)])


def lowered(module: ModuleOp, *passes: object) -> list[float]:
    """Run passes; return the errors of the outputs after each."""
    inputs = random_inputs(module)
    want = run_function(module, inputs, dtype=torch.float64)
    errors: list[float] = []
    for each in passes:
        each.apply(context(), module)
        module.verify()
        got = execute(module, inputs)
        errors.append(max(difference(a, b) for a, b in zip(got, want, strict=True)))
    return errors


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_compute_the_same(seed: int) -> None:
    target = ("cpu", "sm_80", "sm_90")[seed % 3]
    module = Graph(seed, 4 + seed % 20).module()
    for name, error in zip(
        ("canonicalize", "fuse", "map-tasks"),
        lowered(module, CanonicalizePass(), FusePass(), MapTasksPass(target)),
        strict=True,
    ):
        assert error < 1e-9, name
    assert load(dump(module)).is_structurally_equivalent(module)


@pytest.mark.parametrize("seed", range(100, 115))
def test_unfused_graphs_compute_the_same(seed: int) -> None:
    assert lowered(Graph(seed, 12).module(), MapTasksPass())[0] < 1e-9


def build(shapes: list[tuple[int, ...]], body: object, dtypes: str = "") -> ModuleOp:
    """Make a module from argument shapes and a function of builder and arguments."""
    kinds = dtypes.split() or ["f32"] * len(shapes)
    block = Block(arg_types=[T(s, d) for s, d in zip(shapes, kinds, strict=True)])
    results = body(FlowBuilder(block), *block.args)
    return ModuleOp([finish_function("forward", block, results)])


def ops_of(module: ModuleOp, kind: type) -> list:
    return [op for op in module.walk() if isinstance(op, kind)]


def test_only_kernels_views_and_library_ops_are_left() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        turned = b.op(TransposeOp, [b.pointwise("exp", x)], perm=(1, 0))
        return [b.ops(SortOp, [turned], dim=0, descending=False)[0], turned]

    module = build([(5, 7)], body)
    # On a GPU a library sorts.
    passes = FusePass(target="sm_80"), MapTasksPass(target="sm_80")
    assert lowered(module, *passes)[-1] < 1e-12
    (view,) = ops_of(module, ViewOp)
    assert view.plain["strides"] == (1, 7)
    # The sort reads the view; what the function returns is a copy.
    assert [op.kernel_name for op in ops_of(module, LaunchOp)] == ["k0_exp", "k1_copy"]


def test_equal_kernels_are_one_symbol_and_remember_all_sources() -> None:
    def body(b: FlowBuilder, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        return [b.reduce("sum", v, [1], keep_dims=False) for v in (x, y)]

    module = build([(5, 7), (5, 7)], body)
    lowered(module, MapTasksPass())
    (kernel,) = ops_of(module, KernelOp)
    assert len(ops_of(module, LaunchOp)) == 2
    assert [s.data for s in kernel.sources] == ["n0", "n1"]


def test_launch_names_the_flow_value_of_each_result_and_keeps_placements() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        total = b.pointwise("exp", x)
        for value in (total, mean := b.reduce("sum", total, [1], keep_dims=True)):
            value.owner.attributes["sbp"] = ArrayAttr(
                [StringAttr(f"placement of {value.owner.name}")]
            )
        return [total, mean]

    module = build([(5, 7)], body)
    lowered(module, FusePass(), MapTasksPass())
    (launch,) = ops_of(module, LaunchOp)
    assert [s.data for s in launch.attributes["results"]] == ["n0", "n1"]
    assert [s.data for s in launch.attributes["sbp"]] == [
        "placement of flow.pointwise",
        "placement of flow.reduce",
    ]


def test_matmul_with_reduced_dims_apart_copies_one_operand() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        return [b.op(ContractOp, [x, w], spec="bhsd,hde->bse")]

    module = build([(2, 3, 5, 4), (3, 4, 7)], body)
    assert lowered(module, MapTasksPass())[0] < 1e-12
    copy, matmul = ops_of(module, KernelOp)
    assert (copy.template.data, matmul.template.data) == ("rows", "matmul")
    assert matmul.space_extents == (10, 7, 12)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_matmul_over_windows_copies_what_walks_two_dims_in_turn(swapped: bool, target: str) -> None:
    """A weight's gradient under windows of an image: places of windows, then places in a window."""

    def body(b: FlowBuilder, image: SSAValue, x: SSAValue) -> list[SSAValue]:
        parts = b.reshape(image, (3, 2, 4, 5, 7))
        windows = b.reshape(b.op(TransposeOp, [parts], perm=(0, 2, 1, 3, 4)), (12, 10, 7))
        operands = [windows, x] if swapped else [x, windows]
        return [b.op(ContractOp, operands, spec="abz,aby->zy")]

    module = build([(3, 2, 20, 7), (12, 10, 6)], body)
    assert lowered(module, FusePass(), MapTasksPass(target))[-1] < 1e-12
    (matmul,) = [k for k in ops_of(module, KernelOp) if k.template.data == "matmul"]
    assert matmul.space_extents[-1] == 120


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_matmul_over_parts_of_a_dim_in_another_order_copies_them(
    swapped: bool, target: str
) -> None:
    """The trace of a product: torch gives a dim for both that are summed over, row by row."""

    def body(b: FlowBuilder, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        rows = b.reshape(x, (2, 1, 12))
        turned = b.reshape(b.op(TransposeOp, [y], perm=(0, 2, 1)), (2, 12, 1))
        if swapped:
            rows, turned = (b.op(TransposeOp, [v], perm=(0, 2, 1)) for v in (turned, rows))
        product = b.op(ContractOp, [rows, turned], spec="bmk,bkn->bmn")
        return [b.reshape(product, (2,)), rows, turned]

    module = build([(2, 3, 4), (2, 4, 3)], body)
    assert lowered(module, FusePass(), MapTasksPass(target))[-1] < 1e-12


@pytest.mark.parametrize(
    ("spec", "a", "b", "space"),
    [
        ("mk,kn->mn", (5, 7), (7, 3), (5, 3, 7)),
        ("mk,nk->mn", (5, 7), (3, 7), (5, 3, 7)),
        ("mk,kn->nm", (5, 7), (7, 3), (3, 5, 7)),
        ("bmk,bkn->bmn", (2, 5, 7), (2, 7, 3), (2, 5, 3, 7)),
        ("bsk,kn->bsn", (2, 5, 7), (7, 3), (10, 3, 7)),
        ("bsk,khd->bhsd", (2, 5, 7), (7, 3, 4), (2, 3, 5, 4, 7)),
        ("k,kn->n", (7,), (7, 3), (1, 3, 7)),
        ("k,k->", (7,), (7,), (1, 1, 7)),
    ],
)
def test_contractions_are_batch_m_n_k(
    spec: str, a: tuple[int, ...], b: tuple[int, ...], space: tuple[int, ...]
) -> None:
    module = build([a, b], lambda f, x, y: [f.op(ContractOp, [x, y], spec=spec)])
    assert lowered(module, FusePass(), MapTasksPass())[-1] < 1e-12
    (kernel,) = ops_of(module, KernelOp)
    assert (kernel.template.data, kernel.space_extents) == ("matmul", space)
    first, second = [op for op in kernel.body.block.ops if op.name == "task.load"]
    m, n = len(space) - 3, len(space) - 2
    assert first.plain["strides"][n] == 0 and second.plain["strides"][m] == 0


@pytest.mark.parametrize("spec", ["mk,n->mn", "m,n->mn", "mk,kn,n->m", "mkj->mj"])
def test_other_einsums_are_rows(spec: str) -> None:
    sizes = {"m": 5, "k": 7, "n": 3, "j": 2}
    shapes = [tuple(sizes[c] for c in part) for part in spec.split("->")[0].split(",")]
    module = build(shapes, lambda b, *args: [b.op(ContractOp, list(args), spec=spec)])
    assert lowered(module, FusePass(), MapTasksPass())[-1] < 1e-12
    assert {k.template.data for k in ops_of(module, KernelOp)} == {"rows"}


def test_a_product_with_itself_reads_it_twice() -> None:
    module = build(
        [(5, 5)], lambda b, x: [b.pointwise("add", b.op(ContractOp, [x, x], spec="mk,kn->mn"), x)]
    )
    assert lowered(module, FusePass(), MapTasksPass())[-1] < 1e-12


def test_empty_tensors_stay_with_the_library() -> None:
    module = build(
        [(0, 5)], lambda b, x: [b.reduce("sum", b.pointwise("exp", x), [0], keep_dims=False)]
    )
    assert lowered(module, FusePass(), MapTasksPass())[-1] == 0.0
    assert not ops_of(module, KernelOp)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gathers_read_through_views(dim: int) -> None:
    def body(b: FlowBuilder, x: SSAValue, index: SSAValue) -> list[SSAValue]:
        turned = b.op(TransposeOp, [x], perm=(2, 0, 1))
        bound = b.pointwise("remainder", index, b.scalar(3, "i64"))
        taken = b.op(TakeOp, [turned, bound], dim=dim)
        count = [4, 3, 5]
        where = b.op(SliceOp, [b.op(IotaOp, [], result=T((4, 9, 5), "i64"), dim=2)],
                     starts=(0, 3, 0), stops=(4, 6, 5), steps=(1, 1, 1))  # fmt: skip
        where = b.pointwise("remainder", where, b.scalar(min(count), "i64"))
        return [b.pointwise("neg", taken), b.op(GatherOp, [turned, where], dim=dim)]

    module = build([(3, 5, 4), (2, 7)], body, "f32 i64")
    assert lowered(module, CanonicalizePass(), FusePass(), MapTasksPass())[-1] == 0.0
    kernels = [k for k in ops_of(module, KernelOp) if "take" in k.sym_name.data]
    assert len(kernels) == 2 and not ops_of(module, GatherOp)


def test_reductions_of_every_function_and_dtype() -> None:
    def body(b: FlowBuilder, x: SSAValue, i: SSAValue, h: SSAValue) -> list[SSAValue]:
        positive = b.pointwise("gt", x, b.scalar(0.0, "f32"))
        reduced = [b.reduce(fn, positive, [1], keep_dims=False) for fn in ("any", "all")]
        reduced += [b.reduce(fn, x, [1], keep_dims=True) for fn in ("sum", "prod", "max", "min")]
        reduced += [b.reduce(fn, i, [0], keep_dims=False) for fn in ("sum", "max")]
        return [*reduced, b.reduce("sum", h, [0, 1], keep_dims=True)]

    module = build([(5, 7), (5, 7), (5, 7)], body, "f32 i64 bf16")
    assert lowered(module, FusePass(), MapTasksPass())[-1] < 1e-12


def test_attention_reads_views_in_place() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        parts = [
            b.op(SliceOp, [x], starts=(0, 0, 4 * i), stops=(2, 5, 4 * i + 4), steps=(1, 1, 1))
            for i in range(3)
        ]
        heads = [b.op(TransposeOp, [b.reshape(p, (2, 5, 2, 2))], perm=(0, 2, 1, 3)) for p in parts]
        return [b.op(AttentionOp, heads, is_causal=True, scale=0.5)]

    module = build([(2, 5, 12)], body)
    assert lowered(module, FusePass(), MapTasksPass())[-1] < 1e-9
    assert len(ops_of(module, LaunchOp)) == 1 and not ops_of(module, ViewOp)


def test_literals_in_front_of_a_return_become_kernels() -> None:
    module = build(
        [(3,)], lambda b, x: [b.constant([1.0, -2.0, 3.5], (3,), "f32"), b.scalar(7, "i64")]
    )
    assert lowered(module, FusePass(), MapTasksPass())[-1] == 0.0
    assert len(ops_of(module, LaunchOp)) == 2


def test_unknown_target_and_named_sizes_are_user_errors() -> None:
    module = build([(3,)], lambda b, x: [b.pointwise("exp", x)])
    with pytest.raises(IrcError, match="no target 'tpu'"):
        MapTasksPass("tpu").apply(context(), module)
    symbolic = load(
        "func.func @forward(%x: !flow.tensor<[B], f32>) -> !flow.tensor<[B], f32> {"
        "  func.return %x : !flow.tensor<[B], f32> }"
    )
    with pytest.raises(IrcError, match="without a number: B"):
        MapTasksPass().apply(context(), symbolic)


def test_a_fusion_that_is_no_kernel_is_refused() -> None:
    kind = "!flow.tensor<[4, 6], f32>"
    text = f"""
    func.func @forward(%x: {kind}) -> (!flow.tensor<[4], f32>, !flow.tensor<[6], f32>) {{
      %0, %1 = flow.fusion(%x) {{kind = "rows"}}
          : ({kind}) -> (!flow.tensor<[4], f32>, !flow.tensor<[6], f32>) {{
      ^bb0(%a: {kind}):
        %2 = flow.reduce(%a) {{fn = "sum", dims = array<i64: 1>, keep_dims = false}}
            : ({kind}) -> !flow.tensor<[4], f32>
        %3 = flow.reduce(%a) {{fn = "sum", dims = array<i64: 0>, keep_dims = false}}
            : ({kind}) -> !flow.tensor<[6], f32>
        flow.yield(%2, %3) : (!flow.tensor<[4], f32>, !flow.tensor<[6], f32>) -> ()
      }}
      func.return %0, %1 : !flow.tensor<[4], f32>, !flow.tensor<[6], f32>
    }}"""
    with pytest.raises(IrcError, match="reductions over different dims"):
        MapTasksPass().apply(context(), load(text))

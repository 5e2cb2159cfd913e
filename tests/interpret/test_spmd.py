"""All ranks in one process: the numbers of flow, flow+sbp and spmd are the same."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.builder import FlowBuilder, argument_attrs, finish_function
from irc.dialects.comm import AllReduceOp, CollectiveOp
from irc.dialects.flow import ContractOp, ReshapeOp, SliceOp, TransposeOp, tensor
from irc.dialects.indexing import TakeOp
from irc.dialects.literals import IotaOp
from irc.dialects.placement import Mesh, Placement
from irc.dialects.text import context, dump, load
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.errors import InternalError, IrcError
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, random_inputs
from irc.interpret.sharded import run_sharded
from irc.interpret.spmd import run_spmd
from irc.passes.auto_shard import AutoShardPass
from irc.passes.lower_boxing import LowerBoxingPass
from irc.sharding.shards import combine

T = TensorType.of
Args = Sequence[tuple[str, str, TensorType]]


def module_of(args: Args, build: Callable[..., list[SSAValue]], *blocks: object) -> ModuleOp:
    block = Block(arg_types=[kind for _, _, kind in args])
    results = build(FlowBuilder(block), *block.args)
    arg_attrs = [argument_attrs(role, name) for role, name, _ in args]
    res_attrs = [argument_attrs("output", f"y{i}") for i in range(len(results))]
    module = ModuleOp(
        [
            finish_function("forward", block, results, arg_attrs=arg_attrs, res_attrs=res_attrs),
            *blocks,
        ]
    )  # type: ignore[list-item]
    module.verify()
    return module


def mlp() -> ModuleOp:
    def build(b: FlowBuilder, x: SSAValue, u: SSAValue, c: SSAValue, d: SSAValue) -> list[SSAValue]:
        h = b.pointwise("gelu", b.pointwise("add", b.op(ContractOp, [x, u], spec="bk,kn->bn"), c))
        return [
            b.op(ContractOp, [h, d], spec="bn,nk->bk"),
            b.reduce("max", h, [0], keep_dims=False),
        ]

    return module_of(
        [("input", "x", T((12, 20))), ("parameter", "u", T((20, 48))), ("parameter", "c", T((48,))),
         ("parameter", "d", T((48, 7)))],
        build,
    )  # fmt: skip


def embedding() -> ModuleOp:
    def build(b: FlowBuilder, tokens: SSAValue, table: SSAValue) -> list[SSAValue]:
        positions = b.op(IotaOp, [], result=T((8,), "i64"), dim=0)
        x = b.op(TakeOp, [table, tokens], dim=0)
        x = b.pointwise("add", x, b.op(TakeOp, [table, positions], dim=0))
        return [b.op(ContractOp, [x, table], spec="bsd,vd->bsv")]

    return module_of([("input", "t", T((3, 8), "i64")), ("parameter", "w", T((40, 12)))], build)


def attention() -> ModuleOp:
    def build(b: FlowBuilder, x: SSAValue, w: SSAValue, o: SSAValue) -> list[SSAValue]:
        y = b.op(ContractOp, [x, w], spec="bsd,de->bse")
        y = b.op(TransposeOp, [b.op(ReshapeOp, [y], result=T((2, 6, 4, 15)))], perm=(0, 2, 1, 3))
        q, k, v = (
            b.op(SliceOp, [y], starts=(0, 0, 0, i), stops=(2, 4, 6, i + 5), steps=(1, 1, 1, 1))
            for i in (0, 5, 10)
        )
        a = b.op(
            TransposeOp,
            [b.op(AttentionOp, [q, k, v], is_causal=True, scale=0.5)],
            perm=(0, 2, 1, 3),
        )
        a = b.op(ReshapeOp, [a], result=T((2, 6, 20)))
        return [b.pointwise("add", x, b.op(ContractOp, [a, o], spec="bsd,de->bse"))]

    return module_of(
        [
            ("input", "x", T((2, 6, 20))),
            ("parameter", "w", T((20, 60))),
            ("parameter", "o", T((20, 20))),
        ],
        build,
    )


def layers() -> ModuleOp:
    block = Block(arg_types=[T((4, 16)), T((16, 32)), T((32, 16))])
    b = FlowBuilder(block, "b")
    h = b.pointwise("tanh", b.op(ContractOp, block.args[:2], spec="bk,kn->bn"))
    y = b.pointwise("add", block.args[0], b.op(ContractOp, [h, block.args[2]], spec="bn,nk->bk"))

    def build(b: FlowBuilder, x: SSAValue, *w: SSAValue) -> list[SSAValue]:
        for n in range(3):
            (x,) = b.call("layer", [x, w[2 * n], w[2 * n + 1]], [T((4, 16))])
        return [x]

    args = [("input", "x", T((4, 16)))]
    args += [
        ("parameter", f"{n}.{w}", T(s))
        for n in range(3)
        for w, s in (("u", (16, 32)), ("d", (32, 16)))
    ]
    return module_of(args, build, finish_function("layer", block, [y]))


PROGRAMS = {"mlp": mlp, "embedding": embedding, "attention": attention, "layers": layers}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lowered(module: ModuleOp, mesh: str, **options: object) -> tuple[ModuleOp, ModuleOp]:
    """Return the program on levels flow+sbp and spmd."""
    placed = module.clone()
    AutoShardPass(mesh=mesh, **{"cluster": "demo-gpus", **options}).apply(context(), placed)  # type: ignore[arg-type]
    spmd = placed.clone()
    LowerBoxingPass().apply(context(), spmd)
    placed.verify()
    spmd.verify()
    return placed, spmd


@pytest.mark.parametrize("mesh", ["a=4", "a=2,b=2", "a=2,b=1,c=2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_three_levels_give_the_same_numbers(name: str, mesh: str) -> None:
    module = PROGRAMS[name]()
    inputs = random_inputs(module)
    expected = run_function(module, inputs, dtype=torch.float64)
    for options in ({}, {"inputs": "any", "memory_bytes": 10_000}):
        placed, spmd = lowered(module, mesh, **options)
        sharded = run_sharded(placed, inputs, Mesh.parse(mesh), dtype=torch.float64)
        ranks = run_spmd(spmd, inputs, Mesh.parse(mesh), dtype=torch.float64)
        for want, one, two in zip(expected, sharded, ranks, strict=True):
            assert difference(one, want) < 1e-12, options
            assert difference(two, want) < 1e-12, options


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_of_both_levels_reads_back(name: str) -> None:
    for module in lowered(PROGRAMS[name](), "a=2,b=2"):
        assert load(dump(module)).is_structurally_equivalent(module)


def test_some_of_these_programs_do_communicate() -> None:
    kinds = {
        op.name
        for make in PROGRAMS.values()
        for options in ({}, {"memory_bytes": 10_000})
        for op in lowered(make(), "a=4", **options)[1].walk()
        if op.name.startswith("comm.")
    }
    assert {"comm.all_gather", "comm.all_reduce"} <= kinds
    rows = lowered(mlp(), "a=4", pins="op * = [a = S(0)]")[1]
    assert any(op.name == "comm.local_chunk" for op in rows.walk())


def test_a_trace_recombines_to_the_values_of_flow() -> None:
    module, mesh = attention(), Mesh.parse("a=2,b=2")
    inputs = random_inputs(module)
    whole: dict[str, torch.Tensor] = {}
    run_function(
        module,
        inputs,
        dtype=torch.float64,
        trace=lambda name, _, value, op: whole.update({name: value}),
    )
    seen: set[str] = set()

    def trace(
        name: str, index: int, parts: list[torch.Tensor], op: Operation, placed: Placement | None
    ) -> None:
        if name in whole:
            assert placed is not None
            combined = combine(parts, placed, mesh, whole[name].shape)
            assert difference(combined, whole[name]) < 1e-12, name
            seen.add(name)

    _, spmd = lowered(module, str(mesh))
    run_spmd(spmd, inputs, mesh, dtype=torch.float64, trace=trace)
    assert seen == set(whole)


def test_a_wrong_collective_is_seen() -> None:
    module = mlp()
    inputs = random_inputs(module)
    pins = "u = [a = S(1)]; c = [a = S(0)]; d = [a = S(0)]"
    _, spmd = lowered(module, "a=4", pins=pins)
    reduces = [op for op in spmd.walk() if isinstance(op, AllReduceOp)]
    assert reduces
    reduces[0].properties["fn"] = StringAttr("max")
    outputs = run_spmd(spmd, inputs, Mesh.parse("a=4"), dtype=torch.float64)
    assert difference(outputs[0], run_function(module, inputs, dtype=torch.float64)[0]) > 1e-3


def test_an_axis_that_the_mesh_lacks_is_named() -> None:
    _, spmd = lowered(mlp(), "a=4", pins="u = [a = S(1)]; c = [a = S(0)]; d = [a = S(0)]")
    for op in spmd.walk():
        if isinstance(op, CollectiveOp):
            op.properties["axis"] = StringAttr("rows")
    with pytest.raises(IrcError, match="axis 'rows'"):
        run_spmd(spmd, random_inputs(mlp()), Mesh.parse("a=4"))


def test_a_type_that_lies_is_found() -> None:
    text = """builtin.module attributes {irc.mesh = "a=2"} {
    func.func @forward(%x: !flow.tensor<[4], f32> {role = "input", name = "x"})
        -> !flow.tensor<[5], f32> {
      %y = flow.extern(%x) {target = "aten::exp", arguments = "[[{\\22operand\\22: 0}], {}]",
          loc = "m.py:1", id = "n0"}
          : (!flow.tensor<[4], f32>) -> !flow.tensor<[5], f32>
      func.return %y : !flow.tensor<[5], f32>
    } }"""
    with pytest.raises(InternalError, match=r"gives \(4,\)"):
        run_spmd(load(text), [torch.ones(4)], Mesh.parse("a=2"))


def test_one_device_needs_no_mesh() -> None:
    module = mlp()
    inputs = random_inputs(module)
    outputs = run_spmd(module, inputs, Mesh(()), dtype=torch.float64)
    for one, two in zip(outputs, run_function(module, inputs, dtype=torch.float64), strict=True):
        assert torch.equal(one, two)
    assert tensor(module.body.block.first_op.body.block.args[0]).shape == (12, 20)  # type: ignore[union-attr]

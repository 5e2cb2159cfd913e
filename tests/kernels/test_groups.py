"""Reasons, wishes and siblings of the grouping, and that it grows with the program, not faster."""

import ast
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

import irc.kernels
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ContractOp, FlowOp, FusionOp, PadOp, SliceOp, TransposeOp, id_of
from irc.dialects.searches import SortOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, random_inputs
from irc.kernels.fusion import groups
from irc.kernels.fusion.groups import Grouping
from irc.kernels.fusion.reasons import BY_MESSAGE, BY_PART, RULES, Reason
from irc.kernels.nest import Nest, nest_of
from irc.passes.fuse import FusePass
from tests.growth import calls

T = TensorType.of


def build(body, *shapes: tuple[int, ...]) -> ModuleOp:  # type: ignore[no-untyped-def]
    block = Block(arg_types=[T(shape) for shape in shapes])
    return ModuleOp([finish_function("forward", block, body(FlowBuilder(block), *block.args))])


def kernels(module: ModuleOp, pins: str = "", *, any_rows: bool = False) -> list[list[str]]:
    """The ids of each kernel's compute ops; the program means the same after as before."""
    inputs = random_inputs(module)
    want = run_function(module, inputs)
    (func,) = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    fuse = FusePass(pins=pins, any_rows=any_rows)
    grouping = dict(fuse.groupings(module))[func]
    ids = [[id_of(op) for op in unit.ops] for unit in grouping.units]
    fuse.apply(context(), module)
    module.verify()
    got = run_function(module, inputs)
    assert all(difference(a, b) == 0 for a, b in zip(got, want, strict=True))
    return ids


def rule(module: ModuleOp, one: str, other: str, pins: str = "") -> str:
    ((_, grouping),) = FusePass(pins=pins).groupings(module)
    by_id = {id_of(op): unit for op, unit in grouping.owner.items()}
    reason = grouping.refusal([by_id[one], by_id[other]])
    assert reason is not None
    return reason.rule


def mlp(b: FlowBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
    """n0 relu, n1 contract, n2 gelu, n3 sum."""
    y = b.op(ContractOp, [b.pointwise("relu", x), w], spec="mk,kn->mn")
    return [b.reduce("sum", b.pointwise("gelu", y), [1], keep_dims=False)]


def sorted_between(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
    """n0 neg, n1 sort, n2 add."""
    a = b.pointwise("neg", x)
    return [b.pointwise("add", a, b.ops(SortOp, [a], dim=1, descending=False)[0])]


def turned(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
    """n0 exp, n2 add of it and of it turned."""
    y = b.pointwise("exp", x)
    return [b.pointwise("add", y, b.op(TransposeOp, [y], perm=(1, 0)))]


def two_sums(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
    """n0 neg, n1 and n2 sums over different dims."""
    y = b.pointwise("neg", x)
    return [b.reduce("sum", y, [0], keep_dims=False), b.reduce("sum", y, [1], keep_dims=False)]


def dear(b: FlowBuilder, x: SSAValue, y: SSAValue) -> list[SSAValue]:
    """n0 exp of a row, n1 mul with every row."""
    return [b.pointwise("mul", x, b.pointwise("exp", y))]


CASES = [
    (mlp, ((40, 70), (70, 50)), "n0", "n1", "matmul-operand"),
    (mlp, ((40, 70), (70, 50)), "n1", "n3", "matmul-reduction"),
    (sorted_between, ((40, 50),), "n0", "n2", "cycle"),
    (sorted_between, ((40, 50),), "n0", "n1", "library"),
    (turned, ((50, 50),), "n0", "n2", "layout"),
    (two_sums, ((40, 50),), "n1", "n2", "reduced-dims"),
    (dear, ((40, 50), (50,)), "n0", "n1", "recompute"),
]


@pytest.mark.parametrize(("body", "shapes", "one", "other", "says"), CASES)
def test_each_rule_is_named(body, shapes, one: str, other: str, says: str) -> None:  # type: ignore[no-untyped-def]
    assert rule(build(body, *shapes), one, other) == says


def test_two_matmuls_and_shared_ones_are_named() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        first = b.op(ContractOp, [x, w], spec="mk,kn->mn")
        second = b.op(ContractOp, [x, w], spec="mk,kn->mn")
        ordered = b.ops(SortOp, [first], dim=1, descending=False)[0]
        return [b.pointwise("neg", first), ordered, b.pointwise("abs", second)]

    module = build(body, (40, 50), (50, 60))
    assert rule(module, "n0", "n1") == "two-matmuls"
    assert rule(module, "n0", "n3") == "matmul-shared"


def test_a_matmul_takes_all_readers_of_its_value_or_none() -> None:
    def body(b: FlowBuilder, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        y = b.op(ContractOp, [x, w], spec="mk,kn->mn")
        return [b.pointwise("neg", y), b.pointwise("relu", y)]

    assert kernels(build(body, (40, 50), (50, 60))) == [["n0", "n1", "n2"]]


def refusals() -> tuple[list[str], list[str]]:
    """The literal messages of all judges, and the sources of those with names in them."""
    plain: list[str] = []
    sources: list[str] = []
    for path in Path(irc.kernels.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "GroupError":
                message = node.args[0]
                if isinstance(message, ast.Constant):
                    plain.append(str(message.value))
                else:
                    sources.append(ast.unparse(message))
    return plain, sources


def test_slices_of_what_a_kernel_computes_are_refused_before_it_is_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moved(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        value = x
        for _ in range(8):
            value = b.pointwise("tanh", value)
        wide = b.op(PadOp, [value], low=(1,), high=(1,), value=0.0)
        parts = [b.op(SliceOp, [wide], starts=(i,), stops=(i + 6,), steps=(1,)) for i in range(3)]
        return [b.pointwise("add", b.pointwise("add", parts[0], parts[1]), parts[2])]

    traced: list[int] = []

    def counted(ops: list[FlowOp], *rest: Any) -> Nest:
        traced.append(len(ops))
        return nest_of(ops, *rest)

    def never(ops: list[FlowOp]) -> bool:
        return False

    monkeypatch.setattr(groups, "nest_of", counted)
    ids, seen = kernels(build(moved, (6,))), len(traced)
    monkeypatch.setattr(groups, "_cuts_own", never)
    assert ids == kernels(build(moved, (6,))) and len(ids) == 2
    assert len(traced) > 2 * seen  # what tracing would find, with less of it


def test_refusals_are_put_under_rules() -> None:
    plain, sources = refusals()
    declined = (Path(irc.kernels.__file__).parent / "fusion" / "groups.py").read_text()
    declined += (Path(irc.kernels.__file__).parent / "fusion" / "profit.py").read_text()
    stale = [m for m in BY_MESSAGE if m not in plain and f'"{m}"' not in declined]
    assert len(plain) > 10 and not stale
    parts = "".join(sources) + declined
    assert not [part for part in BY_PART if part not in parts]
    assert {*BY_MESSAGE.values(), *BY_PART.values(), "loops"} <= set(RULES)
    assert Reason.of("over 64 ops").rule == "limits" and "64" in str(Reason.of("over 64 ops"))
    # What no table knows is shown as the judge said it.
    assert str(Reason.of("a knot")) == "no single loop nest fits both (a knot)"


def test_a_user_parts_what_would_be_one_kernel() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        return [b.pointwise("abs", b.pointwise("exp", b.pointwise("neg", x)))]

    assert kernels(build(body, (40, 50))) == [["n0", "n1", "n2"]]
    assert kernels(build(body, (40, 50)), "keep n0, n1 apart") == [["n0"], ["n1", "n2"]]
    assert kernels(build(body, (40, 50)), "keep n1 apart") == [["n0"], ["n1"], ["n2"]]
    assert kernels(build(body, (40, 50)), "keep forward/n0, n2 apart") == [["n0", "n1"], ["n2"]]
    assert rule(build(body, (40, 50)), "n0", "n1", "keep n0, n1 apart") == "apart"


def test_a_user_forces_what_would_not_pay() -> None:
    assert kernels(build(dear, (40, 50), (50,))) == [["n0"], ["n1"]]
    assert kernels(build(dear, (40, 50), (50,)), "fuse n0, n1") == [["n0", "n1"]]


@pytest.mark.parametrize(
    ("body", "shapes", "pins", "says"),
    [
        (mlp, ((40, 70), (70, 50)), "fuse n0, n1", "matmul-operand"),
        (sorted_between, ((40, 50),), "fuse n0, n2", "cycle"),
        (sorted_between, ((40, 50),), "fuse n0, n1", "library"),
        (two_sums, ((40, 50),), "fuse n1, n2", "reduced-dims"),
        (turned, ((50, 50),), "fuse n0, n2; keep n0, n2 apart", "apart"),
    ],
)
def test_what_cannot_be_forced_is_refused_by_its_rule(body, shapes, pins: str, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(IrcError, match="asks for one kernel") as caught:
        FusePass(pins=pins).apply(context(), build(body, *shapes))
    assert caught.value.code == "fusion-impossible"
    assert any(f"[{says}]" in note for note in caught.value.because)


def test_wishes_must_name_an_op() -> None:
    with pytest.raises(IrcError, match="there is no op 'n77'") as caught:
        FusePass(pins="fuse n0, n77").apply(context(), build(dear, (4, 5), (5,)))
    assert caught.value.code == "input-mismatch"
    with pytest.raises(IrcError, match="cannot read the constraint"):
        FusePass(pins="keep n0, n1 together").apply(context(), build(dear, (4, 5), (5,)))


@pytest.mark.parametrize("pins", ["fuse n0, n1", "keep n1 apart"])
def test_wishes_about_what_computes_nothing_are_refused(pins: str) -> None:
    with pytest.raises(IrcError, match=r"'n1' in .* computes nothing") as caught:
        FusePass(pins=pins).apply(context(), build(turned, (50, 50)))
    assert caught.value.code == "fusion-impossible"
    assert "flow.transpose is no kernel" in str(caught.value)


def test_wishes_about_ops_of_two_functions_are_refused() -> None:
    module = build(turned, (50, 50))
    block = Block(arg_types=[T((40, 50)), T((50,))])
    other = dear(FlowBuilder(block, prefix="m"), *block.args)
    module.body.block.add_op(finish_function("block", block, other))
    with pytest.raises(IrcError, match="names ops of different functions") as caught:
        FusePass(pins="fuse n0, m1").apply(context(), module)
    assert caught.value.code == "fusion-impossible"


def test_siblings_read_their_operand_once() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        total = b.reduce("sum", x, [1], keep_dims=False)
        return [b.pointwise("relu", x), b.pointwise("tanh", x), total]

    assert kernels(build(body, (40, 50))) == [["n0", "n1", "n2"]]
    assert len(kernels(build(body, (4, 5)))) == 3  # stays in the first cache


def test_open_sizes_decide_nothing() -> None:
    """The range of a whole tensor, and two that read a small one: alike below and above limits."""

    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        y = b.pointwise("exp", x)
        return [b.pointwise("mul", y, b.reduce("max", y, [0, 1], keep_dims=True))]

    def readers(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        return [b.pointwise("relu", x), b.pointwise("tanh", x)]

    def row(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        y = b.pointwise("exp", x)
        return [b.pointwise("mul", y, b.reduce("max", y, [1], keep_dims=True))]

    small, large = (13, 59), (1300, 59)
    for each in (body, readers):
        assert len(kernels(build(each, small))) != len(kernels(build(each, large)))
        few, many = (kernels(build(each, size), any_rows=True) for size in (small, large))
        assert few == many
    # A norm of one token has the length that it has.
    assert len(kernels(build(row, (1, 4096)), any_rows=True)) == 1


def test_siblings_that_store_in_other_orders_stay_two() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        y = b.op(TransposeOp, [x], perm=(1, 0))
        return [b.pointwise("relu", x), b.pointwise("tanh", y)]

    assert len(kernels(build(body, (40, 50)))) == 2


def grouping_work(shape: str, count: int) -> int:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        if shape == "star":
            return [b.pointwise("exp", b.pointwise("neg", x)) for _ in range(count // 2)]
        for number in range(count if shape == "chain" else count // 3):
            if shape == "chain":
                x = b.pointwise(("neg", "abs", "relu")[number % 3], x)
            else:
                x = b.pointwise("add", b.pointwise("neg", x), b.pointwise("relu", x))
        return [x]

    module = build(body, (64, 64))
    (func,) = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    return calls(lambda: Grouping(func.body.block))


@pytest.mark.parametrize("shape", ["chain", "diamond", "star"])
def test_grouping_grows_near_linearly(shape: str) -> None:
    grouping_work(shape, 50)
    few, many = grouping_work(shape, 100), grouping_work(shape, 400)
    assert many < 4 * few * 1.25


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["chain", "diamond", "star"])
def test_grouping_grows_near_linearly_up_to_5000_ops(shape: str) -> None:
    counts = (500, 1000, 5000)
    work = [grouping_work(shape, count) for count in counts]
    for (few, one), (many, other) in pairwise(zip(counts, work, strict=True)):
        assert other < one * (many / few) * 1.05, work


def test_fused_siblings_are_written_as_one_fusion() -> None:
    module = build(lambda b, x: [b.pointwise("relu", x), b.pointwise("tanh", x)], (40, 50))
    FusePass().apply(context(), module)
    (fusion,) = [op for op in module.walk() if isinstance(op, FusionOp)]
    assert len(fusion.outputs) == 2

"""Each identity acts where it holds, and not where a bit would change."""

from collections.abc import Callable

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, entry, finish_function
from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    ExternOp,
    FlowOp,
    PadOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    id_of,
    loc_of,
)
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.dialects.windows import PoolOp
from irc.interpret.flow import run_function
from irc.passes.canonicalize import CanonicalizePass

T = TensorType.of
Body = Callable[..., list[SSAValue]]


def simplified(body: Body, *kinds: TensorType) -> list[str]:
    """Return the names of the ops that are left, after checking that they compute the same."""
    block = Block(arg_types=kinds or [T((5, 7))])
    b = FlowBuilder(block)
    b.loc = "m.py:3"
    module = ModuleOp([finish_function("forward", block, body(b, *block.args))])
    module.verify()
    inputs = [special(kind) for kind in (kinds or [T((5, 7))])]
    want = run_function(module, inputs)
    CanonicalizePass().apply(context(), module)
    module.verify()
    for now, was in zip(run_function(module, inputs), want, strict=True):
        assert now.dtype == was.dtype and torch.equal(bits(now), bits(was))
    left = [op for op in entry(module).body.block.ops if isinstance(op, FlowOp)]
    assert all(loc_of(op) == "m.py:3" and id_of(op) for op in left)
    return [op.plain.get("fn", op.name.removeprefix("flow.")) for op in left]


def special(kind: TensorType) -> torch.Tensor:
    """Random numbers among -0, NaN and infinities."""
    shape = kind.static_shape()
    if kind.dtype == "i64":
        return torch.arange(torch.Size(shape).numel()).reshape(shape) - 3
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).flatten()
    for index, value in enumerate([0.0, -0.0, torch.nan, torch.inf, -torch.inf][: x.numel()]):
        x[index] = value
    return x.reshape(shape).to({"f32": torch.float32, "bf16": torch.bfloat16}[kind.dtype])


def bits(x: torch.Tensor) -> torch.Tensor:
    """Compare bit for bit, NaN as NaN."""
    if not x.is_floating_point():
        return x
    return x.to(torch.float64).nan_to_num(1e300, 1e301, -1e301).contiguous().view(torch.int64)


def test_reshapes_join_and_vanish() -> None:
    assert simplified(lambda b, x: [b.reshape(b.reshape(x, (35,)), (7, 5))]) == ["reshape"]
    assert simplified(lambda b, x: [b.reshape(b.reshape(x, (35,)), (5, 7))]) == []


def test_transposes_join_and_vanish() -> None:
    def turn(b: FlowBuilder, x: SSAValue, *perms: tuple[int, ...]) -> list[SSAValue]:
        for perm in perms:
            x = b.op(TransposeOp, [x], perm=perm)
        return [x]

    kind = T((2, 3, 5))
    assert simplified(lambda b, x: turn(b, x, (1, 2, 0), (1, 2, 0)), kind) == ["transpose"]
    assert simplified(lambda b, x: turn(b, x, (1, 2, 0), (2, 0, 1)), kind) == []
    assert simplified(lambda b, x: turn(b, x, (0, 1, 2)), kind) == []


def test_other_shape_ops_that_change_nothing_vanish() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        x = b.op(SliceOp, [x], starts=(0, 0), stops=(-1, 7), steps=(1, 1))
        x = b.op(BroadcastOp, [x], result=T((5, 7)))
        x = b.op(ConcatOp, [x], dim=0)
        return [b.op(PadOp, [x], low=(0, 0), high=(0, 0), value=0.0)]

    assert simplified(body) == []
    assert simplified(
        lambda b, x: [b.op(SliceOp, [x], starts=(0, 0), stops=(-1, 7), steps=(2, 1))]
    ) == ["slice"]


@pytest.mark.parametrize(
    ("fn", "literal", "left"),
    [
        ("mul", 1.0, []),
        ("div", 1.0, []),
        ("sub", 0.0, []),
        ("add", -0.0, []),
        ("pow", 1.0, []),
        ("pow", 2.0, ["mul"]),
        # These change a bit: -0 + 0 is 0, -0 - -0 is 0, NaN * 0 is NaN.
        ("add", 0.0, ["constant", "add"]),
        ("sub", -0.0, ["constant", "sub"]),
        ("mul", 0.0, ["constant", "mul"]),
        ("div", 2.0, ["constant", "div"]),
    ],
)
def test_neutral_literals_of_floats(fn: str, literal: float, left: list[str]) -> None:
    assert simplified(lambda b, x: [b.pointwise(fn, x, b.scalar(literal, "f32"))]) == left


def test_neutral_literals_on_the_left_and_of_integers() -> None:
    assert simplified(lambda b, x: [b.pointwise("mul", b.scalar(1.0, "f32"), x)]) == []
    assert simplified(lambda b, x: [b.pointwise("sub", b.scalar(0.0, "f32"), x)]) == [
        "constant",
        "sub",
    ]
    assert (
        simplified(lambda b, x: [b.pointwise("add", x, b.scalar(0, "i64"))], T((5,), "i64")) == []
    )


def test_a_literal_that_stretches_the_other_operand_stays() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        return [b.pointwise("mul", x, b.constant([1.0], (3, 5), "f32"))]

    assert simplified(body, T((5,))) == ["constant", "mul"]


def test_casts_join_only_where_the_wider_type_holds_all() -> None:
    def there_and_back(wide: str, back: str) -> Body:
        return lambda b, x: [b.cast(b.cast(x, wide), back)]

    assert simplified(there_and_back("f32", "bf16"), T((7,), "bf16")) == []
    assert simplified(there_and_back("f64", "bf16"), T((7,))) == ["cast"]
    # Through bfloat16 the value is rounded: a rounding point that the user can see.
    assert simplified(there_and_back("bf16", "f32"), T((7,))) == ["cast", "cast"]
    assert simplified(there_and_back("f32", "i64"), T((7,), "i64")) == ["cast", "cast"]


def test_copies_and_double_negation_vanish() -> None:
    assert simplified(lambda b, x: [b.pointwise("copy", x)]) == []
    assert simplified(lambda b, x: [b.pointwise("neg", b.pointwise("neg", x))]) == []
    both = T((5, 7)), T((5, 7))
    assert simplified(lambda b, x, y: [b.pointwise("written", x, y)], *both) == []


def test_an_operand_needs_no_broadcast_of_its_own() -> None:
    def body(b: FlowBuilder, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        return [b.pointwise("add", x, b.broadcast(y, (5, 7)))]

    assert simplified(body, T((5, 7)), T((7,))) == ["add"]
    # Nothing else has the shape: one broadcast must stay.
    both = lambda b, x, y: [b.pointwise("add", b.broadcast(x, (5, 7)), b.broadcast(y, (5, 7)))]  # noqa: E731
    assert simplified(both, T((7,)), T((1, 7))) == ["broadcast", "add"]


def test_literals_fold() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        mask = b.pointwise("lt", b.constant([0, 1, 2], (3,), "i64"), b.scalar(2, "i64"))
        scale = b.pointwise("div", b.scalar(1.0, "f32"), b.pointwise("sqrt", b.scalar(2.0, "f32")))
        wide = b.reshape(b.broadcast(b.cast(mask, "f32"), (2, 3)), (6,))
        return [b.pointwise("mul", wide, scale), b.pointwise("mul", x, scale)]

    assert simplified(body) == ["constant", "constant", "mul"]


def test_literals_whose_value_depends_on_the_machine_stay() -> None:
    assert simplified(lambda b, x: [b.pointwise("exp", b.scalar(1.0, "f32"))]) == [
        "constant",
        "exp",
    ]
    assert simplified(lambda b, x: [b.cast(b.scalar(float("nan"), "f32"), "i64")]) == [
        "constant",
        "cast",
    ]


def test_a_literal_grows_no_larger_than_literals_may_be() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        return [b.broadcast(b.constant([1.0, 2.0, 3.0], (3,), "f32"), (30, 3))]

    assert simplified(body) == ["constant", "broadcast"]


@pytest.mark.parametrize(("flag", "left"), [(1, []), (0, ["neg"])])
def test_choice_by_a_literal(flag: int, left: list[str]) -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        return [b.pointwise("where", b.scalar(flag, "i1"), x, b.pointwise("neg", x))]

    assert simplified(body) == left


def test_reductions_over_single_elements() -> None:
    assert simplified(lambda b, x: [b.reduce("min", x, [1], keep_dims=True)], T((5, 1))) == []
    assert simplified(lambda b, x: [b.reduce("sum", x, [1], keep_dims=True)], T((5, 1))) == ["sum"]
    assert simplified(lambda b, x: [b.reduce("max", x, [1], keep_dims=False)], T((5, 1))) == [
        "reshape"
    ]
    assert simplified(lambda b, x: [b.reduce("sum", x, [1], keep_dims=False)]) == ["sum"]


def test_equal_ops_are_one_and_unread_ones_none() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        b.pointwise("tanh", x)
        twice = [b.pointwise("exp", x) for _ in range(2)]
        return [b.pointwise("add", *twice), b.reduce("sum", twice[1], [0], keep_dims=False),
                b.reduce("sum", twice[0], [1], keep_dims=False)]  # fmt: skip

    assert simplified(body) == ["exp", "add", "sum", "sum"]


def test_library_ops_of_unknown_effect_are_never_shared() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        clones = [
            b.op(
                ExternOp,
                [x],
                result=T((5, 7)),
                target="aten::clone",
                arguments='[[{"operand": 0}], {}]',
            )
            for _ in range(2)
        ]
        return [b.pointwise("maximum", *clones)]

    assert simplified(body) == ["extern", "extern", "maximum"]


def test_named_sizes_are_no_hindrance() -> None:
    from irc.dialects.size import symbol

    block = Block(arg_types=[T((symbol("B"), 6))])
    b = FlowBuilder(block)
    x = b.op(ReshapeOp, [block.args[0]], result=T((symbol("B") * 2, 3)))
    x = b.op(ReshapeOp, [x], result=T((symbol("B"), 6)))
    x = b.pointwise("mul", x, b.broadcast(b.scalar(1.0, "f32"), (symbol("B"), 6)))
    module = ModuleOp([finish_function("forward", block, [x])])
    CanonicalizePass().apply(context(), module)
    module.verify()
    assert len(list(entry(module).body.block.ops)) == 1


def test_what_has_no_elements_is_not_computed() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> list[SSAValue]:
        # torch refuses the largest of nothing, which here nobody reads.
        largest = b.reduce("max", x, (1,), keep_dims=True)
        return [b.pointwise("sub", x, b.broadcast(largest, (5, 0)))]

    block = Block(arg_types=[T((5, 0))])
    b = FlowBuilder(block)
    module = ModuleOp([finish_function("forward", block, body(b, *block.args))])
    CanonicalizePass().apply(context(), module)
    (output,) = run_function(module, [torch.empty(5, 0)])
    assert output.shape == (5, 0)
    assert [op.name for op in entry(module).body.block.ops if isinstance(op, FlowOp)] == [
        "flow.constant"
    ]


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(
    ("window", "places", "strides", "low", "high", "left"),
    [
        ((9, 40), (1, 1), (9, 40), (0, 0), (0, 0), ((5, 7), (5, 7))),
        ((3, 3), (3, 4), (2, 2), (1, 1), (1, 1), ((3, 3), (3, 3))),
        ((9, 9), (1, 1), (1, 1), (2, 1), (2, 1), ((7, 8), (9, 9))),
        ((20, 8), (2, 1), (3, 8), (1, 0), (1, 0), ((6, 7), (7, 7))),
    ],
)
def test_a_window_ends_where_no_place_reaches_the_image(
    window: tuple[int, int],
    places: tuple[int, int],
    strides: tuple[int, int],
    low: tuple[int, int],
    high: tuple[int, int],
    left: tuple[tuple[int, int], tuple[int, int]],
    *,
    counted: bool,
) -> None:
    block = Block(arg_types=[T((2, 5, 7))])
    b = FlowBuilder(block)
    attrs = {
        "fn": "avg", "window": window, "strides": strides, "low": low, "high": high,
        "dilations": (1, 1), "count_padding": counted,
    }  # fmt: skip
    pooled = b.op(PoolOp, [block.args[0]], result=T((2, *places)), **attrs)
    module = ModuleOp([finish_function("forward", block, [pooled])])
    x = torch.randn(2, 5, 7, dtype=torch.float64)
    (want,) = run_function(module, [x])
    CanonicalizePass().apply(context(), module)
    module.verify()
    (now,) = run_function(module, [x])
    torch.testing.assert_close(now, want, rtol=0, atol=1e-15)
    (pool,) = (op for op in entry(module).body.block.ops if isinstance(op, PoolOp))
    assert pool.plain["window"] == left[counted]

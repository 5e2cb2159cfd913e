"""Every op's derivative against torch.autograd through the op's own meaning, in float64."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, argument_attrs, entry, finish_function, results
from irc.dialects.flow import (
    BroadcastOp,
    ConcatOp,
    ContractOp,
    ExternOp,
    FlowOp,
    PadOp,
    ReduceOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    tensor,
)
from irc.dialects.flow_ops import OPS
from irc.dialects.indexing import GatherOp, ScatterOp, TakeOp
from irc.dialects.scans import CumulativeOp
from irc.dialects.searches import ArgReduceOp, SortOp, TopKOp
from irc.dialects.text import dump, load
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import ConvolutionOp, PoolOp
from irc.errors import IrcErrors
from irc.interpret.flow import run_function
from irc.ops import derivatives_pointwise
from irc.ops.derivatives import DERIVATIVES
from irc.ops.functions import POINTWISE
from irc.passes.differentiate import DifferentiatePass
from irc.runtime.dtypes import dtype_names
from irc.sharding.signatures import axis_signatures

Body = Callable[..., "SSAValue | Sequence[SSAValue]"]


def program(body: Body, inputs: Sequence[torch.Tensor]) -> ModuleOp:
    """A module of one body; every input is an argument ``x0``, ``x1``, ..."""
    kinds = [TensorType.of(t.shape, dtype_names()[t.dtype]) for t in inputs]
    block = Block(arg_types=kinds)
    b = FlowBuilder(block)
    b.loc = "m.py:1"
    result = body(b, *block.args)
    values = [result] if isinstance(result, SSAValue) else list(result)
    attrs = [argument_attrs("input", f"x{i}") for i in range(len(inputs))]
    outs = [argument_attrs("output", f"y{i}") for i in range(len(values))]
    module = ModuleOp([finish_function("forward", block, values, arg_attrs=attrs, res_attrs=outs)])
    module.verify()
    return module


def check(
    body: Body,
    *inputs: torch.Tensor,
    reference: Callable[..., Any] | None = None,
    gradients: int | None = None,
    tolerance: float = 1e-9,
) -> ModuleOp:
    """Differentiate for random gradients of all real results, compare with autograd."""
    module = program(body, inputs)
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    if reference is None:
        outputs = run_function(module, leaves)
    else:
        result = reference(*leaves)
        outputs = list(result) if isinstance(result, tuple | list) else [result]
    smooth = [t for t in outputs if t.requires_grad]
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in smooth]
    wanted = [t for t in leaves if t.requires_grad]
    expected = torch.autograd.grad(smooth, wanted, seeds, allow_unused=True)

    DifferentiatePass(inputs="*", seeds="inputs", outputs="all").apply(None, module)  # type: ignore[arg-type]
    module.verify()
    assert dump(load(dump(module))) == dump(module)
    assert "unknown" not in dump(module)
    cotangents = [
        torch.randn(tensor(v).static_shape(), generator=torch.Generator().manual_seed(1)).double()
        for v in entry(module).body.block.args[len(inputs) :]
    ]
    seeded = iter(seeds)
    for i, value in enumerate(outputs):
        if value.requires_grad:
            position = sum(t.is_floating_point() for t in outputs[:i])
            cotangents[position] = next(seeded)
    with torch.no_grad():
        out = run_function(module, [*inputs, *cotangents])
    named = dict(zip(results(entry(module)), out, strict=True))
    count = 0
    for i, leaf in enumerate(leaves):
        if not leaf.requires_grad:
            continue
        want = expected[[w is leaf for w in wanted].index(True)]
        got = named.get(("gradient", f"x{i}"))
        if got is None:
            assert want is None or not want.any(), f"x{i} has no gradient"
            continue
        count += 1
        want = torch.zeros_like(leaf) if want is None else want
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert count == (len(wanted) if gradients is None else gradients)
    return module


def draw(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low


def whole(*shape: int, high: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def op(cls: type[FlowOp], **attrs: Any) -> Body:
    def body(b: FlowBuilder, *x: SSAValue) -> Sequence[SSAValue]:
        return b.ops(cls, x, **attrs)

    return body


def shaped(cls: type[FlowOp], shape: Sequence[int], **attrs: Any) -> Body:
    def body(b: FlowBuilder, *x: SSAValue) -> Sequence[SSAValue]:
        return b.ops(cls, x, results=[TensorType.of(shape, "f64")], **attrs)

    return body


# Pointwise functions

DOMAIN = {
    "log": (0.1, 3), "log2": (0.1, 3), "log10": (0.1, 3), "log1p": (-0.9, 3), "sqrt": (0.1, 3),
    "rsqrt": (0.1, 3), "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9),
    "acosh": (1.1, 3), "pow": (0.1, 3), "reciprocal": (0.3, 2), "remainder": (0.4, 3),
    "fmod": (0.4, 3), "div": (0.3, 3), "tan": (-1.2, 1.2),
}  # fmt: skip


def domain(fn: str) -> tuple[float, float]:
    """Where a function is smooth: as above, or the range of its record near 0."""
    stated = POINTWISE[fn].accuracy
    low, high = (stated.low, stated.high) if stated else (-2.0, 2.0)
    return DOMAIN.get(fn, (max(-2.0, low * 0.9), min(2.0, high * 0.9)))


def gradients_of(fn: str) -> int:
    """How many operands have a gradient that is not zero everywhere."""
    return sum(formula is not None for formula in derivatives_pointwise.DERIVATIVES[fn])


SMOOTH = [fn for fn in derivatives_pointwise.DERIVATIVES if fn not in ("where", "written")]


def test_every_function_has_a_derivative_or_is_flat() -> None:
    smooth = {fn for fn, row in POINTWISE.items() if row.result == "same"}
    known = set(derivatives_pointwise.DERIVATIVES) | derivatives_pointwise.FLAT
    assert smooth == known
    assert not set(derivatives_pointwise.DERIVATIVES) & derivatives_pointwise.FLAT
    for fn, row in derivatives_pointwise.DERIVATIVES.items():
        assert len(row) == POINTWISE[fn].arity


def test_every_op_has_a_derivative_or_is_flat() -> None:
    # Made of what is differentiated.
    later = {
        "flow.fusion",
        "flow.yield",
        "flow.packed_contract",
        "flow.grouped_contract",
        "flow.grouped_outer",
    }
    records = {op.name: op.RECORD for op in OPS if op.RECORD is not None}
    recorded = {name for name, own in records.items() if own.derivative or own.is_flat}
    assert {cls.name for cls in OPS} == set(DERIVATIVES) | recorded | later


@pytest.mark.parametrize("fn", SMOOTH)
def test_function(fn: str) -> None:
    low, high = domain(fn)
    inputs = [draw(5, 7, seed=i, low=low, high=high) for i in range(POINTWISE[fn].arity)]
    check(lambda b, *x: b.pointwise(fn, *x), *inputs, gradients=gradients_of(fn))


@pytest.mark.parametrize("fn", [fn for fn in SMOOTH if POINTWISE[fn].arity == 2])
@pytest.mark.parametrize(
    "shapes", [((3, 5), (5,)), ((1, 5), (4, 3, 1)), ((), (2, 3)), ((3, 1), (3, 1)), ((7,), (1,))]
)
def test_function_that_broadcasts(fn: str, shapes: tuple[Sequence[int], Sequence[int]]) -> None:
    low, high = domain(fn)
    inputs = [draw(*s, seed=i, low=low, high=high) for i, s in enumerate(shapes)]
    check(lambda b, *x: b.pointwise(fn, *x), *inputs, gradients=gradients_of(fn))


@pytest.mark.parametrize("fn", ["maximum", "minimum", "abs", "relu"])
def test_function_at_its_kink(fn: str) -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 0.0], dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, 2.0, -3.0], dtype=torch.float64)
    check(lambda b, *v: b.pointwise(fn, *v), *(x, y)[: POINTWISE[fn].arity])


def test_power_at_zero() -> None:
    x = torch.tensor([0.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    y = torch.tensor([0.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    check(lambda b, *v: b.pointwise("pow", *v), x, y)


def test_where() -> None:
    mask = draw(4, 1, 5) > 0
    check(lambda b, *x: b.pointwise("where", *x), mask, draw(3, 5), draw(4, 3, 1, seed=1))


@pytest.mark.parametrize("fn", sorted(derivatives_pointwise.FLAT & {"floor", "sign", "trunc_div"}))
def test_flat_function_takes_no_work(fn: str) -> None:
    inputs = [draw(3, 4, seed=i) for i in range(POINTWISE[fn].arity)]

    def body(b: FlowBuilder, *x: SSAValue) -> SSAValue:
        return b.pointwise("add", b.pointwise(fn, *x), x[0])

    module = check(body, *inputs, gradients=1)
    assert "backward" not in dump(module)


def test_cast_to_a_narrow_type_and_back() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> SSAValue:
        return b.pointwise("mul", b.cast(b.cast(x, "f32"), "f64"), x)

    check(body, draw(3, 5).float().double(), tolerance=1e-6)


# Sums of products

SPECS = [
    ("mk,kn->mn", [(3, 5), (5, 7)]),
    ("bsk,nk->bsn", [(2, 3, 5), (7, 5)]),
    ("bhsd,bhtd->bhst", [(2, 3, 4, 5), (2, 3, 7, 5)]),
    ("ab,b->", [(3, 5), (5,)]),
    ("ab,cb->c", [(3, 5), (7, 5)]),
    ("ab->b", [(3, 5)]),
    ("abc->ca", [(3, 5, 2)]),
    ("ab,bc,cd->ad", [(2, 3), (3, 5), (5, 7)]),
    ("a,b->ab", [(3,), (5,)]),
    ("ij,ij->i", [(3, 5), (3, 5)]),
]


@pytest.mark.parametrize(("spec", "shapes"), SPECS)
def test_contract(spec: str, shapes: list[tuple[int, ...]]) -> None:
    check(op(ContractOp, spec=spec), *(draw(*s, seed=i) for i, s in enumerate(shapes)))


def test_contract_of_a_value_with_itself() -> None:
    check(lambda b, x: b.op(ContractOp, [x, x], spec="ab,cb->ac"), draw(3, 5))


# Reductions


@pytest.mark.parametrize("fn", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("dims", [(), (0,), (2,), (0, 2), (0, 1, 2)])
def test_reduce(fn: str, keep: bool, dims: tuple[int, ...]) -> None:
    check(op(ReduceOp, fn=fn, dims=dims, keep_dims=keep), draw(3, 5, 7))


def test_reduce_shares_among_equals_as_amax() -> None:
    x = whole(5, 7, high=3).double()
    check(op(ReduceOp, fn="max", dims=(1,), keep_dims=False), x, reference=lambda x: x.amax(1))


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_product_with_zeros(zeros: int) -> None:
    x = draw(3, 5)
    x[1, :zeros] = 0
    check(op(ReduceOp, fn="prod", dims=(1,), keep_dims=False), x)
    check(op(CumulativeOp, fn="prod", dim=1, exclusive=False, reverse=False), x)


def test_arg_reduce_has_no_gradient() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> SSAValue:
        index = b.cast(b.op(ArgReduceOp, [x], fn="max", dim=1, keep_dims=True), "f64")
        return b.pointwise("mul", x, index)

    check(body, draw(3, 5))


@pytest.mark.parametrize("fn", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_cumulative(fn: str, exclusive: bool, reverse: bool, dim: int) -> None:
    x = draw(5, 3, 2)
    check(op(CumulativeOp, fn=fn, dim=dim, exclusive=exclusive, reverse=reverse), x)


@pytest.mark.parametrize("fn", ["max", "min"])
def test_running_extreme_of_equals(fn: str) -> None:
    x = whole(11, 3, high=3).double()
    check(op(CumulativeOp, fn=fn, dim=0, exclusive=False, reverse=False), x)


# Elements that move


def test_layout() -> None:
    check(shaped(ReshapeOp, (5, 6)), draw(3, 10))
    check(op(TransposeOp, perm=(2, 0, 1)), draw(3, 5, 7))
    check(shaped(BroadcastOp, (4, 3, 5)), draw(3, 1))
    check(op(ConcatOp, dim=1), draw(3, 2), draw(3, 5, seed=1), draw(3, 1, seed=2))


@pytest.mark.parametrize(
    ("starts", "stops", "steps"),
    [
        ((0, 1), (-1, 5), (1, 1)),
        ((1, 0), (6, -1), (2, 3)),
        ((2, 3), (3, 4), (1, 1)),
        ((0, 2), (7, 8), (4, 3)),
    ],
)
def test_slice(starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]) -> None:
    check(op(SliceOp, starts=starts, stops=stops, steps=steps), draw(7, 8))


@pytest.mark.parametrize(("low", "high"), [((0, 2), (1, 0)), ((-1, 0), (2, -2)), ((0, 0), (0, 3))])
def test_pad(low: tuple[int, ...], high: tuple[int, ...]) -> None:
    check(op(PadOp, low=low, high=high, value=1.5), draw(5, 7))


@pytest.mark.parametrize(("dim", "indices"), [(0, (3, 5)), (1, (4,)), (2, (2, 2)), (1, ())])
def test_take(dim: int, indices: tuple[int, ...]) -> None:
    check(op(TakeOp, dim=dim), draw(5, 6, 7), whole(*indices, high=5))


@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (3, 1), (2, 9)])
def test_gather(shape: tuple[int, int]) -> None:
    check(op(GatherOp, dim=1), draw(5, 7), whole(*shape, high=7))


@pytest.mark.parametrize("fn", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("rows", [4, 6])
def test_scatter(fn: str, rows: int) -> None:
    source = draw(6, 3, seed=1)
    source[2, 1] = 0
    name = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}[fn]

    def reference(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        # Torch's own backward wants a source of the index's shape.
        return x.scatter_reduce(0, index, source[:rows], name)

    inputs = draw(5, 3), whole(rows, 3, high=5), source
    check(op(ScatterOp, dim=0, fn=fn), *inputs, reference=reference)


def test_scatter_of_single_writes() -> None:
    index = torch.stack([torch.randperm(7)[:4] for _ in range(3)])
    check(op(ScatterOp, dim=1, fn="set"), draw(3, 7), index, draw(3, 4, seed=1))


@pytest.mark.parametrize("descending", [True, False])
def test_sort(descending: bool) -> None:
    check(op(SortOp, dim=1, descending=descending), draw(3, 7, 2))
    check(op(TopKOp, dim=0, k=2, largest=descending), draw(5, 3))


# Windows and attention

CONVOLUTIONS: list[dict[str, Any]] = [
    {"strides": (1, 1), "low": (1, 1), "high": (1, 1), "dilations": (1, 1), "groups": 1},
    {"strides": (2, 3), "low": (0, 2), "high": (0, 2), "dilations": (1, 2), "groups": 1},
    {"strides": (2, 1), "low": (0, 1), "high": (2, 0), "dilations": (1, 1), "groups": 2},
    {"strides": (3, 2), "low": (-1, 1), "high": (0, 1), "dilations": (2, 1), "groups": 4},
]


@pytest.mark.parametrize("attrs", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_convolution(attrs: dict[str, Any], bias: bool) -> None:
    inputs = [draw(2, 4, 9, 11), draw(8, 4 // attrs["groups"], 3, 2, seed=1), draw(8, seed=2)]
    check(op(ConvolutionOp, **attrs), *inputs[: 2 + bias])


def test_convolution_of_a_line() -> None:
    attrs = {"strides": (2,), "low": (1,), "high": (1,), "dilations": (1,), "groups": 1}
    check(op(ConvolutionOp, **attrs), draw(2, 3, 10), draw(5, 3, 3, seed=1))


POOL = {"window": (3, 2), "strides": (2, 2), "low": (1, 0), "high": (1, 0), "dilations": (1, 1)}


@pytest.mark.parametrize("count", [True, False])
def test_average_pool(count: bool) -> None:
    body = shaped(PoolOp, (2, 3, 4, 4), fn="avg", count_padding=count, **POOL)
    check(
        body,
        draw(2, 3, 7, 9),
        reference=lambda x: F.avg_pool2d(x, (3, 2), (2, 2), (1, 0), count_include_pad=count),
    )


def test_max_pool_takes_the_first_of_equals() -> None:
    x = whole(2, 3, 7, 9, high=3).double()
    body = shaped(PoolOp, (2, 3, 4, 4), fn="max", count_padding=False, **POOL)
    check(body, x, reference=lambda x: F.max_pool2d(x, (3, 2), (2, 2), (1, 0)))


def test_max_pool_with_ceil_and_dilation() -> None:
    attrs = {"window": (2,), "strides": (3,), "low": (1,), "high": (1,), "dilations": (2,)}
    body = shaped(PoolOp, (3, 4), fn="max", count_padding=False, **attrs)
    check(body, draw(3, 11), reference=lambda x: F.max_pool1d(x, 2, 3, 1, 2, ceil_mode=True))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("mask", [None, "bool", "additive", "broadcast"])
def test_attention(causal: bool, groups: int, mask: str | None) -> None:
    q, k, v = draw(2, 4, 5, 3), draw(2, groups, 7, 3, seed=1), draw(2, groups, 7, 6, seed=2)
    masks = {
        None: [],
        "bool": [torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(4)) < 0.7],
        "additive": [draw(2, 1, 5, 7, seed=3)],
        "broadcast": [draw(1, 7, seed=3)],
    }[mask]
    if mask == "bool":
        masks[0][..., 0] = True
    check(op(AttentionOp, is_causal=causal, scale=0.7), q, k, v, *masks)


def test_attention_of_rows_that_see_nothing() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    q, k, v = draw(2, 5, 3), draw(2, 7, 3, seed=1), draw(2, 7, 4, seed=2)
    check(op(AttentionOp, is_causal=False, scale=0.7), q, k, v, mask)


@pytest.mark.parametrize("logarithm", [True, False])
def test_softmax_keeps_its_result_alone(logarithm: bool) -> None:
    def body(b: FlowBuilder, x: SSAValue) -> SSAValue:
        off = b.pointwise("sub", x, b.reduce("max", x, [1], keep_dims=True))
        powers = b.pointwise("exp", off)
        total = b.reduce("sum", powers, [1], keep_dims=True)
        if logarithm:
            return b.pointwise("sub", off, b.pointwise("log", total))
        return b.pointwise("div", powers, total)

    function = torch.log_softmax if logarithm else torch.softmax
    module = check(body, draw(3, 7), reference=lambda x: function(x, 1))
    # No gradient of the maximum.
    assert dump(module).count('"eq"') == 0


# Through the library


def extern(target: str, arguments: Any, results: Sequence[Sequence[int]], **attrs: Any) -> Body:
    def body(b: FlowBuilder, *x: SSAValue) -> Sequence[SSAValue]:
        kinds = [TensorType.of(shape, "f64") for shape in results]
        text = json.dumps(arguments)
        return b.ops(ExternOp, x, results=kinds, target=target, arguments=text, **attrs)

    return body


def test_extern_by_torch() -> None:
    call = [[{"operand": 0}, {"operand": 1}], {}]
    module = check(
        extern("aten::hypot", call, [(3, 5)]), draw(3, 5), draw(5, seed=1), reference=torch.hypot
    )
    assert dump(module).count("irc::vjp") == 1, "both gradients of one run"


def test_extern_with_a_rule_is_split_backward_as_forward() -> None:
    call = [[{"operand": 0}, {"operand": 1}], {}]
    body = extern("aten::hypot", call, [(3, 5)], rule="(a b, b) -> (a b)")
    module = check(body, draw(3, 5), draw(5, seed=1), reference=torch.hypot)
    (backward,) = (op for op in module.walk() if isinstance(op, ExternOp) and "vjp" in str(op))
    assert [str(signature) for signature in axis_signatures(backward)] == [
        "(B, B, B) -> (B, B)",
        "(S(0), B, S(0)) -> (S(0), P(sum))",
        "(S(1), S(0), S(1)) -> (S(1), S(0))",
        "(B, B, P(sum)) -> (P(sum), P(sum))",
    ]


def test_extern_that_draws_is_refused_with_all_others() -> None:
    def body(b: FlowBuilder, x: SSAValue) -> SSAValue:
        for line, target in enumerate(("aten::rrelu", "aten::dropout")):
            b.loc = f"m.py:{line}"
            (x,) = extern(target, [[{"operand": 0}], {}], [(3, 5)])(b, x)  # type: ignore[misc]
        return x

    with pytest.raises(IrcErrors, match="aten::dropout") as caught:
        check(body, draw(3, 5), reference=lambda x: x + 0)
    assert caught.value.codes == ("not-differentiable",)
    assert "m.py:0" in str(caught.value)
    assert "m.py:1" in str(caught.value)


def test_complex_values_go_through_torch() -> None:
    def body(b: FlowBuilder, x: SSAValue, y: SSAValue) -> SSAValue:
        kind = TensorType.of((3, 5), "c128")
        view = json.dumps([[{"operand": 0}], {}])
        as_complex = [
            b.ops(ExternOp, [v], results=[kind], target="aten::view_as_complex", arguments=view)[0]
            for v in (x, y)
        ]
        product = b.pointwise("mul", *as_complex)
        real = TensorType.of((3, 5, 2), "f64")
        return b.ops(
            ExternOp, [product], results=[real], target="aten::view_as_real", arguments=view
        )[0]

    check(body, draw(3, 5, 2), draw(3, 5, 2, seed=1))

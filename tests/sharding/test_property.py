# ruff: noqa: E501 - one row of a table is one line
"""The property behind all sharding: shards through the local program, joined, are the whole op.

Every op kind, several instances each, every generated signature, compared in float64 on every
replica. Planted bugs, among them the classic ones, show that it can fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest
import torch
from xdsl.ir import Block, SSAValue

from irc.dialects import (
    flow,
    flow_ops,
    indexing,
    literals,
    packed_products,
    scans,
    searches,
    windows,
)
from irc.dialects.flow import FlowOp, tensor
from irc.dialects.placement import Broadcast, Mesh, Partial, Placement, Split
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.interpret.flow import run_op
from irc.interpret.sharded import run_ranks
from irc.ops.attention_ops import Form
from irc.ops.derivative import Adjoint, NotDifferentiable, PhaseBuilder
from irc.ops.derivatives import gradient, is_flat, is_smooth
from irc.ops.rule import DimTerm, Rule, parse_rule
from irc.ops.rules import RULES
from irc.ops.strategies import AS_IT_IS, Strategy
from irc.runtime.dtypes import dtypes
from irc.sharding import signatures as signatures_module
from irc.sharding.local_ops import Local
from irc.sharding.shards import combine, shard
from irc.sharding.signatures import NdSignature, find_signature, signatures


@dataclass(frozen=True)
class Case:
    """One instance of an op: operand shapes with dtypes, stated results, attributes."""

    op: type[FlowOp]
    operands: tuple[tuple[tuple[int, ...], str], ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    results: tuple[tuple[tuple[int, ...], str], ...] | None = None
    below: int = 0
    """Upper bound of integer operands: the size of what they index."""

    def build(self) -> FlowOp:
        block = Block(arg_types=[TensorType.of(*operand) for operand in self.operands])
        results = self.results or self.op.infer(self.attrs, self.operands)
        op = self.op.make(
            list(block.args),
            [TensorType.of(*r) for r in results],
            loc="t.py:1",
            id="n0",
            **self.attrs,
        )
        block.add_op(op)
        op.verify()
        return op

    def inputs(self, seed: int = 0) -> list[torch.Tensor]:
        rng = torch.Generator().manual_seed(seed)
        tensors: list[torch.Tensor] = []
        for shape, dtype in self.operands:
            if dtype[0] in "fb":
                tensors.append(torch.randn(shape, generator=rng, dtype=torch.float64))
            elif dtype[0] == "c":
                tensors.append(torch.randn(shape, generator=rng, dtype=torch.complex128))
            else:
                top = 2 if dtype == "i1" else self.below or 7
                tensors.append(torch.randint(0, top, shape, generator=rng).to(dtypes()[dtype]))
        return tensors


def f(*shapes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((shape, "f32") for shape in shapes)


def window(**changed: Any) -> dict[str, Any]:
    return {"strides": (1, 1), "low": (1, 1), "high": (1, 1), "dilations": (1, 1), **changed}


PLACES = ", ".join(f'{{"operand": {i}}}' for i in range(5))
EXPERTS = f'[[{PLACES}, "silu", %d], {{}}]'


def experts(tokens: int, count: int) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Operands of a layer of experts: two for each token, gated, 6 wide."""
    return (
        ((tokens, 3), "f32"),
        ((tokens, 2), "i64"),
        *f((tokens, 2), (count, 2, 6, 3), (count, 3, 6)),
    )


def attention_cases(n: int, m: int) -> list[Case]:
    """Attention of n tokens by m groups of heads, with its log-sums, and its derivative."""
    instances: list[Case] = []
    for heads, groups, causal, masks in (
        (2 * m, m, True, ()),
        (m, 1, False, (((2, 1, n, n), "f32"),)),
        (m, m, True, (((n, n), "i1"),)),
        (m, m, False, (((m, 1, n), "i1"),)),
    ):
        form = Form(causal, 0.5, 3 if masks else None)
        q, k, v = f((2, heads, n, 3), (2, groups, n, 3), (2, groups, n, 4))
        y, sums = f((2, heads, n, 4), (2, heads, n))
        instances.append(Case(AttentionOp, (q, k, v, *masks), {"is_causal": causal, "scale": 0.5}))
        instances.append(Case(flow.ExternOp, (q, k, v, *masks), form.forward(), (y, sums)))
        back = Form(causal, 0.5, 6 if masks else None)
        instances.append(
            Case(flow.ExternOp, (y, q, k, v, y, sums, *masks), back.backward(), (q, k, v))
        )
    return instances


def cases(n: int, m: int) -> list[Case]:
    """Instances of every op whose split dims have sizes made of ``n`` and ``m``."""
    point, reduce = flow.PointwiseOp, flow.ReduceOp
    i64 = "i64"
    sliced = {"starts": (0, 1, 0), "stops": (-1, 3, n), "steps": (1, 2, 1)}
    pool = {"window": (2, 2), "strides": (2, 2), "low": (0, 0), "high": (0, 0), "dilations": (1, 1)}
    instances = [
        *(Case(point, f((n, m)), {"fn": fn}) for fn in ("neg", "relu", "exp", "gelu", "copy", "sqrt", "floor")),
        *(Case(point, f((n, m), (m,)), {"fn": fn}) for fn in ("add", "sub", "mul", "div", "maximum", "lt")),
        *(Case(point, f((n, 1, m), (m, 1)), {"fn": fn}) for fn in ("add", "mul", "div")),
        *(Case(point, f((), (n, m)), {"fn": fn}) for fn in ("add", "mul", "div", "pow")),
        Case(point, (((n, m), i64), ((m,), i64)), {"fn": "add"}),
        Case(point, (((n, 1), "i1"), ((n, m), "f32"), ((m,), "f32")), {"fn": "where"}),
        Case(point, f((n, m)), {"fn": "cast"}, (((n, m), "f64"),)),
        Case(point, f((n, m)), {"fn": "cast"}, (((n, m), "i64"),)),
        Case(literals.ConstantOp, (), {"value": (2.5,)}, (((n, m), "f32"),)),
        Case(literals.ConstantOp, (), {"value": (1.0, 2.0, 3.0, 4.0)}, (((4,), "f32"),)),
        Case(literals.IotaOp, (), {"dim": 0}, (((n,), i64),)),
        Case(literals.IotaOp, (), {"dim": 1}, (((m, n), "f32"),)),
        Case(flow.ContractOp, f((n, m), (m, 2 * n)), {"spec": "mk,kn->mn"}),
        Case(flow.ContractOp, f((2, n, m), (2, n, m)), {"spec": "bmk,bnk->bnm"}),
        Case(flow.ContractOp, f((n, m), (m,), (n,)), {"spec": "ab,b,a->"}),
        Case(flow.ContractOp, (((n, m), "c64"), ((m,), "c64")), {"spec": "ab,b->a"}),
        *(
            Case(reduce, f((n, m, 3)), {"fn": fn, "dims": dims, "keep_dims": keep})
            for fn in ("sum", "max", "min", "prod")
            for dims, keep in (((1,), True), ((0, 1), False), ((0, 1, 2), False))
        ),
        *(
            Case(reduce, (((n, m), "i1"),), {"fn": fn, "dims": (1,), "keep_dims": False})
            for fn in ("any", "all")
        ),
        Case(searches.ArgReduceOp, f((n, m)), {"fn": "max", "dim": 1, "keep_dims": False}),
        Case(searches.ArgReduceOp, f((n, m)), {"fn": "min", "dim": 0, "keep_dims": True}),
        *(
            Case(scans.CumulativeOp, f((n, m)), {"fn": fn, "dim": 1, "exclusive": False, "reverse": r})
            for fn, r in (("sum", False), ("sum", True), ("prod", False), ("max", False))
        ),
        Case(flow.ReshapeOp, f((n, 3 * m)), {}, f((n, 3, m))),
        Case(flow.ReshapeOp, f((n, m, 3)), {}, f((n * m, 3))),
        Case(flow.ReshapeOp, f((2 * n, 1, 6, m)), {}, f((n, 4, 3 * m))),
        Case(flow.ReshapeOp, f((n, 3, 4, m)), {}, f((n, 2, 6, m))),
        Case(flow.ReshapeOp, f((n * m,)), {}, f((m, n))),
        Case(flow.TransposeOp, f((n, 3, m)), {"perm": (2, 0, 1)}),
        Case(flow.BroadcastOp, f((n, 1)), {}, f((2, n, m))),
        Case(flow.SliceOp, f((n, 4, n)), sliced),
        *(
            Case(flow.PadOp, f((n, m)), {"low": (0, low), "high": (0, high), "value": value})
            for low, high, value in ((1, 2, 0.0), (1, 0, 3.0), (-1, 0, 3.0))
        ),
        Case(flow.ConcatOp, f((n, 2, m), (n, 3, m), (n, 1, m)), {"dim": 1}),
        Case(indexing.TakeOp, (((n, m), "f32"), ((m, 2), i64)), {"dim": 0}, below=n),
        Case(indexing.TakeOp, (((2, n, m), "f32"), ((m,), "i32")), {"dim": 1}, below=n),
        Case(indexing.GatherOp, (((n, m), "f32"), ((n, 3), i64)), {"dim": 1}, below=m),
        Case(indexing.GatherOp, (((n, m), "f32"), ((2, m), i64)), {"dim": 0}, below=n),
        Case(indexing.GatherOp, (((2 * n, m), "f32"), ((n, m), i64)), {"dim": 1}, below=m),
        Case(indexing.ScatterOp, (((n, m), "f32"), ((n, 3), i64), ((n, 3), "f32")), {"dim": 1, "fn": "sum"}, below=m),
        Case(indexing.ScatterOp, (((n, m), "f32"), ((n, 1), i64), ((n, 1), "f32")), {"dim": 1, "fn": "set"}, below=m),
        Case(indexing.ScatterOp, (((m, n), "f32"), ((2, n), i64), ((2, n), "f32")), {"dim": 0, "fn": "max"}, below=m),
        *(
            Case(indexing.ScatterOp, (((n, 2), kind), ((n, 2), i64), ((n, 2), kind)), {"dim": 0, "fn": fn}, below=n)
            for kind, fn in (("f32", "sum"), ("i64", "sum"), ("f32", "prod"), ("f32", "max"), ("i1", "set"))
        ),
        Case(indexing.ScatterOp, (((m, n), "f32"), ((2, n), "i64"), ((2, n), "f32")), {"dim": 0, "fn": "sum"}, below=m),
        Case(literals.ConstantOp, (), {"value": (0,)}, (((n, m), i64),)),
        Case(literals.ConstantOp, (), {"value": (0.0,)}, (((n,), "f32"),)),
        Case(literals.RandomOp, (((), i64),), {"distribution": "uniform", "stream": 1}, f((n, 2, m))),
        *(
            Case(flow.ExternOp, experts(tokens, count), {"target": "irc::experts", "arguments": EXPERTS % count}, f((tokens, 3)))
            for tokens, count in ((n, m), (m, n))
        ),
        Case(windows.ConvolutionOp, f((n, m, 5, 4), (2 * m, m, 3, 3), (2 * m,)), window(groups=1)),
        Case(windows.ConvolutionOp, f((n, m, 5, 4), (2 * m, m, 3, 3)), window(groups=1, strides=(2, 1))),
        Case(windows.ConvolutionOp, f((2, 2 * m, 5, 4), (3 * m, 2, 3, 3), (3 * m,)), window(groups=m)),
        Case(windows.ConvolutionOp, f((2, n, 5, 4), (n, 1, 3, 3)), window(groups=n)),
        Case(windows.PoolOp, f((n, m, 4, 6)), {**pool, "fn": "max", "count_padding": False}, f((n, m, 2, 3))),
        Case(windows.PoolOp, f((n, m, 4, 6)), {**pool, "fn": "avg", "count_padding": True}, f((n, m, 2, 3))),
        Case(searches.SortOp, f((n, m)), {"dim": 1, "descending": True}),
        Case(searches.TopKOp, f((n, m)), {"k": 2, "dim": 0, "largest": True}),
        # More than a shard has; equal numbers, of which the first counts; what a shard adds up to.
        Case(searches.TopKOp, f((n, m)), {"k": 5, "dim": 1, "largest": False}),
        Case(searches.TopKOp, (((n, m), i64),), {"k": 3, "dim": 0, "largest": True}, below=3),
        Case(searches.ArgReduceOp, (((n, m), i64),), {"fn": "max", "dim": 0, "keep_dims": False}, below=3),
        *(
            Case(scans.CumulativeOp, (((n, m), kind),), {"fn": fn, "dim": 0, "exclusive": exclusive, "reverse": reverse}, below=5)
            for kind, fn, exclusive, reverse in (("f32", "sum", True, True), (i64, "sum", True, False), (i64, "min", False, True), ("f32", "max", True, False))
        ),
        Case(literals.RandomOp, (((), i64),), {"distribution": "normal", "stream": 3}, f((n, m))),
        *(
            Case(
                AttentionOp,
                f((2, heads, n, 3), (2, groups, m, 3), (2, groups, m, 5), *masks),
                {"is_causal": causal, "scale": 0.5},
            )
            for heads, groups, causal, masks in (
                (2 * m, m, False, ()),
                (n, n, True, ()),
                (n, 1, False, ((1, n, n, m),)),
                (m, m, False, ((n, 1),)),
            )
        ),
        Case(
            AttentionOp,
            (*f((2, n, 4), (2, m, 4), (2, m, 4)), ((n, m), "i1")),
            {"is_causal": True, "scale": 0.5},
        ),
        Case(AttentionOp, f((n, 3), (m, 3), (m, 3)), {"is_causal": False, "scale": 1.0}),
        *attention_cases(n, m),
        Case(packed_products.GroupedContractOp, (*f((n, 8), (3, 1, 8, 64, 1)), ((n,), "i64")), {}, below=3),
        Case(packed_products.GroupedOuterOp, (*f((n, 8), (n, 3)), ((n,), "i64")), {"count": 3}, below=3),
        Case(packed_products.PackedContractOp, (((n, 8), "u8"), ((1, 2, 16, 4), "i8")), {"bits": 8}),
        Case(
            flow.ExternOp,
            f((n, m)),
            {"target": "aten::tril", "arguments": '[[{"operand": 0}], {}]'},
            f((n, m)),
        ),
        Case(
            flow.ExternOp,
            f((n, m)),
            {"target": "aten::softmax.int", "arguments": '[[{"operand": 0}, -1], {}]', "rule": "(a b) -> (a b) whole(b)"},
            f((n, m)),
        ),
    ]  # fmt: skip
    return [case for case in instances if case.operands or case.results]


def replicas(placement: Placement, mesh: Mesh) -> Iterator[dict[str, int]]:
    """Every choice of which copy to believe."""
    axes = [axis for axis, placed in placement.axes if isinstance(placed, Broadcast)]
    for place in product(*(range(mesh.size(axis)) for axis in axes)):
        yield dict(zip(axes, place, strict=True))


def partial_value(value: torch.Tensor, placement: Placement, mesh: Mesh) -> list[torch.Tensor]:
    """Shards whose partial values are partial in earnest: no rank holds the whole, or zeros."""
    parts = shard(value, placement, mesh)
    for axis in placement.partial_axes():
        for group in mesh.groups(axis):
            noise = torch.zeros_like(parts[group[0]])
            for index, rank in enumerate(group[1:], 1):
                place = index * torch.ones_like(parts[rank])
                if parts[rank].dtype == torch.bool:
                    neutral = placement[axis] == Partial("min")
                    parts[rank] = torch.full_like(parts[rank], neutral)
                elif placement[axis] == Partial("sum"):
                    parts[rank] = parts[rank] + place
                    noise = noise + place
                elif placement[axis] == Partial("max"):
                    parts[rank] = parts[rank] - place
                else:
                    parts[rank] = parts[rank] + place
            if placement[axis] == Partial("sum"):
                parts[group[0]] = parts[group[0]] - noise
    return parts


def holds(
    case: Case, op: FlowOp, signature: NdSignature, mesh: Mesh, whole: Sequence[torch.Tensor]
) -> bool:
    """True where the shards compute the whole op, on every replica."""
    expected = run_op(op, whole, dtype=torch.float64)
    held = [partial_value(v, p, mesh) for v, p in zip(whole, signature.operands, strict=True)]
    results = run_ranks(op, signature, mesh, held, dtype=torch.float64)
    for value, parts, placement in zip(expected, results, signature.results, strict=True):
        for replica in replicas(placement, mesh):
            joined = combine(parts, placement, mesh, tuple(value.shape), replica)
            if value.dtype.is_floating_point or value.dtype.is_complex:
                if not torch.allclose(joined, value, rtol=1e-9, atol=1e-9, equal_nan=True):
                    return False
            elif not torch.equal(joined, value):
                return False
    return True


def check_all(instances: Sequence[Case], mesh: Mesh, *, uneven: bool) -> Counter[str]:
    counted: Counter[str] = Counter()
    for case in instances:
        op, whole = case.build(), case.inputs()
        for signature in signatures(op, mesh, uneven=uneven):
            assert holds(case, op, signature, mesh, whole), f"{op}\n{signature}"
            counted[op.name] += 1
    return counted


PLANNED = {op.name for op in flow_ops.OPS} - {"flow.fusion", "flow.yield"}
LARGER = ["data=2,tensor=2", "data=3,tensor=2"]
MESHES = ["data=2", "data=3", LARGER[0], pytest.param(LARGER[1], marks=pytest.mark.slow)]


@pytest.mark.parametrize("mesh", MESHES)
def test_even_shards_compute_the_op(mesh: str) -> None:
    counted = check_all(cases(12, 6), Mesh.parse(mesh), uneven=False)
    print(f"{mesh}: {counted.total()} signatures of {len(counted)} ops")
    assert set(counted) == PLANNED


@pytest.mark.parametrize(
    "mesh", [*MESHES[:2], *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in LARGER)]
)
def test_uneven_shards_compute_the_op(mesh: str) -> None:
    counted = check_all(cases(7, 5), Mesh.parse(mesh), uneven=True)
    print(f"{mesh}: {counted.total()} uneven signatures of {len(counted)} ops")
    assert set(counted) == PLANNED


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "uneven"), [((16, 8), False), ((9, 5), True)])
def test_shards_on_three_axes_compute_the_op(sizes: tuple[int, int], uneven: bool) -> None:
    counted = check_all(cases(*sizes), Mesh.parse("pod=2,data=2,tensor=2"), uneven=uneven)
    print(f"three axes: {counted.total()} signatures of {len(counted)} ops")
    assert set(counted) == PLANNED


def backward(case: Case) -> Iterator[tuple[FlowOp, list[torch.Tensor]]]:
    """The ops of an op's derivative, with the values that they meet."""
    op, inputs = case.build(), case.inputs()
    smooth = [i for i, v in enumerate(op.inputs) if is_smooth(v)]
    if is_flat(op) or not smooth or not any(map(is_smooth, op.outputs)):
        return
    block = op.parent_block()
    assert block is not None
    outputs = run_op(op, inputs, dtype=torch.float64)
    values = dict(zip((*block.args, *op.outputs), (*inputs, *outputs), strict=True))
    gradients: list[SSAValue | None] = []
    for value in op.outputs:
        gradients.append(
            block.insert_arg(value.type, len(block.args)) if is_smooth(value) else None
        )
        if gradients[-1] is not None:
            values[gradients[-1]] = torch.randn_like(values[value])
    at = Adjoint(op, PhaseBuilder(block, "backward", prefix="b", loc="t.py:1"), gradients, smooth)
    with suppress(NotDifferentiable):
        for operand in smooth:
            gradient(at, operand)
    backward_op = op.next_op
    while backward_op is not None:
        assert isinstance(backward_op, FlowOp)
        operand_values = [values[v] for v in backward_op.inputs]
        values.update(
            zip(
                backward_op.outputs,
                run_op(backward_op, operand_values, dtype=torch.float64),
                strict=True,
            )
        )
        yield backward_op, operand_values
        backward_op = backward_op.next_op


SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))


@pytest.mark.parametrize(
    ("mesh", "uneven"),
    [
        ("data=2", False),
        ("data=3", True),
        pytest.param("data=2,tensor=2", False, marks=SLOW),
        pytest.param("pod=2,data=2,tensor=2", False, marks=SLOW),
        pytest.param("data=2,tensor=2", True, marks=SLOW),
        pytest.param("pod=2,data=2,tensor=2", True, marks=SLOW),
    ],
)
def test_backward_ops_compute_under_every_signature(mesh: str, uneven: bool) -> None:
    on, counted, seen = Mesh.parse(mesh), Counter[str](), set[str]()
    for case in cases(7, 5) if uneven else cases(12, 6):
        for op, values in backward(case):
            kinds = [str(v.type) for v in (*op.inputs, *op.outputs)]
            if (key := f"{op.name} {op.plain} {kinds}") in seen:
                continue
            seen.add(key)
            for signature in signatures(op, on, uneven=uneven):
                assert holds(case, op, signature, on, values), f"{op}\n{signature}"
                counted[op.plain.get("target", op.name)] += 1
    print(
        f"{mesh}: {counted.total()} signatures of {len(seen)} backward ops of {len(counted)} kinds"
    )
    assert {"irc::vjp", "aten::convolution", "aten::convolution_backward", "flow.scatter"} <= set(
        counted
    )


def attrs(**values: Any) -> dict[str, Any]:
    return values


N, M = 12, 6
WRONG: list[tuple[str, Case, str]] = [
    ("bias added to a partial sum", Case(flow.PointwiseOp, f((N, M), (M,)), attrs(fn="add")), "(a b, b) -> (a b) linear(0)"),
    ("function of a partial sum", Case(flow.PointwiseOp, f((N, M)), attrs(fn="relu")), "(a b) -> (a b) linear(0)"),
    ("product of two partial sums", Case(flow.PointwiseOp, f((N, M), (M,)), attrs(fn="mul")), "(a b, b) -> (a b) linear(0 1)"),
    ("falling function of a maximum", Case(flow.PointwiseOp, f((N, M)), attrs(fn="neg")), "(a b) -> (a b) monotone(0)"),
    ("running sum split", Case(scans.CumulativeOp, f((N, M)), attrs(fn="sum", dim=1, exclusive=False, reverse=False)), "(a b) -> (a b)"),
    ("sort split", Case(searches.SortOp, f((N, M)), attrs(dim=1, descending=False)), "(a b) -> (a b, a b)"),
    ("maximum summed", Case(flow.ReduceOp, f((N, M)), attrs(fn="max", dims=(1,), keep_dims=False)), "(a b) -> (a) sum(b)"),
    ("pad with ones added", Case(flow.PadOp, f((N, M)), attrs(low=(0, 1), high=(0, 0), value=1.0)), "(a 1) -> (a 1) linear(0)"),
    ("bias added by every rank", Case(windows.ConvolutionOp, f((2, M, 5, 4), (4, M, 3, 3), (4,)), window(groups=1)),
     "(n c 1 1, o c k0 k1, o) -> (n o y0 y1) sum(c k0 k1) whole(k0 k1 y0 y1)"),
    ("causal rows split", Case(AttentionOp, f((2, N, 4), (2, N, 4), (2, N, 4)), attrs(is_causal=True, scale=1.0)),
     "(g s d, g t d, g t e) -> (g s e) sum(t d) whole(t d e)"),
    ("query heads of other groups", Case(AttentionOp, f((N, 5, 4), (M, 5, 4), (M, 5, 4)), attrs(is_causal=False, scale=1.0)),
     "([r g] s d, g t d, g t e) -> ([r g] s e) sum(t d) whole(t d e s) size(g=6)"),
    ("rows written by two ranks", Case(indexing.ScatterOp, (((N, M), "f32"), ((N, 2), "i64"), ((N, 2), "f32")), attrs(dim=1, fn="sum"), below=M),
     "(a 1, a b, a b) -> (a 1) sum(b)"),
    ("random numbers drawn twice", Case(literals.RandomOp, (((), "i64"),), attrs(distribution="normal", stream=0), f((N, M))), "(.) -> (a b)"),
    ("softmax split", Case(flow.ExternOp, f((N, M)), attrs(target="aten::softmax.int", arguments='[[{"operand": 0}, -1], {}]'), f((N, M))),
     "(a b) -> (a b)"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "rule"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_rule_is_caught(case: Case, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_all([case], Mesh.parse("data=2"), uneven=False)
    if (record := case.op.RECORD) is not None:
        monkeypatch.setattr(case.op, "RECORD", replace(record, rule=lambda *_: parse_rule(rule)))
    else:
        monkeypatch.setitem(RULES, case.op.name, lambda *_: parse_rule(rule))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=case.op.name):
        check_all([case], Mesh.parse("data=2"), uneven=False)


def test_a_partial_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros on each rank add up to zeros; ones do not add up to ones."""
    case = Case(literals.ConstantOp, (), {"value": (1.0,)}, f((N, M)))
    check_all([case], Mesh.parse("data=2"), uneven=False)
    wrong = Strategy(AS_IT_IS, (), (Partial("sum"),), 0, split="nothing")
    record = literals.ConstantOp.RECORD
    assert record is not None
    planted = replace(record, strategies=lambda *_: [wrong])
    monkeypatch.setattr(literals.ConstantOp, "RECORD", planted)
    with pytest.raises(AssertionError, match=r"flow\.constant"):
        check_all([case], Mesh.parse("data=2"), uneven=False)


PLANTED: list[tuple[str, Case]] = [
    ("masked-scatter", Case(indexing.ScatterOp, (((N, M), "f32"), ((4, M), "i64"), ((4, M), "f32")), attrs(dim=0, fn="max"), below=N)),
    ("offset-random", Case(literals.RandomOp, (((), "i64"),), attrs(distribution="normal", stream=0), f((N, M)))),
    ("own-experts", Case(flow.ExternOp, experts(N, M), attrs(target="irc::experts", arguments=EXPERTS % M), f((N, 3)))),
    ("offset-iota", Case(literals.IotaOp, (), attrs(dim=0), f((N, M)))),
    ("travelling-tokens", Case(flow.ExternOp, experts(N, M), attrs(target="irc::experts", arguments=EXPERTS % M), f((N, 3)))),
    ("two-stage-top-k", Case(searches.TopKOp, f((N, M)), attrs(k=2, dim=0, largest=True))),
    ("two-stage-arg", Case(searches.ArgReduceOp, f((N, M)), attrs(fn="max", dim=0, keep_dims=False))),
    ("scan-of-shards", Case(scans.CumulativeOp, f((N, M)), attrs(fn="sum", dim=0, exclusive=False, reverse=False))),
    ("causal-rows", Case(AttentionOp, f((2, N, 4), (2, N, 4), (2, N, 4)), attrs(is_causal=True, scale=1.0))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "case"), PLANTED, ids=[p[0] for p in PLANTED])
def test_a_rank_that_forgets_its_offset_is_caught(
    name: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = Mesh.parse("data=2")
    assert any(name in s.strategy for s in signatures(case.build(), mesh))
    check_all([case], mesh, uneven=False)

    def nowhere(self: Local, logical: Any, placement: Any, dim: int, dtype: str) -> SSAValue:
        return self.scalar(0, dtype)

    monkeypatch.setattr(Local, "offset", nowhere)
    with pytest.raises(AssertionError, match=case.op.name):
        check_all([case], mesh, uneven=False)


def test_a_split_of_the_minor_factor_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(flow.ReshapeOp, f((N, 3 * M)), {}, f((N, 3, M)))
    check_all([case], Mesh.parse("data=2"), uneven=False)

    def anywhere(term: tuple[DimTerm, ...], factor: str, otherwise: Any) -> Any:
        return next((Split(i) for i, dim in enumerate(term) if factor in dim), otherwise)

    monkeypatch.setattr(Rule, "splittable", lambda rule: rule.factors)
    monkeypatch.setattr(signatures_module, "_on", anywhere)
    with pytest.raises(AssertionError, match=r"flow\.reshape"):
        check_all([case], Mesh.parse("data=2"), uneven=False)


def test_a_swapped_order_of_application_is_caught() -> None:
    mesh = Mesh.parse("data=2,tensor=2")
    case = Case(flow.PointwiseOp, f((N, M)), {"fn": "exp"})
    op, whole = case.build(), case.inputs()
    right = next(s for s in signatures(op, mesh) if len(s.operands[0].split_axes(0)) == 2)
    assert holds(case, op, right, mesh, whole)
    swapped = Placement((("data", Split(0, 1)), ("tensor", Split(0))))
    wrong = replace(right, results=(swapped,))
    assert not holds(case, op, wrong, mesh, whole)
    assert find_signature(op, mesh, wrong.operands, wrong.results) is None
    both = replace(right, operands=(swapped,), results=(swapped,))
    assert find_signature(op, mesh, both.operands, both.results) == both
    assert holds(case, op, both, mesh, whole)


def test_a_masked_take_with_axes_in_the_wrong_order_is_caught() -> None:
    mesh = Mesh.parse("data=3,tensor=2")
    case = Case(indexing.TakeOp, (((N, M), "f32"), ((N,), "i64")), {"dim": 0})
    op, whole = case.build(), [case.inputs()[0], torch.arange(N)]
    right = next(s for s in signatures(op, mesh) if len(s.operands[0].split_axes(0)) == 2)
    assert right.strategy == ("masked-take", "masked-take")
    assert holds(case, op, right, mesh, whole)
    held = shard(whole[0], right.operands[0], mesh)
    held[1], held[2] = held[2], held[1]
    indices = shard(whole[1], right.operands[1], mesh)
    (parts,) = run_ranks(op, right, mesh, [held, indices], dtype=torch.float64)
    joined = combine(parts, right.results[0], mesh, tensor(op.outputs[0]).static_shape())
    assert not torch.allclose(joined, run_op(op, whole, dtype=torch.float64)[0])

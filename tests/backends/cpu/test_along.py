"""Scans, sorts and scatters along a dim: NaN, ties, duplicates, strides, odd sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from xdsl.ir import Block, SSAValue

from irc.backends.cpu import Features
from irc.backends.cpu.emit import emit
from irc.backends.cpu.indexing import order
from irc.backends.cpu.indexing.keys import key_of
from irc.backends.cpu.indexing.lanes import LanesWriter
from irc.backends.cpu.indexing.scan import ScanWriter
from irc.backends.cpu.indexing.scatter import ScatterWriter
from irc.backends.cpu.vector.builder import Builder, Operand, Type, constant
from irc.dialects.flow import BroadcastOp, ExternOp, FlowOp, ReshapeOp, tensor
from irc.dialects.indexing import ScatterOp
from irc.dialects.literals import ConstantOp
from irc.dialects.scans import CumulativeOp
from irc.dialects.searches import SortOp, TopKOp
from irc.dialects.task import KernelOp
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.task import run_kernel
from irc.kernels.along import along_kernel, is_along
from irc.kernels.trace import Stored
from irc.kernels.view import View
from irc.runtime.dtypes import dtype_names

Run = Callable[..., list[Tensor]]
KINDS = [
    torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool,
    *(
        pytest.param(dtype, marks=pytest.mark.slow)
        for dtype in (torch.float64, torch.float16, torch.int32, torch.int16, torch.int8)
    ),
]  # fmt: skip
LINES = [((1,), 0), ((37,), 0), ((3, 70), 1), ((5, 9), 0), ((2, 19, 70), 1), ((4, 1, 3), 1)]
"""Shapes and dims: rows, columns of several vectors, and what is left of them."""


def numbers(shape: Sequence[int], dtype: torch.dtype, *, plain: bool = False) -> Tensor:
    """Random numbers with ties; floats have both zeros, infinities and NaN unless ``plain``."""
    if not dtype.is_floating_point:
        low = 0 if dtype in (torch.uint8, torch.bool) else -9
        return torch.randint(low, 2 if dtype == torch.bool else 9, shape).to(dtype)
    x = (torch.randn(shape) * 3).round(decimals=1).to(dtype)
    if not plain and x.numel() > 8:
        special = [float("nan"), -0.0, 0.0, float("inf"), -float("inf"), float("nan")]
        x.view(-1)[torch.randperm(x.numel())[:6]] = torch.tensor(special, dtype=dtype)
    return x


class Made:
    """A kernel, and the flat tensors that it reads."""

    def __init__(
        self,
        kind: type[FlowOp],
        operands: Sequence[Tensor],
        results: Sequence[tuple[Sequence[int], torch.dtype]],
        **attrs: Any,
    ) -> None:
        kinds = [TensorType.of(list(x.shape), dtype_names()[x.dtype]) for x in operands]
        block = Block(arg_types=kinds)
        result_kinds = [
            TensorType.of(list(shape), dtype_names()[dtype]) for shape, dtype in results
        ]
        self.op = kind.make(list(block.args), result_kinds, **attrs)
        self.block, self.operands = block, list(operands)
        block.add_op(self.op)
        assert is_along(self.op, "cpu")
        lowered = along_kernel(self.op, self._stored)
        self.kernel: KernelOp = lowered.kernel
        self.kernel.verify()
        self.memory = [self._memory(operands[block.args.index(v)]) for v in lowered.operands]
        self.shapes = [list(shape) for shape, _ in results]

    def _stored(self, value: SSAValue) -> Stored:
        x = self.operands[self.block.args.index(value)]
        size = self._memory(x).numel()
        return value, View.strided(int(x.storage_offset()), x.shape, x.stride(), size)

    def _memory(self, x: Tensor) -> Tensor:
        whole = x.untyped_storage()
        return torch.empty(0, dtype=x.dtype).set_(whole)

    def check(self, run: Run, wanted: Sequence[Tensor], tolerance: float, **options: Any) -> None:
        """Compare the backend and the interpreter with torch."""
        results = run(self.kernel, self.memory, **options)
        same(results, self.shapes, wanted, tolerance)
        outputs = [torch.zeros(w.numel(), dtype=w.dtype) for w in wanted]
        run_kernel(self.kernel, self.memory, outputs)
        same(outputs, self.shapes, wanted, tolerance)


def same(
    results: Sequence[Tensor], shapes: Sequence[Any], wanted: Sequence[Tensor], tolerance: float
) -> None:
    for one, shape, want in zip(results, shapes, wanted, strict=True):
        torch.testing.assert_close(
            one.reshape(shape), want, rtol=tolerance, atol=tolerance, equal_nan=True
        )


TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 5e-3}


def running(x: Tensor, dim: int, fn: str, **way: bool) -> Made:
    attrs = {"exclusive": False, "reverse": False, **way}
    return Made(CumulativeOp, [x], [(x.shape, x.dtype)], fn=fn, dim=dim, **attrs)


@pytest.mark.parametrize(("shape", "dim"), LINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_running_sums(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, run: Run, features: Features | None
) -> None:
    x = numbers(shape, dtype, plain=True)
    want = torch.cumsum(x, dim, dtype=dtype)
    tolerance = TOLERANCE.get(dtype, 0.0) * 10
    running(x, dim, "sum").check(run, [want], tolerance, features=features)
    back = torch.cumsum(x.flip(dim), dim, dtype=dtype).flip(dim)
    running(x, dim, "sum", reverse=True).check(run, [back], tolerance, features=features)
    before = torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), want], dim)
    before = before.narrow(dim, 0, shape[dim])
    running(x, dim, "sum", exclusive=True).check(run, [before], tolerance, features=features)


@pytest.mark.parametrize(("shape", "dim"), LINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
@pytest.mark.parametrize("fn", ["max", "min"])
def test_running_extremes_and_their_places(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, fn: str, run: Run
) -> None:
    x = numbers(shape, dtype)
    want = (torch.cummax if fn == "max" else torch.cummin)(x, dim)
    running(x, dim, fn).check(run, [want.values], 0)
    kinds = [(x.shape, dtype), (x.shape, torch.int64)]
    name = {"target": f"aten::cum{fn}", "arguments": f'[[{{"operand": 0}}, {dim}], {{}}]'}
    Made(ExternOp, [x], kinds, **name).check(run, list(want), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_products_and_log_sums(dtype: torch.dtype, run: Run) -> None:
    x = numbers((3, 21), dtype, plain=True) / 3
    running(x, 1, "prod").check(run, [torch.cumprod(x, 1)], TOLERANCE[dtype] * 10)
    x.view(-1)[:5] = torch.tensor([-torch.inf, -torch.inf, 1.0, torch.inf, torch.nan])
    name = {"target": "aten::logcumsumexp", "arguments": '[[{"operand": 0}, 1], {}]'}
    lowered = Made(ExternOp, [x], [(x.shape, dtype)], **name)
    lowered.check(run, [torch.logcumsumexp(x, 1)], TOLERANCE[dtype] * 4)


def test_long_rows_are_the_same_on_any_number_of_threads(run: Run) -> None:
    x = torch.randn(3, 70_001)
    lowered = running(x, 1, "sum")
    alone, two, three = (run(lowered.kernel, lowered.memory, num_threads=n)[0] for n in (1, 2, 3))
    assert torch.equal(alone, two)
    assert torch.equal(alone, three)
    exact = torch.cumsum(x.double(), 1)
    bound = torch.cumsum(x.double().abs(), 1) * (2**-24 + 70_001 * 2**-53)
    assert bool(((alone.view(3, -1).double() - exact).abs() <= bound).all())


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((1,), 0), ((8, 8), 1), ((5, 6), 0), ((2, 96), 1), ((97,), 0), ((2, 331), 1), ((150, 2), 0)],
)
@pytest.mark.parametrize("dtype", KINDS)
def test_sorting_is_stable_and_nan_is_last(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, run: Run
) -> None:
    x = numbers(shape, dtype)
    for down in (False, True):
        want = torch.sort(x, dim=dim, descending=down, stable=True)
        kinds = [(x.shape, dtype), (x.shape, torch.int64)]
        lowered = Made(SortOp, [x], kinds, dim=dim, descending=down)
        lowered.check(run, list(want), 0)
        # Bits too: a zero keeps its sign.
        values, moved = (
            run(lowered.kernel, lowered.memory)[0],
            x.gather(dim, want.indices).reshape(-1),
        )
        kept = ~moved.isnan()
        assert torch.equal(values[kept].view(torch.uint8), moved[kept].view(torch.uint8))


@pytest.mark.parametrize(
    ("n", "k"), [(8, 2), (6, 5), (64, 8), (130, 1), (500, 64), (700, 100), (3000, 50), (9000, 700)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("largest", [True, False])
def test_the_first_few_are_those_of_a_stable_sort(
    n: int, k: int, dtype: torch.dtype, largest: bool, run: Run
) -> None:
    for x in (numbers((3, n), dtype), numbers((n,), dtype).sort().values.expand(3, n).contiguous()):
        every = torch.sort(x, dim=1, descending=largest, stable=True)
        want = [part[:, :k].contiguous() for part in every]
        kinds = [((3, k), dtype), ((3, k), torch.int64)]
        lowered = Made(TopKOp, [x], kinds, k=k, dim=1, largest=largest)
        lowered.check(run, want, 0)


@pytest.mark.parametrize(("n", "k"), [(20, 20), (150, 3), (260, 90)])
def test_sorting_on_older_machines(n: int, k: int, run: Run, features: Features | None) -> None:
    x = numbers((2, n), torch.float32)
    want = [part[:, :k].contiguous() for part in torch.sort(x, dim=1, stable=True)]
    lowered = Made(
        TopKOp, [x], [((2, k), x.dtype), ((2, k), torch.int64)], k=k, dim=1, largest=False
    )
    lowered.check(run, want, 0, features=features)


TABLES = [((7,), 0, 12), ((9, 40), 0, 30), ((3, 8, 5), 1, 6), ((300, 130), 0, 70), ((40, 6), 1, 9)]


@pytest.mark.parametrize(("shape", "dim", "places"), TABLES)
@pytest.mark.parametrize("fn", ["set", "sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_scatters_with_duplicates(
    shape: tuple[int, ...], dim: int, places: int, fn: str, dtype: torch.dtype, run: Run
) -> None:
    wide = [places if d == dim else n for d, n in enumerate(shape)]
    plain = fn == "sum"
    x, source = numbers(shape, dtype, plain=plain), numbers(wide, dtype, plain=plain)
    line = [places if d == dim else 1 for d in range(len(shape))]
    each = torch.randint(0, shape[dim], wide)
    for index in (each, torch.randint(0, shape[dim], line).expand(wide)):
        lowered = Made(ScatterOp, [x, index, source], [(shape, dtype)], dim=dim, fn=fn)
        if fn == "set":
            want = x.scatter(dim, index, source)
        else:
            want = x.scatter_reduce(dim, index, source, {"sum": "sum"}.get(fn, f"a{fn}"))
        lowered.check(run, [want], TOLERANCE.get(dtype, 0.0) * 4, num_threads=2)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_scatter_reads_views(run: Run, threads: int) -> None:
    x = torch.randn(50, 21).t()
    source = torch.randn(21, 1).expand(21, 40)
    index = torch.randint(0, 50, (40, 42)).t()[::2]
    lowered = Made(ScatterOp, [x, index, source], [(x.shape, x.dtype)], dim=1, fn="sum")
    lowered.check(run, [x.scatter_add(1, index, source)], 1e-5, num_threads=threads)


def test_views_are_read_by_strides(run: Run) -> None:
    x = numbers((40, 30), torch.float32)[::2, 3:27].t()
    for lowered, want in (
        (running(x, 0, "max"), [torch.cummax(x, 0).values]),
        (running(x, 1, "max"), [torch.cummax(x, 1).values]),
        (
            Made(SortOp, [x], [(x.shape, x.dtype), (x.shape, torch.int64)], dim=1, descending=True),
            list(torch.sort(x, dim=1, descending=True, stable=True)),
        ),
    ):
        lowered.check(run, want, 0)


@pytest.mark.parametrize("wrong", [-1, 9, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_outside_is_refused_before_anything_is_written(
    wrong: int, threads: int, run: Run
) -> None:
    x, source = torch.randn(9, 600), torch.randn(4, 600)
    index = torch.randint(0, 9, (4, 600))
    index[-1, -1] = wrong
    lowered = Made(ScatterOp, [x, index, source], [(x.shape, x.dtype)], dim=0, fn="sum")
    with pytest.raises(IrcError, match="lies outside") as caught:
        run(lowered.kernel, lowered.memory, num_threads=threads)
    assert caught.value.code == "index-out-of-range"


def test_what_no_kernel_has_stays_in_the_library() -> None:
    def held(kind: type[FlowOp], operands: Sequence[tuple[Any, str]], **attrs: Any) -> bool:
        block = Block(arg_types=[TensorType.of(list(shape), dtype) for shape, dtype in operands])
        op = kind.make(list(block.args), [tensor(block.args[0])], **attrs)
        return is_along(op, "cpu") or is_along(op, "sm_80")

    scan = {"fn": "sum", "dim": 0, "exclusive": False, "reverse": False}
    assert held(CumulativeOp, [((4,), "f32")], **scan)
    assert not held(CumulativeOp, [((4,), "c64")], **scan)
    assert not held(CumulativeOp, [((0,), "f32")], **scan)
    write = {"dim": 0, "fn": "sum"}
    assert not held(ScatterOp, [((4, 5), "f32"), ((2, 3), "i64"), ((2, 3), "f32")], **write)
    assert held(ScatterOp, [((4, 5), "f32"), ((2, 5), "i64"), ((2, 5), "f32")], **write)
    assert not held(SortOp, [(((1 << 20) + 1,), "f32")], dim=0, descending=False)


def test_a_scatter_into_equal_values_does_not_read_them(run: Run) -> None:
    block = Block(arg_types=[TensorType.of([6], "i64"), TensorType.of([6, 40], "f32")])
    zeros = ConstantOp.make([], [TensorType.of([9, 40], "f32")], value=(0.0,))
    block.add_op(zeros)
    wide = torch.tensor([3, 8, 3, 0, 8, 3])[:, None].expand(6, 40)
    kind = TensorType.of([6, 40], "i64")
    column = ReshapeOp.make([block.args[0]], [TensorType.of([6, 1], "i64")])
    index = BroadcastOp.make([column.outputs[0]], [kind])
    op = ScatterOp.make(
        [zeros.outputs[0], index.outputs[0], block.args[1]],
        [TensorType.of([9, 40], "f32")],
        dim=0,
        fn="sum",
    )
    block.add_ops([column, index, op])
    views: dict[SSAValue, Stored] = {
        index.outputs[0]: (block.args[0], View.strided(0, (6, 40), (1, 0), 6))
    }

    def stored(value: SSAValue) -> Stored:
        return views.get(value) or (value, View.contiguous(tensor(value).static_shape()))

    lowered = along_kernel(op, stored)
    assert lowered.operands == (block.args[0], block.args[1])
    source = torch.randn(6, 40)
    (output,) = run(lowered.kernel, [wide[:, 0].contiguous(), source.flatten()])
    want = torch.zeros(9, 40).scatter_add(0, wide, source)
    torch.testing.assert_close(output.view(9, 40), want)
    assert "llvm.memset" in emit(lowered.kernel)


def _as_integers(b: Builder, bits: Operand, dtype: str, *, descending: bool) -> Operand:
    return key_of(b, bits, "i32", descending=descending)


PLANTED: list[tuple[object, str, object]] = [
    (order, "key_of", _as_integers),
    (LanesWriter, "_lanes_moved", lambda self, by: list(range(self.lanes))),
    (ScanWriter, "neutral", lambda self, lanes=1: constant(Type(self.kind, lanes), 1)),
    (ScatterWriter, "_is_owned", lambda self, index, span: self.b.compare("icmp eq", index, index)),
]


@pytest.mark.parametrize(("where", "name", "wrong"), PLANTED, ids=[name for _, name, _ in PLANTED])
def test_planted_bugs_are_caught(
    where: object, name: str, wrong: object, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    x, table = torch.randn(2, 130), torch.randn(2, 6000)
    index, source = torch.randint(0, 6000, (2, 2000)), torch.randn(2, 2000)
    kinds = [(x.shape, x.dtype), (x.shape, torch.int64)]
    sort = Made(SortOp, [x], kinds, dim=1, descending=False)
    write = Made(ScatterOp, [table, index, source], [(table.shape, x.dtype)], dim=1, fn="sum")

    def all_are_right() -> None:
        sort.check(run, list(torch.sort(x, dim=1, stable=True)), 0)
        running(x, 1, "sum").check(run, [torch.cumsum(x, 1)], 1e-4)
        write.check(run, [table.scatter_add(1, index, source)], 1e-5, num_threads=2)

    with pytest.raises(AssertionError):
        all_are_right()
    monkeypatch.undo()
    all_are_right()

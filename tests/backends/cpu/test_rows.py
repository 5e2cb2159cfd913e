"""The rows template against the interpreter: reductions over each kind of dim, strides, passes."""

import itertools
from typing import Any

import pytest
import torch

from irc.backends.cpu import emit
from irc.backends.cpu.features import AVX512
from irc.backends.cpu.loops.nest import analyse, read, simplify
from irc.backends.cpu.loops.schedule import make_schedule
from irc.dialects.text import load
from irc.errors import IrcError

SOFTMAX = """
builtin.module {
task.kernel @softmax {template = "rows", space = array<i64: 37, 53>, parallel = 1 : i64,
    num_inputs = 1 : i64, mapping = #task.map<spatial(37)>} : {
^bb0(%x: !task.buffer<1961, f32>, %y: !task.buffer<1961, f32>):
  %a = task.load(%x) {offset = 0 : i64, strides = array<i64: 53, 1>}
      : (!task.buffer<1961, f32>) -> !task.value<f32, full>
  %m = task.reduce(%a) {fn = "max"} : (!task.value<f32, full>) -> !task.value<f32, row>
  %d = task.pointwise(%a, %m) {fn = "sub"}
      : (!task.value<f32, full>, !task.value<f32, row>) -> !task.value<f32, full>
  %e = task.pointwise(%d) {fn = "exp"} : (!task.value<f32, full>) -> !task.value<f32, full>
  %s = task.reduce(%e) {fn = "sum"} : (!task.value<f32, full>) -> !task.value<f32, row>
  %r = task.pointwise(%e, %s) {fn = "div"}
      : (!task.value<f32, full>, !task.value<f32, row>) -> !task.value<f32, full>
  task.store(%r, %y) {offset = 0 : i64, strides = array<i64: 53, 1>}
      : (!task.value<f32, full>, !task.buffer<1961, f32>) -> ()
}
}
"""


def close(got: torch.Tensor, want: torch.Tensor, rtol: float = 3e-6, atol: float = 3e-6) -> None:
    if got.is_floating_point():
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol, equal_nan=True)
    else:
        assert torch.equal(got, want)


def test_softmax_from_text(run: Any, features: Any) -> None:
    kernel = next(iter(load(SOFTMAX).body.block.ops))
    x = torch.randn(37, 53) * 5
    (got,) = run(kernel, [x], 2, features)
    close(got, torch.softmax(x.double(), 1).flatten())


def test_softmax_keeps_the_exponentials(run: Any) -> None:
    nest = simplify(read(next(iter(load(SOFTMAX).body.block.ops))))  # type: ignore[arg-type]
    plan = make_schedule(nest, analyse(nest), 37, AVX512)
    assert [len(p.saves) for p in plan.passes] == [0, 1, 0]
    assert [len(p.loads) for p in plan.passes] == [0, 0, 1]
    assert plan.scratch_bytes >= 53 * 4


REDUCE_DIMS = [
    ((7, 33), (1,)), ((33, 7), (0,)), ((1, 64), (1,)), ((64, 1), (0,)), ((5, 6, 35), (2,)),
    ((5, 6, 35), (1,)), ((5, 6, 35), (0,)), ((5, 6, 35), (0, 2)), ((5, 6, 35), (0, 1)),
    ((5, 6, 35), (1, 2)), ((3, 100), (0, 1)), ((130, 3), (1,)), ((2, 3, 4, 5), (1, 3)),
    ((1,), (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dims"), REDUCE_DIMS)
def test_reduce_over_dims(
    shape: tuple[int, ...], dims: tuple[int, ...], make: Any, run: Any, features: Any
) -> None:
    kept = [d for d in range(len(shape)) if d not in dims]
    order = [*kept, *dims]
    natural = torch.empty(shape).stride()
    out = [shape[d] for d in kept]
    x = torch.randn(shape)
    k = make(
        tuple(shape[d] for d in order),
        len(kept),
        [(x.numel(), "f32")],
        [
            (
                max(x.numel() // max(1, torch.tensor([shape[d] for d in dims]).prod().item()), 1),
                "f32",
            )
        ],
    )
    value = k.load(0, [natural[d] for d in order])
    strides = [*torch.empty(out).stride(), *[0] * len(dims)]
    k.store(k.reduce("sum", k.fn("mul", value, value)), 0, strides)
    (got,) = run(k.kernel(), [x], 2, features)
    close(got, (x.double() ** 2).sum(dims).flatten(), rtol=1e-5)


@pytest.mark.parametrize("fn", ["sum", "max", "min", "prod", "any", "all"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i64", "i32", "u8", "i1"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_dtypes(
    fn: str, dtype: str, axis: int, make: Any, run: Any, reference: Any
) -> None:
    rows, length = 9, 39
    if dtype in ("f32", "f64", "bf16"):
        x = torch.randn(rows * length).to(
            {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}[dtype]
        )
    else:
        kind = {"i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "i1": torch.bool}[dtype]
        x = torch.randint(0, 2 if dtype == "i1" or fn == "prod" else 100, (rows * length,)).to(kind)
    if fn in ("any", "all"):
        x[:length] = 0 if fn == "any" else 1
    out = "i1" if fn in ("any", "all") else "i64" if dtype == "i1" and fn == "sum" else dtype
    k = make((rows, length), 1, [(rows * length, dtype)], [(rows, out)])
    value = k.load(0, (length, 1) if axis else (1, rows))
    if out == "i64" and dtype == "i1":
        value = k.fn("cast", value, dtype="i64")
    k.store(k.reduce(fn, value, out), 0, (1, 0))
    kernel = k.kernel()
    (got,), (want,) = run(kernel, [x]), reference(kernel, [x])
    close(got, want, 1e-2 if dtype == "bf16" else 1e-5)


def test_extremes_pass_nan_on(make: Any, run: Any, features: Any) -> None:
    x = torch.randn(6, 41)
    x[0, 0] = x[1, 40] = x[2, 17] = torch.nan
    x[3, 5] = torch.inf
    for fn in ("max", "min"):
        k = make((6, 41), 1, [(246, "f32")], [(6, "f32")])
        k.store(k.reduce(fn, k.load(0, (41, 1))), 0, (1, 0))
        (got,) = run(k.kernel(), [x], 1, features)
        close(got, (x.amax(1) if fn == "max" else x.amin(1)).double())


@pytest.mark.parametrize("length", [1, 31, 64, 1000])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_layer_norm(
    length: int, dtype: str, make: Any, run: Any, reference: Any, features: Any
) -> None:
    rows = 13
    k = make(
        (rows, length),
        1,
        [(rows * length, dtype), (length, dtype), (length, dtype)],
        [(rows * length, dtype)],
    )
    x, weight, bias = k.load(0, (length, 1)), k.load(1, (0, 1)), k.load(2, (0, 1))
    scale = k.constant(1 / length)
    centred = k.fn("sub", x, k.fn("mul", k.reduce("sum", x), scale))
    variance = k.fn("mul", k.reduce("sum", k.fn("mul", centred, centred)), scale)
    inverse = k.fn("rsqrt", k.fn("add", variance, k.constant(1e-5)))
    k.store(k.fn("add", k.fn("mul", k.fn("mul", centred, inverse), weight), bias), 0, (length, 1))
    kernel = k.kernel()
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    inputs = [
        t.to(kinds[dtype])
        for t in (torch.randn(rows, length) * 2 + 1, torch.randn(length), torch.randn(length))
    ]
    (got,), (want,) = run(kernel, inputs, 2, features), reference(kernel, inputs)
    step = {"f32": 1e-5, "bf16": 2.0**-8, "f16": 2.0**-10}[dtype]
    close(got, want, step, step)


STRIDED = [
    ((37, 50), (50, 1), (1, 37)), ((37, 50), (1, 37), (50, 1)),
    ((4, 5, 33), (1, 132, 4), (165, 33, 1)),
    ((40, 3), (0, 1), (3, 1)), ((40, 3), (1, 0), (3, 1)), ((6, 64), (-64, 1), (64, 1)),
    ((6, 64), (64, -1), (64, 1)), ((9, 17), (200, 3), (17, 1)),
    ((2, 3, 4, 5), (0, 5, 0, 1), (60, 20, 5, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("space", "source", "target"), STRIDED)
def test_strides(
    space: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], make: Any, run: Any,
    reference: Any, features: Any,
) -> None:  # fmt: skip
    offset = sum(-s * (n - 1) for s, n in zip(source, space, strict=True) if s < 0) + 5
    size = offset + 1 + sum(s * (n - 1) for s, n in zip(source, space, strict=True) if s > 0)
    total = int(torch.tensor(space).prod())
    k = make(space, len(space), [(size, "f32")], [(total, "f32")])
    value = k.load(0, source, offset)
    k.store(k.fn("add", value, k.fn("exp", value)), 0, target)
    kernel, x = k.kernel(), torch.randn(size)
    (got,), (want,) = run(kernel, [x], 2, features), reference(kernel, [x])
    close(got, want)


def test_gather_of_rows_and_of_elements(make: Any, run: Any, reference: Any, features: Any) -> None:
    tokens, width, vocabulary = 7, 37, 11
    ids = torch.randint(0, vocabulary, (tokens,))
    table = torch.randn(vocabulary * width)
    k = make(
        (tokens, width),
        2,
        [(tokens, "i64"), (vocabulary * width, "f32")],
        [(tokens * width, "f32")],
    )
    row = k.load(0, (1, 0))
    k.store(k.load(1, (0, 1), 0, [row], [width], [vocabulary]), 0, (width, 1))
    kernel = k.kernel()
    (got,), (want,) = run(kernel, [ids, table], 1, features), reference(kernel, [ids, table])
    close(got, want)
    picks = torch.randint(0, 37, (tokens * width,)).to(torch.int32)
    k = make(
        (tokens, width),
        2,
        [(tokens * width, "i32"), (vocabulary * width, "f32")],
        [(tokens * width, "f32")],
    )
    k.store(k.load(1, (37, 0), 0, [k.load(0, (width, 1))], [1], [37]), 0, (width, 1))
    kernel = k.kernel()
    (got,), (want,) = run(kernel, [picks, table], 1, features), reference(kernel, [picks, table])
    close(got, want)


@pytest.mark.parametrize("outside", [-(1 << 40), -1, 5, 1 << 40])
def test_a_gather_outside_its_buffer_is_refused(outside: int, make: Any, run: Any) -> None:
    ids, table = torch.tensor([0, outside, 4]), torch.arange(5.0)
    k = make((3,), 1, [(3, "i64"), (5, "f32")], [(3, "f32")])
    k.store(k.load(1, (0,), 0, [k.load(0, (1,))], [1], [5]), 0, (1,))
    with pytest.raises(IrcError, match="index-out-of-range"):
        run(k.kernel(), [ids, table])


def test_index(make: Any, run: Any, reference: Any, features: Any) -> None:
    k = make((9, 35), 2, [(315, "f32")], [(315, "f32")])
    keep = k.fn("ge", k.index(0), k.index(1))
    k.store(k.fn("where", keep, k.load(0, (35, 1)), k.constant(float("-inf"))), 0, (35, 1))
    kernel, x = k.kernel(), torch.randn(315)
    (got,), (want,) = run(kernel, [x], 1, features), reference(kernel, [x])
    close(got, want)


def test_index_in_a_reduction(make: Any, run: Any, features: Any) -> None:
    k = make((5, 23), 1, [], [(5, "i64")])
    k.store(k.reduce("sum", k.fn("mul", k.index(0), k.index(1))), 0, (1, 0))
    (got,) = run(k.kernel(), [], 1, features)
    assert got.tolist() == [i * 253 for i in range(5)]


def test_empty_spaces(make: Any, run: Any) -> None:
    k = make((3, 0), 1, [(0, "f32")], [(3, "f32")])
    k.store(k.reduce("sum", k.load(0, (0, 1))), 0, (1, 0))
    assert run(k.kernel(), [torch.empty(0)])[0].tolist() == [0, 0, 0]


def test_scalar_kernel(make: Any, run: Any) -> None:
    k = make((), 0, [(1, "f32")], [(1, "f32")])
    k.store(k.fn("exp", k.load(0, ())), 0, ())
    got = run(k.kernel(), [torch.tensor([1.0])])[0]
    assert abs(got.item() - 2.718281828) < 1e-6


def test_two_results_at_different_stages(
    make: Any, run: Any, reference: Any, features: Any
) -> None:
    rows, length = 11, 45
    k = make(
        (rows, length),
        1,
        [(rows * length, "f32")],
        [(rows * length, "f32"), (rows, "f32"), (rows * length, "f32")],
    )
    x = k.load(0, (length, 1))
    e = k.fn("tanh", x)
    k.store(e, 0, (length, 1))
    total, top = k.reduce("sum", e), k.reduce("max", e)
    k.store(k.fn("add", total, top), 1, (1, 0))
    k.store(k.fn("sub", e, total), 2, (length, 1))
    kernel, value = k.kernel(), torch.randn(rows * length)
    for got, want in zip(
        run(kernel, [value], 2, features), reference(kernel, [value]), strict=True
    ):
        close(got, want, 1e-5, 1e-5)


def test_softmax_over_a_strided_dim(make: Any, run: Any, features: Any) -> None:
    outer, length, inner = 3, 19, 37
    k = make(
        (outer, inner, length),
        2,
        [(outer * length * inner, "f32")],
        [(outer * length * inner, "f32")],
    )
    strides = (length * inner, 1, inner)
    x = k.load(0, strides)
    e = k.fn("exp", k.fn("sub", x, k.reduce("max", x)))
    k.store(k.fn("div", e, k.reduce("sum", e)), 0, strides)
    value = torch.randn(outer, length, inner)
    (got,) = run(k.kernel(), [value], 2, features)
    close(got, torch.softmax(value.double(), 1).flatten())


def test_division_of_work_never_changes_results(make: Any, run: Any) -> None:
    from irc.dialects.mapping import compose, repeat, spatial

    x = torch.randn(50_001)
    first = None
    for workers, threads in itertools.product((1, 3, 32), (1, 2, 3)):
        k = make((50_001,), 1, [(50_001, "f32")], [(50_001, "f32")])
        k.mapping = compose(spatial(workers), repeat(-(-50_001 // workers)))
        k.store(k.fn("gelu", k.load(0, (1,))), 0, (1,))
        (got,) = run(k.kernel(), [x], threads)
        first = got if first is None else first
        assert torch.equal(got, first)


def test_text_is_short(make: Any) -> None:
    k = make((1024, 384), 1, [(1024 * 384, "f32")], [(1024 * 384, "f32")])
    x = k.load(0, (384, 1))
    k.store(k.fn("div", x, k.reduce("sum", x)), 0, (384, 1))
    assert len(emit(k.kernel(), AVX512).splitlines()) < 150

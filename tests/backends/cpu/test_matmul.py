"""The matmul template against torch in float64: odd sizes, layouts, batches, epilogues, dtypes."""

from typing import Any

import pytest
import torch

from irc.backends.cpu import emit, info_of
from irc.backends.cpu.features import AVX2, AVX512, BASELINE

KINDS = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
         "i32": torch.int32, "i64": torch.int64, "i8": torch.int8}  # fmt: skip
TOLERANCE = {"f32": 6e-6, "f64": 1e-14, "bf16": 2.0**-8, "f16": 2.0**-10}
SIZES = [
    (1, 1, 1), (1, 7, 5), (7, 1, 13), (3, 33, 17), (13, 33, 100), (33, 13, 7), (100, 100, 100),
    (25, 65, 33), (8, 40, 50), (5, 300, 20), (1, 200, 300), (64, 3, 77), (12, 32, 16),
]  # fmt: skip


def product(
    make: Any,
    sizes: tuple[int, int, int],
    dtype: str,
    *,
    ta: bool,
    tb: bool,
    batch: int = 0,
    shared: bool = False,
    after: str = "",
    out: str = "",
) -> Any:
    """A kernel: op(A) @ op(B), then bias, function, residual where ``after`` names a function."""
    m, n, k = sizes
    count = batch or 1
    lead = 1 if batch else 0
    inputs = [(count * m * k, dtype), ((1 if shared else count) * n * k, dtype)]
    if after:
        inputs += [(n, dtype), (count * m * n, dtype)]
    maker = make(
        (*([batch] if batch else []), m, n, k),
        lead + 2,
        inputs,
        [(count * m * n, out or dtype)],
        "matmul",
    )
    a = (1, 0, m) if ta else (k, 0, 1)
    b = (0, k, 1) if tb else (0, 1, n)
    c = (n, 1, 0)
    if batch:
        a, b, c = (m * k, *a), (0 if shared else n * k, *b), (m * n, *c)
    value = maker.contract(maker.load(0, a), maker.load(1, b), out or dtype)
    if after:
        value = maker.fn("add", value, maker.load(2, (*[0] * lead, 0, 1, 0)))
        value = maker.fn("add", maker.fn(after, value), maker.load(3, c))
    maker.store(value, 0, c)
    return maker.kernel("mm")


def answer(
    inputs: list[torch.Tensor],
    sizes: tuple[int, int, int],
    *,
    ta: bool,
    tb: bool,
    batch: int = 0,
    after: str = "",
) -> torch.Tensor:
    m, n, k = sizes
    wide = [t.double() if t.is_floating_point() else t.long() for t in inputs]
    count = batch or 1
    a = wide[0].view(count, k, m).mT if ta else wide[0].view(count, m, k)
    b = wide[1].view(-1, n, k).mT if tb else wide[1].view(-1, k, n)
    c = a @ b
    if after:
        fn = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "copy": torch.clone}[after]
        c = fn(c + wide[2]) + wide[3].view(count, m, n)
    return c.flatten()


def draw(kernel: Any, dtype: str) -> list[torch.Tensor]:
    sizes = [arg.type.num_elements for arg in kernel.args[: kernel.num_inputs.value.data]]
    if dtype.startswith("i"):
        return [torch.randint(-9, 9, (s,)).to(KINDS[dtype]) for s in sizes]
    return [torch.randn(s).to(KINDS[dtype]) for s in sizes]


def check(
    make: Any,
    run: Any,
    sizes: Any,
    dtype: str = "f32",
    features: Any = None,
    threads: int = 2,
    **options: Any,
) -> None:
    kernel = product(make, sizes, dtype, **options)
    inputs = draw(kernel, dtype)
    (got,) = run(kernel, inputs, threads, features)
    options.pop("shared", None), options.pop("out", None)
    want = answer(inputs, sizes, **options)
    if dtype.startswith("i"):
        assert torch.equal(got.long(), want)
        return
    scale = max(sizes[2], 1) ** 0.5
    error = (got.double() - want).abs() / (scale + want.abs())
    assert error.max() <= TOLERANCE[dtype], (sizes, dtype, options)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("ta", "tb"), [(False, True), (False, False), (True, True), (True, False)])
def test_layouts(sizes: Any, ta: bool, tb: bool, make: Any, run: Any) -> None:
    check(make, run, sizes, ta=ta, tb=tb)


@pytest.mark.parametrize("sizes", SIZES[::3])
@pytest.mark.parametrize("features", [AVX2, BASELINE])
def test_older_machines(sizes: Any, features: Any, make: Any, run: Any) -> None:
    check(make, run, sizes, features=features, ta=False, tb=True)
    check(make, run, sizes, features=features, ta=True, tb=False)


@pytest.mark.parametrize("sizes", SIZES[::2])
@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
def test_dtypes(sizes: Any, dtype: str, make: Any, run: Any) -> None:
    for ta in (False, True):
        check(make, run, sizes, dtype, ta=ta, tb=not ta)


@pytest.mark.parametrize("dtype", ["i32", "i64", "i8"])
def test_integers(dtype: str, make: Any, run: Any) -> None:
    for sizes in ((7, 9, 5), (1, 33, 40), (20, 20, 3)):
        check(make, run, sizes, dtype, ta=False, tb=True, out="i64" if dtype == "i8" else "")


@pytest.mark.parametrize("after", ["gelu", "relu", "copy"])
@pytest.mark.parametrize(
    "sizes", [(13, 33, 21), (24, 64, 40), (3, 50, 64), (1, 37, 20), (40, 1, 9)]
)
def test_epilogues(after: str, sizes: Any, make: Any, run: Any) -> None:
    check(make, run, sizes, ta=False, tb=True, after=after)
    check(make, run, sizes, ta=False, tb=False, after=after)
    check(make, run, sizes, features=AVX2, ta=False, tb=True, after=after)


@pytest.mark.parametrize("sizes", [(13, 33, 21), (1, 40, 17), (5, 9, 16), (50, 20, 8)])
def test_batches(sizes: Any, make: Any, run: Any) -> None:
    for shared, tb in ((False, True), (True, True), (False, False), (True, False)):
        check(make, run, sizes, batch=3, shared=shared, ta=False, tb=tb, after="gelu")


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_any_number_of_threads_gives_the_same(threads: int, make: Any, run: Any) -> None:
    from irc.dialects.mapping import compose, repeat, spatial

    sizes = (150, 130, 70)
    maker = make(
        (*sizes[:2], 70), 2, [(150 * 70, "f32"), (130 * 70, "f32")], [(150 * 130, "f32")], "matmul"
    )
    maker.mapping = compose(spatial(10, 10), repeat(15, 13))
    maker.store(
        maker.contract(maker.load(0, (70, 0, 1)), maker.load(1, (0, 70, 1))), 0, (130, 1, 0)
    )
    kernel = maker.kernel("mm")
    inputs = draw(kernel, "f32")
    assert torch.equal(run(kernel, inputs, threads)[0], run(kernel, inputs, 1)[0])


def test_transposed_result(make: Any, run: Any) -> None:
    maker = make((30, 45, 20), 2, [(600, "f32"), (900, "f32")], [(1350, "f32")], "matmul")
    maker.store(maker.contract(maker.load(0, (20, 0, 1)), maker.load(1, (0, 20, 1))), 0, (1, 30, 0))
    x, y = torch.randn(30, 20), torch.randn(45, 20)
    (got,) = run(maker.kernel(), [x, y])
    want = (y.double() @ x.double().T).flatten()
    assert torch.allclose(got.double(), want, atol=1e-4)


def test_heads_of_attention(make: Any, run: Any) -> None:
    """Batch dims that do not merge, rows apart by heads: [b, s, h, d] as b h s d."""
    b, h, s, d = 2, 3, 19, 16
    maker = make(
        (b, h, s, s, d), 4, [(b * s * h * d, "f32")] * 2, [(b * h * s * s, "f32")], "matmul"
    )
    row = (s * h * d, d, h * d, 0, 1)
    column = (s * h * d, d, 0, h * d, 1)
    maker.store(
        maker.contract(maker.load(0, row), maker.load(1, column)), 0, (h * s * s, s * s, s, 1, 0)
    )
    q, k = torch.randn(b, s, h, d), torch.randn(b, s, h, d)
    (got,) = run(maker.kernel(), [q, k], 2)
    want = torch.einsum("bshd,bthd->bhst", q.double(), k.double()).flatten()
    assert torch.allclose(got.double(), want, atol=1e-4)


def test_rows_on_one_cache_set(make: Any, run: Any) -> None:
    check(make, run, (26, 300, 1024), ta=False, tb=True)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_long_sums_in_blocks(dtype: str, make: Any, run: Any, features: Any) -> None:
    check(make, run, (29, 70, 4999), dtype, features, ta=False, tb=True, after="gelu")
    check(make, run, (13, 33, 2049), dtype, features, ta=True, tb=False)


def test_forms(make: Any) -> None:
    def form(sizes: Any, tb: bool, features: Any = AVX512) -> str:
        return info_of(emit(product(make, sizes, "f32", ta=False, tb=tb), features)).template

    assert form((64, 64, 64), True) == "matmul packed"
    assert form((4, 64, 64), True) == "matmul dots"
    assert form((4, 64, 64), False) == "matmul stream"
    assert form((64, 1, 64), True, AVX2) == "matmul dots"
    integers = product(make, (9, 9, 9), "i32", ta=False, tb=True)
    assert info_of(emit(integers, AVX512)).template == "rows"

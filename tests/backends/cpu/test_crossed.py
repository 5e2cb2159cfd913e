"""Turned operands and results past the caches: the same numbers as the interpreter's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from irc.backends.cpu import Features, KernelCall, compile_segment, emit
from irc.backends.cpu.features import AVX512, BASELINE
from tests.processors import EVERY, needs_avx512

SIZES = [(16, 16), (8, 8), (17, 33), (31, 64), (64, 31), (9, 130), (127, 67)]


def turned(make: Any, rows: int, columns: int, dtype: str = "f32", batch: int = 3) -> Any:
    """``y[b, i, j] = x[b, j, i] + c[j]``."""
    size = batch * rows * columns
    m = make((batch, rows, columns), 3, [(size, dtype), (columns, dtype)], [(size, dtype)])
    x = m.load(0, (rows * columns, 1, rows))
    m.store(m.fn("add", x, m.load(1, (0, 0, 1))), 0, (rows * columns, columns, 1))
    return m.kernel()


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_a_transpose_with_arithmetic(
    rows: int, columns: int, make: Any, run: Any, features: Features | None
) -> None:
    x, c = torch.randn(3, columns, rows), torch.randn(columns)
    kernel = turned(make, rows, columns)
    assert '"template": "crossed"' in emit(kernel, features)
    (y,) = run(kernel, [x, c], 2, features)
    assert torch.equal(y.view(3, rows, columns), x.transpose(1, 2) + c)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i64", "i32", "i8", "u8"])
def test_every_width_of_element_is_turned(
    dtype: str, make: Any, run: Any, features: Features | None
) -> None:
    kinds = {"f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
    kind = kinds.get(dtype) or getattr(torch, {"u8": "uint8"}.get(dtype, f"int{dtype[1:]}"))
    x, c = torch.arange(3 * 19 * 37).view(3, 37, 19) % 50, torch.arange(37) % 7
    x, c = x.to(kind), c.to(kind)
    (y,) = run(turned(make, 19, 37, dtype), [x, c], 2, features)
    assert torch.equal(y.view(3, 19, 37), x.transpose(1, 2) + c)


def test_two_operands_turned_and_one_straight(make: Any, run: Any) -> None:
    m = make((21, 40), 2, [(840, "f32")] * 3, [(840, "f32"), (840, "f32")])
    a, b, c = m.load(0, (1, 21)), m.load(1, (1, 21)), m.load(2, (40, 1))
    total = m.fn("add", m.fn("mul", a, b), c)
    m.store(total, 0, (40, 1))
    m.store(m.fn("neg", total), 1, (40, 1))
    x, y, z = torch.randn(40, 21), torch.randn(40, 21), torch.randn(21, 40)
    first, second = run(m.kernel(), [x, y, z], 2)
    wanted = x.t() * y.t() + z
    assert torch.allclose(first.view(21, 40), wanted, atol=1e-6)
    assert torch.equal(second, -first)


@pytest.mark.parametrize("size", [(7, 100), (100, 7), (1, 100)])
def test_narrow_ones_and_reductions_stay_rows(size: tuple[int, int], make: Any) -> None:
    rows, columns = size
    assert '"template": "rows"' in emit(turned(make, rows, columns, batch=1))


def test_a_dropped_exchange_would_show(
    make: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from irc.backends.cpu.loops import crossed

    whole = crossed.turned_square
    monkeypatch.setattr(
        crossed, "turned_square", lambda b, lines: whole(b, lines)[::-1][::-1][1:] + lines[:1]
    )
    x, c = torch.randn(3, 33, 17), torch.zeros(33)
    (y,) = run(turned(make, 17, 33), [x, c])
    assert not torch.equal(y.view(3, 17, 33), x.transpose(1, 2))


LARGE = 3 << 20


def scaled(make: Any, rows: int, columns: int) -> Any:
    m = make((rows, columns), 2, [(rows * columns, "f32"), (columns, "f32")],
             [(rows * columns, "f32")])  # fmt: skip
    m.store(m.fn("mul", m.load(0, (columns, 1)), m.load(1, (0, 1))), 0, (columns, 1))
    return m.kernel()


@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("kind", EVERY)
def test_large_results_are_streamed_where_their_address_allows(
    shift: int, kind: Features, make: Any
) -> None:
    columns = 1024
    kernel = scaled(make, LARGE // columns, columns)
    assert ("!nontemporal" in emit(kernel, kind)) == (kind is not BASELINE)
    x, w = torch.randn(LARGE), torch.randn(columns)
    room = torch.full((LARGE + 64,), 7.0)
    start = (-room.data_ptr() % 64) // 4 + shift
    segment = compile_segment([kernel], [KernelCall(0, ((0, 0), (1, 0), (2, 0)))], 2, kind)
    segment.run_pointers([x.data_ptr(), w.data_ptr(), room.data_ptr() + 4 * start])
    assert torch.equal(room[start : start + LARGE], (x.view(-1, columns) * w).view(-1))
    assert bool((room[:start] == 7).all()) and bool((room[start + LARGE :] == 7).all())


@needs_avx512
@pytest.mark.parametrize(
    ("dtype", "rows", "columns"),
    [("f32", 1789, 1787), ("f32", 19, 165601), ("f32", 165601, 19), ("bf16", 2557, 2549)],
)
@pytest.mark.parametrize("shift", [0, 3])
def test_large_transposes_of_odd_sizes_are_streamed_between_the_ends_of_rows(
    dtype: str, rows: int, columns: int, shift: int, make: Any
) -> None:
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    size = rows * columns
    m = make((rows, columns), 2, [(size, dtype)], [(size, dtype)])
    m.store(m.fn("neg", m.load(0, (1, rows))), 0, (columns, 1))
    kernel = m.kernel()
    assert '"template": "crossed"' in emit(kernel, AVX512)
    assert "!nontemporal" in emit(kernel, AVX512)
    x, room = torch.randn(columns, rows).to(kind), torch.full((size + 128,), 7.0).to(kind)
    start = (-room.data_ptr() % 64) // kind.itemsize + shift
    segment = compile_segment([kernel], [KernelCall(0, ((0, 0), (1, 0)))], 2, AVX512)
    segment.run_pointers([x.data_ptr(), room.data_ptr() + kind.itemsize * start])
    assert torch.equal(room[start : start + size].view(rows, columns), -x.t())
    assert bool((room[:start] == 7).all()) and bool((room[start + size :] == 7).all())


def test_lanes_outside_a_row_are_not_read(make: Any, run: Any, features: Features | None) -> None:
    """What is turned lies along one dim and the rest along another: the last lanes read nothing."""
    m = make((3, 9, 21), 3, [(567, "f32"), (567, "f32")], [(567, "f32")])
    x, y = m.load(0, (1, 63, 3)), m.load(1, (189, 1, 9))
    m.store(m.fn("add", x, y), 0, (189, 21, 1))
    kernel = m.kernel()
    a, b = torch.randn(9, 21, 3), torch.randn(3, 21, 9)
    (got,) = run(kernel, [a, b], 2, features)
    assert torch.equal(got.view(3, 9, 21), a.permute(2, 0, 1) + b.transpose(1, 2))


def test_odd_rows_and_small_results_are_not_streamed(make: Any) -> None:
    assert "!nontemporal" not in emit(scaled(make, 3001, 1023), AVX512)
    assert "!nontemporal" not in emit(scaled(make, 64, 1024), AVX512)


@pytest.mark.parametrize(("rows", "columns"), [(5, 1024), (5, 1021), (1, 4096), (3, 70000)])
def test_rows_are_fetched_ahead_and_stay_the_same(
    rows: int, columns: int, make: Any, run: Callable[..., list[torch.Tensor]],
    reference: Callable[..., list[torch.Tensor]], features: Features | None,
) -> None:  # fmt: skip
    m = make((rows, columns), 1, [(rows * columns, "f32")], [(rows, "f32")])
    x = m.load(0, (columns, 1))
    m.store(m.reduce("sum", m.fn("exp", m.fn("sub", x, m.reduce("max", x)))), 0, (1, 0))
    kernel = m.kernel()
    fetches = "llvm.prefetch" in emit(kernel, features)
    assert fetches == (rows > 1 and columns < 70000)
    values = torch.randn(rows * columns)
    (got,), (want,) = run(kernel, [values], 2, features), reference(kernel, [values])
    assert torch.allclose(got.double(), want, rtol=1e-5)

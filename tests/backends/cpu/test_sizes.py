"""Kernels that take their sizes when they run: one text for all of them, equal to numbers."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch

from irc.backends.cpu import KernelCall, emit, info_of, load_segment
from irc.backends.cpu.emit import run_time_sizes
from irc.backends.cpu.features import AVX512
from irc.backends.cpu.info import from_text, to_text
from irc.backends.cpu.loops.rows import RowsWriter
from irc.dialects.attributes import to_attribute
from irc.dialects.size import Dim, Size, symbol, value_of
from irc.dialects.task import KernelOp
from irc.dialects.task_sizes import bind_kernel
from irc.dialects.task_types import BufferType
from irc.errors import InternalError
from tests.backends.attention_kernels import Attend
from tests.backends.attention_kernels import inputs_of as attention_inputs_of
from tests.backends.attention_kernels import kernel_of as attention_kernel_of
from tests.backends.cpu.conftest import TORCH
from tests.backends.cpu.sized_kernels import PRODUCTS, ROWS, Build, maker, named, on_panels
from tests.processors import needs_avx512

SIZES = (2, 3, 16, 17, 129, 1000)


def inputs_of(kernel: KernelOp, values: dict[str, int]) -> list[torch.Tensor]:
    """Random operands; integers are indices below S."""
    inputs = []
    for arg in kernel.args[: kernel.num_inputs.value.data]:
        kind = arg.type
        assert isinstance(kind, BufferType)
        dtype = TORCH[kind.dtype]
        if dtype.is_floating_point:
            inputs.append(torch.randn(kind.num_elements).to(dtype))
        else:
            inputs.append(torch.randint(0, values["S"], (kind.num_elements,)).to(dtype))
    return inputs


def run_text(
    text: str, kernel: KernelOp, inputs: list[torch.Tensor], sizes: tuple[int, ...],
    threads: int, features: Any,
) -> list[torch.Tensor]:  # fmt: skip
    """Run a text on guarded outputs of a bound kernel."""
    outputs = []
    for arg in kernel.args[len(inputs) :]:
        kind = arg.type
        assert isinstance(kind, BufferType)
        outputs.append(torch.full((kind.num_elements + 64,), 7).to(TORCH[kind.dtype]))
    call = KernelCall(0, tuple((i, 0) for i in range(len(kernel.args))), sizes)
    segment = load_segment([text], [call], threads, features)
    segment.run_pointers([t.data_ptr() for t in (*inputs, *outputs)])
    for output in outputs:
        assert torch.equal(output[-64:], torch.full((64,), 7).to(output.dtype)), "past the end"
    return [output[:-64] for output in outputs]


def turns(sizes: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Each size in each place once, not every pair."""
    return [tuple(sizes[(i + j) % len(sizes)] for j in range(count)) for i in range(len(sizes))]


def pairs(sizes: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Every combination that is not too large for an interpreter."""
    combinations = itertools.product(sizes, repeat=count)
    return [values for values in combinations if prod(values) <= 40_000]


def check(
    build: Build, sizes: tuple[int, ...], features: Any, reference: Any,
    chosen: Callable[[Sequence[int], int], list[tuple[int, ...]]] = turns,
) -> None:  # fmt: skip
    open_kernel = named(build)
    assert run_time_sizes(open_kernel, features) is None
    text = emit(open_kernel, features)
    names = info_of(text).sizes
    for values in chosen(sizes, len(names)):
        by_name = dict(zip(names, values, strict=True))
        kernel = bind_kernel(open_kernel, by_name)
        kernel.verify()
        inputs = inputs_of(kernel, by_name)
        length = kernel.space_extents[-1]
        wanted = run_text(emit(kernel, features), kernel, inputs, (), 1, features)
        for threads in (1, 2):
            got = run_text(text, kernel, inputs, values, threads, features)
            for one, other, true in zip(got, wanted, reference(kernel, inputs), strict=True):
                # Float32 sums of random signs: their error grows as the root of their length.
                close = 2e-2 if one.dtype == torch.bfloat16 else 1e-6 * max(length, 4) ** 0.5
                torch.testing.assert_close(one, other, rtol=close, atol=close, msg=str(by_name))
                torch.testing.assert_close(one.double(), true, rtol=close, atol=4 * close)


@pytest.mark.parametrize("name", ROWS)
def test_rows_at_any_size(name: str, reference: Any) -> None:
    check(ROWS[name], (2, 17, 64), None, reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROWS, *PRODUCTS])
def test_all_pairs_of_sizes(name: str, features: Any, reference: Any) -> None:
    check({**ROWS, **PRODUCTS}[name], SIZES, features, reference, pairs)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_at_any_size(name: str, reference: Any) -> None:
    check(PRODUCTS[name], (2, 19, 64), None, reference)


@pytest.mark.parametrize(
    ("n", "k", "columns", "dtype"),
    [(100, 31, 64, "f32"), (64, 40, 32, "f32"), (70, 2100, 64, "f32"), (96, 34, 64, "bf16")],
)
def test_rows_on_panels_at_any_number(
    n: int, k: int, columns: int, dtype: str, reference: Any
) -> None:
    def build(S: Dim) -> KernelOp:
        return on_panels(S, n, k, columns, dtype)

    build.__annotations__ = {"S": Dim}
    check(build, (2, 5, 6, 13, 65), None, reference)


S, T, B = symbol("S"), symbol("T"), symbol("B")
ATTENDS = {
    "keys and rows": Attend(batch=B, rows=S, keys=T, depth=20, width=24),
    "causal, with sums": Attend(rows=S, keys=S, causal=True, sums=True, repeats=2, depth=64),
    "cached": Attend(rows=S, keys=T, causal=True, start=True),
    "padded": Attend(batch=B, rows=S, keys=S, mask="bool_keys"),
    "masked": Attend(rows=S, keys=T, mask="bool", depth=20, width=12),
    "added, halves": Attend(rows=S, keys=T, mask="float", dtype="f16", sums=True),
    "goes on": Attend(rows=S, keys=T, goes_on=True, sums=True),
    "decode": Attend(rows=1, keys=T, batch=B, groups=3),
    "pairs": Attend(rows=S, keys=T, dtype="bf16", causal=True, depth=64, width=32),
}  # fmt: skip
LENGTHS = ((2, 3), (3, 2), (17, 40), (33, 31), (64, 129), (100, 300))


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTENDS)
def test_attention_on_older_machines(name: str, features: Any) -> None:
    attend_at(LENGTHS, ATTENDS[name], features)


@pytest.mark.parametrize("name", ATTENDS)
def test_attention_at_any_length(name: str) -> None:
    attend_at(LENGTHS[::2], ATTENDS[name], None)


def attend_at(lengths: Sequence[tuple[int, int]], attend: Attend, features: Any) -> None:
    open_kernel = attention_kernel_of(attend)
    assert run_time_sizes(open_kernel, features) is None
    text = emit(open_kernel, features)
    for rows, keys in lengths:
        by_name = {"S": rows, "T": keys, "B": 3}
        chosen = {n: value_of(getattr(attend, n), by_name) for n in ("batch", "rows", "keys")}
        case = replace(attend, **chosen)
        kernel = attention_kernel_of(case)
        inputs = attention_inputs_of(case, kernel)
        values = tuple(by_name[name] for name in info_of(text).sizes)
        wanted = run_text(emit(kernel, features), kernel, inputs, (), 1, features)
        close = {"f32": 2e-5, "f16": 4e-3, "bf16": 4e-2}[attend.dtype]
        for threads in (1, 2):
            got = run_text(text, kernel, inputs, values, threads, features)
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=close, atol=close, msg=str(by_name))


@needs_avx512
def test_a_dropped_tail_is_caught(monkeypatch: pytest.MonkeyPatch, reference: Any) -> None:
    def without(self: Any, start: Any, stop: Any, place: Any, carried: Any, body: Any) -> Any:
        return carried

    monkeypatch.setattr(RowsWriter, "masked_strip", without)
    with pytest.raises(AssertionError):
        check(ROWS["flat"], (5,), AVX512, reference)


def test_a_wrong_polynomial_is_caught(reference: Any) -> None:
    def build(S: Dim, B: Dim) -> KernelOp:
        kernel = ROWS["square"](S, B)
        if not isinstance(S, int):
            load = next(iter(kernel.body.block.ops))
            load.properties["strides"] = to_attribute((1, B))
        return kernel

    open_kernel = named(build)
    # A square is right either way: only another shape shows that rows are B apart, not S.
    by_name, wrong = {"S": 3, "B": 5}, emit(open_kernel)
    kernel = ROWS["square"](3, 5)
    inputs = inputs_of(kernel, by_name)
    (got,) = run_text(wrong, kernel, inputs, (5, 3), 1, None)
    (true,) = reference(kernel, inputs)
    assert not torch.allclose(got.double(), true)


def test_reasons() -> None:
    """What cannot be proven, or is made for numbers, says so."""
    shorter = maker((S - 2, 4), 2, [(S * 4, "f32")], [(S * 4, "f32")])
    shorter.store(shorter.load(0, (4, 1)), 0, (4, 1))
    assert run_time_sizes(shorter.kernel()) == "a loop over S - 2 may be empty"
    table = maker((S, 4), 2, [(400, "f32")], [(S * 4, "f32")])
    table.store(table.load(0, (4, 1)), 0, (4, 1))
    kernel = table.kernel()
    assert run_time_sizes(kernel) == "task.load: its last element lies inside where -4*S + 400 >= 0"
    assert run_time_sizes(kernel, most={"S": 100}) is None
    assert run_time_sizes(kernel, most={"S": 101}) is not None
    turned = maker((S, 4), 2, [(S * S * 8, "f32")], [(S * 4, "f32")])
    turned.store(turned.load(0, (S - 5, 1), offset=40), 0, (4, 1))
    assert run_time_sizes(turned.kernel()) == "the sign of stride 'S - 5' depends on its sizes"


def test_sizes_that_a_call_lacks_are_our_mistake() -> None:
    text = emit(named(ROWS["flat"]))
    args = ((0, 0), (1, 0))
    with pytest.raises(InternalError, match="takes"):
        load_segment([text], [KernelCall(0, args)], 1)
    with pytest.raises(InternalError, match="no loop over"):
        load_segment([text], [KernelCall(0, args, (0,))], 1)


def test_a_description_comes_back() -> None:
    info = info_of(emit(named(ROWS["two_rows_kept"])))
    assert from_text(to_text(info)) == info
    assert isinstance(info.scratch_bytes, Size)
    assert info.bound((8,)).scratch_bytes == 2 * (8 * 4 + 64)
    small, large = info.bound((2,)), info.bound((100_000,))
    assert not small.parallel
    assert large.parallel


def test_scratch_memory_and_threads_follow_the_sizes() -> None:
    """Two calls of one text in one segment, of different sizes."""
    text = emit(named(ROWS["two_rows_kept"]))
    outputs, buffers, calls = [], [], []
    for size in (3, 5000):
        kernel = ROWS["two_rows_kept"](size)
        inputs = inputs_of(kernel, {"S": size})
        (wanted,) = run_text(emit(kernel), kernel, inputs, (), 1, None)
        output = torch.zeros(size * 5)
        first = len(buffers)
        buffers += [*inputs, output]
        calls.append(KernelCall(0, tuple((first + i, 0) for i in range(3)), (size,)))
        outputs.append((output, wanted))
    load_segment([text], calls, 2).run_pointers([t.data_ptr() for t in buffers])
    for output, wanted in outputs:
        torch.testing.assert_close(output, wanted, rtol=1e-6, atol=1e-6)

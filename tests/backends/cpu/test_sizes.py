"""Kernels that take their sizes when they run: one text for all of them, equal to numbers."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from irc.backends.cpu import KernelCall, emit, info_of, load_segment
from irc.backends.cpu.emit import run_time_sizes
from irc.dialects.size import Dim, symbol, value_of
from irc.dialects.task import BufferType, KernelOp
from irc.dialects.task_sizes import bind_kernel
from tests.backends.attention_kernels import Attend
from tests.backends.attention_kernels import inputs_of as attention_inputs_of
from tests.backends.attention_kernels import kernel_of as attention_kernel_of
from tests.backends.cpu.conftest import TORCH
from tests.backends.cpu.sized_kernels import PRODUCTS, ROWS, Build, named, on_panels

SIZES = (2, 3, 5, 15, 16, 17, 31, 33, 64, 65, 127, 129, 1000)


def inputs_of(kernel: KernelOp, values: dict[str, int]) -> list[torch.Tensor]:
    """Random operands; integers are indices below S."""
    found = []
    for arg in kernel.args[: kernel.num_inputs.value.data]:
        kind = arg.type
        assert isinstance(kind, BufferType)
        dtype = TORCH[kind.dtype]
        if dtype.is_floating_point:
            found.append(torch.randn(kind.num_elements).to(dtype))
        else:
            found.append(torch.randint(0, values["S"], (kind.num_elements,)).to(dtype))
    return found


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


def check(build: Build, sizes: tuple[int, ...], features: Any, reference: Any) -> None:
    open_kernel = named(build)
    assert run_time_sizes(open_kernel, features) is None
    text = emit(open_kernel, features)
    names = info_of(text).sizes
    for values in itertools.product(sizes, repeat=len(names)):
        given = dict(zip(names, values, strict=True))
        if torch.tensor(values).prod() > 40_000:
            continue
        kernel = bind_kernel(open_kernel, given)
        kernel.verify()
        inputs = inputs_of(kernel, given)
        length = kernel.space_extents[-1]
        wanted = run_text(emit(kernel, features), kernel, inputs, (), 1, features)
        for threads in (1, 2):
            got = run_text(text, kernel, inputs, values, threads, features)
            for one, other, true in zip(got, wanted, reference(kernel, inputs), strict=True):
                # Float32 sums of random signs: their error grows as the root of their length.
                close = 2e-2 if one.dtype == torch.bfloat16 else 1e-6 * max(length, 4) ** 0.5
                torch.testing.assert_close(one, other, rtol=close, atol=close, msg=str(given))
                torch.testing.assert_close(one.double(), true, rtol=close, atol=4 * close)


@pytest.mark.parametrize("name", ROWS)
def test_rows_at_any_size(name: str, reference: Any) -> None:
    check(ROWS[name], (2, 3, 17, 64, 129), None, reference)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_at_any_size(name: str, reference: Any) -> None:
    check(PRODUCTS[name], (2, 5, 17, 64, 129), None, reference)


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
    check(build, (2, 3, 4, 5, 6, 7, 11, 13, 65), None, reference)


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


@pytest.mark.parametrize("name", ATTENDS)
def test_attention_at_any_length(name: str, features: Any) -> None:
    attend = ATTENDS[name]
    open_kernel = attention_kernel_of(attend)
    assert run_time_sizes(open_kernel, features) is None
    text = emit(open_kernel, features)
    for rows, keys in LENGTHS:
        given = {"S": rows, "T": keys, "B": 3}
        chosen = {n: value_of(getattr(attend, n), given) for n in ("batch", "rows", "keys")}
        case = replace(attend, **chosen)
        kernel = attention_kernel_of(case)
        inputs = attention_inputs_of(case, kernel)
        values = tuple(given[name] for name in info_of(text).sizes)
        wanted = run_text(emit(kernel, features), kernel, inputs, (), 1, features)
        close = {"f32": 2e-5, "f16": 4e-3, "bf16": 4e-2}[attend.dtype]
        for threads in (1, 2):
            got = run_text(text, kernel, inputs, values, threads, features)
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=close, atol=close, msg=str(given))

"""Parts of kernels: any number of them, in any order, gives the same bits as the whole."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.backends.cpu import KernelCall, emit, info_of
from irc.backends.cpu.features import AVX2, BASELINE, Features
from irc.backends.cpu.jit import compile_texts
from irc.backends.cpu.loops.units import NEXT_WEIGHT, PIECES, TURNS
from irc.backends.cpu.segment import load_segment
from irc.backends.cpu.table import call_table
from irc.dialects.task import KernelOp
from irc.dialects.task_sizes import bind_kernel
from irc.dialects.task_types import BufferType
from irc.pipeline import Options, default_pipeline, run_passes
from irc.plan.native import parts_of
from tests.backends.cpu import gradient_cases
from tests.backends.cpu.conftest import TORCH
from tests.backends.cpu.test_open_modules import Scores, opened, operands, rows
from tests.native.test_threads import HELD

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
# Of one thread and of several: whole shares, parts, and numbers that no team of ours asks for.
SHARES = (2, 3, 16, 31, 48, 50)


@dataclass(frozen=True)
class Case:
    """A function, its inputs, and the form of the kernel that is called in parts."""

    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    template: str
    dtype: torch.dtype = torch.float32
    is_divided: bool = True

    def kernel(self) -> KernelOp:
        module = self.function if isinstance(self.function, nn.Module) else _Module(self.function)
        inputs = tuple(torch.zeros(shape, dtype=self.dtype) for shape in self.shapes)
        program = irc.capture(module.eval().to(self.dtype), inputs).program
        run_passes(program.module, default_pipeline(Options()))
        kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
        return next(k for k in kernels if info_of(emit(k)).template.startswith(self.template))


class _Module(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


HEADS = ((1, 6, 260, 64),) * 3
CASES = {
    "packed weight": Case(nn.Sequential(nn.Linear(256, 500), nn.GELU()), [(205, 256)], "matmul"),
    "packed weight, bf16": Case(nn.Linear(256, 500), [(410, 256)], "matmul", torch.bfloat16),
    "wide weight": Case(nn.Linear(512, 2000), [(13, 512)], "matmul"),
    "convolution": Case(nn.Conv2d(40, 72, 3, padding=1), [(1, 40, 37, 29)], "convolution"),
    "convolution, bf16": Case(
        nn.Conv2d(64, 72, 3, padding=1), [(2, 64, 37, 29)], "convolution", torch.bfloat16, False
    ),
    "points": Case(lambda x, y: x * y + 1, [(1999, 1777)] * 2, "rows"),
    "rows": Case(lambda x: x.softmax(-1), [(3001, 1003)], "rows"),
    "transposed": Case(lambda x: x.T + 1, [(1999, 1777)], "crossed"),
    "attention": Case(causal, HEADS, "attention"),
    "few rows": Case(causal, [(1, 8, 2, 64), *[(1, 8, 9000, 64)] * 2], "attention"),
}


def run_in_parts(kernel: KernelOp, features: Features | None, shares: Sequence[int]) -> list[Any]:
    """Return the results of a kernel in one part, and in some numbers of parts in random order."""
    text = emit(kernel, features)
    info = info_of(text)
    function = KERNEL(compile_texts([text], features)[0])
    kinds = [arg.type for arg in kernel.args]
    num_inputs = kernel.num_inputs.value.data
    torch.manual_seed(0)
    random.seed(0)
    inputs = []
    for kind in kinds[:num_inputs]:
        assert isinstance(kind, BufferType)
        inputs.append(torch.randn(kind.num_elements).to(TORCH[kind.dtype]))
    memory = torch.zeros(info.scratch_bytes + 4096, dtype=torch.uint8)
    scratch = -(-(memory.data_ptr() + 64) // 64) * 64
    results = []
    for count in (1, *shares):
        outputs = []
        for kind in kinds[num_inputs:]:
            assert isinstance(kind, BufferType)
            outputs.append(torch.full((kind.num_elements + 64,), 7).to(TORCH[kind.dtype]))
        args = (ctypes.c_void_p * (TURNS + 1))()
        for i, tensor in enumerate((*inputs, *outputs)):
            args[i] = tensor.data_ptr()
        args[NEXT_WEIGHT] = scratch
        args[TURNS] = PIECES if count % PIECES == 0 and count > PIECES else 1
        for share in random.sample(range(count), count):
            function(ctypes.addressof(args), share, count, scratch)
        assert all(bool((t[-64:] == 7).all()) for t in outputs), "written past the end"
        results.append(outputs)
    return results


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_parts_give_the_bits_of_the_whole(case: Case) -> None:
    kernel = case.kernel()
    assert info_of(emit(kernel)).pieces > 1 or not case.is_divided, "too small to show anything"
    whole, *others = run_in_parts(kernel, None, SHARES)
    for shares, parts in zip(SHARES, others, strict=True):
        assert all(map(torch.equal, whole, parts)), f"in {shares} parts"


@pytest.mark.slow
@pytest.mark.parametrize("features", [AVX2, BASELINE], ids=["avx2", "baseline"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_parts_on_older_machines(case: Case, features: Features) -> None:
    whole, *others = run_in_parts(case.kernel(), features, SHARES)
    for shares, parts in zip(SHARES, others, strict=True):
        assert all(map(torch.equal, whole, parts)), f"in {shares} parts"


def test_parts_of_gradients_of_attention() -> None:
    case = gradient_cases.Case(heads=6, groups=3, rows=260, keys=260, depth=64, width=64)
    kernels = gradient_cases.kernels_of(case.program())
    for kernel in (k for k in kernels if k.template.data == "attention_backward"):
        assert info_of(emit(kernel)).pieces > 1
        whole, *others = run_in_parts(kernel, None, SHARES)
        assert all(torch.equal(x, y) for parts in others for x, y in zip(whole, parts, strict=True))


def test_open_kernels_are_divided_where_a_call_is_large() -> None:
    divided = 0
    for kernel in opened(Scores(), rows):
        text, values = emit(kernel), {"B": 3, "S": 700}
        info = info_of(text)
        sizes = tuple(values[name] for name in info.sizes)
        bound = bind_kernel(kernel, values)
        inputs = operands(bound)
        call = KernelCall(0, tuple((i, 0) for i in range(len(inputs))), sizes)
        words = call_table([info], [call]).words
        divided += words[2] > 1
        runs = []
        for threads in (1, 2, 3, 16):
            buffers = [t.clone() for t in inputs]
            load_segment([text], [call], threads).run_pointers([t.data_ptr() for t in buffers])
            runs.append(buffers)
        assert all(all(map(torch.equal, runs[0], other)) for other in runs)
    assert divided, "too small to show anything"


def test_the_pool_of_torch_takes_parts_over() -> None:
    """Part 0 waits until all others are done, so whoever does it is held up."""
    text = HELD.replace('"template": "rows"', f'"template": "rows", "pieces": {PIECES}')
    segment = load_segment([text], [KernelCall(0, ((0, 0),))], 2)
    for _ in range(20):
        cells = (ctypes.c_int64 * 2)()
        segment.run_pointers([ctypes.addressof(cells)])
        assert list(cells) == [1, 2 * PIECES - 1]


def test_small_kernels_stay_whole() -> None:
    kernel = Case(nn.Linear(64, 64), [(64, 64)], "matmul").kernel()
    assert info_of(emit(kernel)).pieces == 1


def test_a_call_of_open_sizes_is_divided_where_it_is_large() -> None:
    assert [parts_of(work, 1000, 16) for work in (0, 999, 1000, 127_999, 128_000)] == [
        0, 0, 1, 1, 16,
    ]  # fmt: skip

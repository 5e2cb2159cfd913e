"""Products keep their sums in registers: on processors as they are named, no inner loop spills."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import llvmlite.binding as llvm
import pytest
import torch
from torch import nn

from irc.backends.cpu import emit
from irc.backends.cpu.features import AVX2, AVX512, BASELINE, Features
from irc.backends.cpu.jit import optimise
from irc.backends.cpu.native import machine
from irc.backends.cpu.recurrent.sweep import written
from irc.dialects.task import KernelOp
from tests.backends.cpu.attention_cases import Case
from tests.backends.cpu.test_convolution import kernels

FLAGS = "+sse2,+avx2,+fma,+f16c"
PROCESSORS = {
    "haswell": replace(AVX2, cpu="haswell", flags=FLAGS),
    "znver3": replace(AVX2, cpu="znver3", flags=FLAGS),
    "znver4": replace(AVX512, cpu="znver4", flags=f"{FLAGS},+avx512f"),
}
PRODUCT = r"\tvfn?m(?:add|sub)\w+ps\t"
SPILL = r"\tvmov[au]ps\t%[yz]mm\d+, -?\d*\(%r[sb]p\)"


def spilling_loops(text: str, features: Features) -> tuple[int, int]:
    """Return how many stretches of code multiply, and how many of these store sums on the stack.

    A few stores beside many products are not of sums: constants of a long formula.
    """
    generator = machine(features)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = generator.triple, str(generator.target_data)
    optimise(module, generator)
    blocks = re.split(r"(?m)^[\w.]+:|^\tj\w+\t.*$", generator.emit_assembly(module))
    products = [block for block in blocks if len(re.findall(PRODUCT, block)) >= 8]
    spilling = [b for b in products if 4 * len(re.findall(SPILL, b)) >= len(re.findall(PRODUCT, b))]
    return len(products), len(spilling)


def linear() -> list[KernelOp]:
    return kernels(nn.Linear(256, 256), torch.randn(256, 256))


def no_bias() -> list[KernelOp]:
    return kernels(nn.Linear(256, 192, bias=False), torch.randn(77, 256).t().contiguous().t())


def windows() -> list[KernelOp]:
    return kernels(nn.Conv2d(32, 64, 3, padding=1), torch.randn(1, 32, 28, 28))


def attention() -> list[KernelOp]:
    return [Case(rows=64, keys=64, depth=32, width=32, causal=True).kernel()[0]]


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("case", [linear, no_bias, windows, attention])
def test_inner_loops_do_not_spill(case: Callable[[], list[KernelOp]], name: str) -> None:
    counts = [spilling_loops(emit(k, PROCESSORS[name]), PROCESSORS[name]) for k in case()]
    assert any(products for products, _ in counts)
    assert not any(spilling for _, spilling in counts)


def test_tiles_for_more_registers_than_there_are_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Features, "registers", 32)
    processor = PROCESSORS["znver3"]
    counts = [spilling_loops(emit(kernel, processor), processor) for kernel in linear()]
    assert any(spilling for _, spilling in counts)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_sums_of_gates_do_not_spill(kind: str, name: str) -> None:
    functions = ("tanh",) if kind == "RNN" else ("sigmoid", "tanh", "tanh")
    text = written(kind, 128, functions, PROCESSORS[name])
    products, spilling = spilling_loops(text, PROCESSORS[name])
    assert products and not spilling


def test_registers_of_processors() -> None:
    arm = Features(16, masked=False, fma=True, half=True, cpu="neoverse-n1", flags="+neon")
    old = replace(BASELINE, cpu="core2", flags="+sse2")
    counts = [f.registers for f in (*PROCESSORS.values(), old, arm)]
    assert counts == [16, 16, 32, 16, 32]

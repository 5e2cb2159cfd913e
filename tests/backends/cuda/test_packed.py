"""Integer weights and grouped matrices in CUDA: kernels that passes make, run on the host."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block

import irc
from irc.backends.cuda import compile_for, machine
from irc.backends.cuda.file import form_and_template
from irc.backends.cuda.packed import Packed
from irc.backends.cuda.packed_tiles import PackedTiles
from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.mapping_attr import verify_coverage
from irc.dialects.packed_products import GroupedContractOp
from irc.dialects.task import KernelOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.frontends.torch.capture import capture
from irc.interpret.task import run_kernel
from irc.kernels.form import read
from irc.passes.fuse import FusePass
from irc.passes.map_tasks import MapTasksPass
from irc.pipeline import Options, default_pipeline, run_passes
from irc.runtime.dtypes import dtypes
from tests.backends.cuda.host import HostError, Libraries, marked, run_in_all_orders, with_bugs
from tests.backends.cuda.host_machine import HostMachine

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@dataclass(frozen=True)
class Weight:
    """A linear layer of integer weights, and how many rows it gets."""

    bits: int
    dtype: str
    rows: int
    depth: int
    columns: int
    symmetric: bool = True
    group: int = 64


CASES = {
    "nibbles": Weight(4, "bf16", 20, 256, 90),
    "zeros": Weight(4, "f16", 70, 192, 40, symmetric=False),
    "bytes": Weight(8, "bf16", 33, 320, 130, symmetric=False, group=32),
    "one_group": Weight(8, "f16", 9, 64, 33),
    "one_panel": Weight(4, "bf16", 17, 128, 16),
    "odd_steps": Weight(4, "bf16", 65, 96, 65, group=32),
    "decode": Weight(4, "bf16", 1, 128, 90),
    "few_rows": Weight(4, "f16", 3, 128, 33, symmetric=False),
    "single": Weight(8, "f32", 2, 64, 17),
    "floats": Weight(4, "f32", 12, 128, 50),
}
TILED = {"nibbles", "zeros", "bytes", "one_group", "odd_steps"}


@cache
def packed_kernel(case: Weight) -> KernelOp:
    """Return the kernel that the pipeline makes of a quantised layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(case.depth, case.columns)).to(dtypes()[case.dtype]).eval()
    irc.quantize(net, bits=case.bits, symmetric=case.symmetric, group_size=case.group)
    x = torch.randn(case.rows, case.depth, dtype=dtypes()[case.dtype])
    module = capture(net, (x,)).program.module.clone()
    run_passes(module, default_pipeline(Options(backend="cuda", target="sm_80")))
    kernels = [op for op in module.body.block.ops if isinstance(op, KernelOp)]
    (kernel,) = [op for op in kernels if op.template.data == "packed"]
    return kernel


@cache
def grouped_kernel(dtype: str = "f32") -> KernelOp:
    """Rows 7 of 10 features by 3 matrices of 70 columns, in panels of 64."""
    pair = 1 if dtype == "f32" else 2
    shapes = ((7, 10), dtype), ((3, 2, 10 // pair, 64, pair), dtype), ((7,), "i64")
    block = Block(arg_types=[TensorType.of(shape, kind) for shape, kind in shapes])
    product = FlowBuilder(block).op(GroupedContractOp, list(block.args))
    module = ModuleOp([finish_function("forward", block, [product])])
    for each in (FusePass(target="sm_80"), MapTasksPass(target="sm_80")):
        each.apply(context(), module)
    kernels = [op for op in module.body.block.ops if isinstance(op, KernelOp)]
    (kernel,) = [op for op in kernels if op.template.data == "grouped"]
    return kernel


def kernel_of(name: str) -> KernelOp:
    """Return a kernel by name; making one compiles a program."""
    if name in CASES:
        return packed_kernel(CASES[name])
    return grouped_kernel("bf16" if name == "grouped_bf16" else "f32")


QUICK = {"nibbles", "zeros", "grouped_bf16"}
NAMES = [*CASES, "grouped", "grouped_bf16"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    kernels = {name: kernel_of(name) for name in QUICK}
    return Libraries(tmp_path_factory.mktemp("packed"), kernels, QUICK)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    kernels = {name: kernel_of(name) for name in NAMES}
    return Libraries(tmp_path_factory.mktemp("rest"), kernels, QUICK)


def inputs_of(kernel: KernelOp) -> list[torch.Tensor]:
    """Return random inputs: any bits for weights, indices that name a matrix, or none."""
    form, generator = read(kernel), torch.Generator().manual_seed(0)
    inputs: list[torch.Tensor] = []
    for buffer in form.buffers[: form.num_inputs]:
        dtype = dtypes()[buffer.dtype]
        if dtype.is_floating_point:
            inputs.append(torch.randn(buffer.size, generator=generator).to(dtype))
            continue
        if form.template == "grouped":
            # Each of the three matrices, and one on either side that is none.
            inputs.append(torch.arange(buffer.size) % 5 - 1)
            continue
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        drawn = torch.randint(least, most, (buffer.size,), generator=generator)
        inputs.append(drawn.to(dtype))
    return inputs


def meaning(kernel: KernelOp, inputs: list[torch.Tensor]) -> torch.Tensor:
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    size = kernel.args[-1].type.num_elements
    outputs = [torch.full((size,), torch.nan, dtype=torch.float64)]
    run_kernel(kernel, wide, outputs, torch.float64)
    return outputs[0]


def is_close(kernel: KernelOp, output: torch.Tensor, inputs: list[torch.Tensor]) -> bool:
    wanted = meaning(kernel, inputs)
    bound = 1e-2 if output.dtype is torch.bfloat16 else 2e-6
    return bool((output.double() - wanted).abs().max() <= bound * wanted.abs().max())


@pytest.mark.parametrize("name", marked(NAMES, QUICK))
def test_halves_go_by_tiles(name: str) -> None:
    template = form_and_template(kernel_of(name))[1]
    assert isinstance(template, PackedTiles if name in TILED else Packed)
    verify_coverage(template.mapping)


@pytest.mark.parametrize("name", marked(NAMES, QUICK))
def test_a_weight_is_what_its_bits_say(request: pytest.FixtureRequest, name: str) -> None:
    library = request.getfixturevalue("quick" if name in QUICK else "rest")[name]
    kernel = kernel_of(name)
    inputs = inputs_of(kernel)
    (output,) = run_in_all_orders(library, kernel, inputs, name)
    assert is_close(kernel, output, inputs)
    assert library.shim_conflicts() == 0


# Each: the kernel, what the bug replaces, by what; the last is a control, no bug.
PLANTED = {
    "barrier": ("nibbles", "__syncthreads();", ""),
    "no_wait": ("nibbles", "irc_copies_left<0>();", ""),
    "swizzle": ("nibbles", "(row, chunk * 16)", "(row ^ 1, chunk * 16)"),
    "nibble": ("nibbles", "lane % 4 * 8;", "lane % 4 * 4;"),
    "sign": ("bytes", "zero * whole", "-zero * whole"),
    "group": ("odd_steps", "k / 32)", "k / 64)"),
    "zero": ("nibbles", " - 8.0f", ""),
    "last": ("odd_steps", "if (k < 96)", "if (true)"),
    "left": ("zeros", "whole[i][e] = 0;", ";"),
    "lanes": ("decode", "for (int part = 1;", "for (int part = 2;"),
    "matrix": ("grouped", ">= ", "> "),
    "none": ("nibbles", "float sum", "float nothing = 0; float sum"),
}
QUICK_BUGS = {"nibble", "zero", "swizzle"}


def planted(folder: Path, bugs: Collection[str]) -> Libraries:
    chosen = {bug: PLANTED[bug] for bug in bugs}
    kernels = {name: kernel_of(name) for name, _, _ in chosen.values()}
    return with_bugs(folder, kernels, chosen, QUICK_BUGS)


@pytest.fixture(scope="module")
def quick_bugs(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return planted(tmp_path_factory.mktemp("quick_bugs"), QUICK_BUGS)


@pytest.fixture(scope="module")
def all_bugs(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return planted(tmp_path_factory.mktemp("all_bugs"), PLANTED)


@pytest.mark.parametrize("bug", marked(PLANTED, QUICK_BUGS))
def test_a_planted_bug_is_found(request: pytest.FixtureRequest, bug: str) -> None:
    library = request.getfixturevalue("quick_bugs" if bug in QUICK_BUGS else "all_bugs")[bug]
    kernel = kernel_of(PLANTED[bug][0])
    inputs = inputs_of(kernel)
    try:
        (output,) = run_in_all_orders(library, kernel, inputs, bug)
        right = is_close(kernel, output, inputs)
    except HostError:
        right = False
    assert right == (bug == "none")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nibbles", "bytes", "few_rows", "single"])
def test_a_quantised_module_reads_its_integers(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(case.depth, case.columns), nn.GELU())
    net = net.to(dtypes()[case.dtype]).eval()
    irc.quantize(net, bits=case.bits, symmetric=case.symmetric, group_size=case.group)
    x = torch.randn(case.rows, case.depth, dtype=dtypes()[case.dtype])
    with torch.no_grad(), machine.use(HostMachine(tmp_path)) as here:
        fast = irc.compile(net, backend="cuda")
        bound = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}[case.dtype]
        torch.testing.assert_close(fast(x), net(x), atol=bound, rtol=bound)
        here.forget()
        fast(x)
        # What depends on weights alone was done by the first call.
        assert sum("matmul" in note for note in here.notes) == 1 and len(here.notes) <= 2


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_packed_kernels_compile_without_spills(arch: int) -> None:
    for name in NAMES:
        assert compile_for(kernel_of(name), arch).spill_bytes == 0, name

"""Kernels of whole modules, made for a few sizes and unified: as one text they compute the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import irc
from irc.backends.cpu import KernelCall, emit, info_of, load_segment
from irc.backends.cpu.emit import run_time_sizes
from irc.dialects.task import KernelOp
from irc.dialects.task_sizes import bind_kernel
from irc.dialects.task_types import BufferType
from irc.pipeline import Options, default_pipeline, run_passes
from irc.plan.template.fit import Fitter
from irc.plan.template.forms import form_of, kernel_template
from irc.plan.template.unify import unify
from tests.backends.cpu.conftest import TORCH

Inputs = Callable[..., Sequence[torch.Tensor]]
WITNESSES = [{"B": 7, "S": 23}, {"B": 11, "S": 17}, {"B": 13, "S": 29}]
SIZES = [{"B": 2, "S": 2}, {"B": 3, "S": 19}, {"B": 2, "S": 66}]


class Block(nn.Module):
    """Embedding, attention under a mask, norm, a gated product: what a transformer is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 48), nn.Embedding(128, 48)
        self.qkv, self.out = nn.Linear(48, 144), nn.Linear(48, 48)
        self.up, self.down = nn.Linear(48, 130), nn.Linear(65, 48)
        self.norm = nn.LayerNorm(48)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        count, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length))
        q, k, v = self.qkv(x).view(count, length, 3, 3, 16).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.norm(x + self.out(y.transpose(1, 2).reshape(count, length, 48)))
        gate, up = self.up(x).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Scores(nn.Module):
    """Products whose rows, columns and sums have names; a softmax; a mean over places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(x @ x.mT / 7, -1)
        return (scores @ x).flip(1)[:, 1:].amax(1)


class Edges(nn.Module):
    """Padding, joining, shifting: loads with bounds, strides and offsets with names."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        longer = torch.cat([x, F.pad(x[:, 1:], (0, 0, 2, 3))], 1)
        return longer.transpose(1, 2).contiguous() * 2


class Along(nn.Module):
    """Running sums along both dims, and rows written where an index says."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(x.shape[0], 9, 24).index_add(1, at, x)
        return x.cumsum(1).sum(1) + table.sum(1) + x[..., 0].cumsum(1)[:, -1:]


def images(B: int, S: int) -> list[torch.Tensor]:
    return [torch.randn(B, 3, 15, 13)]


def rows(B: int, S: int) -> list[torch.Tensor]:
    return [torch.randn(B, S, 24)]


CASES: Mapping[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "block": (Block, lambda B, S: [torch.randint(0, 50, (B, S))]),
    "scores": (Scores, rows),
    "edges": (Edges, rows),
    "along": (Along, lambda B, S: [torch.randn(B, S, 24), torch.randint(0, 9, (S,))]),
    "mlp": (lambda: nn.Sequential(nn.Linear(24, 70), nn.GELU(), nn.Linear(70, 5)), rows),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 40, 1), nn.MaxPool2d(3, 2, 1), nn.Conv2d(40, 40, 3, padding=1, groups=40),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10),
        ),
        images,
    ),
}  # fmt: skip


def opened(module: nn.Module, inputs: Inputs) -> list[KernelOp]:
    """The kernels that differ from size to size, each as one with names."""
    by_witness: list[list[KernelOp]] = []
    for sizes in WITNESSES:
        program = irc.capture(module, tuple(inputs(**sizes))).program
        run_passes(program.module, default_pipeline(Options(any_rows=True)))
        by_witness.append([op for op in program.module.body.block.ops if isinstance(op, KernelOp)])
    fitter = Fitter(WITNESSES)
    templates: list[KernelOp] = []
    for kernels in zip(*by_witness, strict=True):
        form = unify([form_of(kernel) for kernel in kernels], fitter)
        templates.append(kernel_template(form, kernels).kernel)
    return [kernel for kernel in templates if kernel.symbols]


def operands(kernel: KernelOp) -> list[torch.Tensor]:
    """Random inputs, and room for outputs; integers are 0 or 1."""
    tensors: list[torch.Tensor] = []
    for number, arg in enumerate(kernel.args):
        kind = arg.type
        assert isinstance(kind, BufferType)
        dtype, size = TORCH[kind.dtype], kind.num_elements + 16
        if number >= kernel.num_inputs.value.data:
            tensors.append(torch.full((size,), 7).to(dtype))
        else:
            floats = dtype.is_floating_point
            value = torch.randn(size) if floats else torch.randint(0, 2, (size,))
            tensors.append(value.to(dtype))
    return tensors


def run(text: str, buffers: Sequence[torch.Tensor], sizes: tuple[int, ...], threads: int) -> None:
    call = KernelCall(0, tuple((i, 0) for i in range(len(buffers))), sizes)
    load_segment([text], [call], threads).run_pointers([t.data_ptr() for t in buffers])


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_a_module(name: str) -> None:
    make, inputs = CASES[name]
    for kernel in opened(make().eval(), inputs):
        assert run_time_sizes(kernel, most={"S": 128}) is None, kernel.sym_name.data
        text = emit(kernel)
        for values in SIZES:
            sizes = tuple(values[symbol] for symbol in info_of(text).sizes)
            bound: Any = bind_kernel(kernel, values)
            wanted = operands(bound)
            run(emit(bound), wanted, (), 1)
            first = bound.num_inputs.value.data
            for threads in (1, 2):
                got = [*wanted[:first], *(torch.full_like(t, 7) for t in wanted[first:])]
                run(text, got, sizes, threads)
                for one, other in zip(got, wanted, strict=True):
                    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, msg=str(values))

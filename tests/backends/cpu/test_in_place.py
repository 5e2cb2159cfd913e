"""Kernels whose result is the memory of an operand: each element is read, then written, once.

Register tiles at an edge may compute elements twice; stored twice, a state would be updated twice.
"""

from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.backends.cpu import Features, KernelCall, compile_segment, emit, info_of
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.pipeline import Options, default_pipeline, run_passes
from irc.plan.element_pairs import element_pairs


def added(make: Any, sizes: tuple[int, int, int]) -> KernelOp:
    """``c + a @ b`` with b contiguous along n."""
    m, n, k = sizes
    inputs = [(m * k, "f32"), (k * n, "f32"), (m * n, "f32")]
    maker = make((m, n, k), 2, inputs, [(m * n, "f32")], "matmul")
    product = maker.contract(maker.load(0, (k, 0, 1)), maker.load(1, (0, 1, n)))
    maker.store(maker.fn("add", maker.load(2, (n, 1, 0)), product), 0, (n, 1, 0))
    return maker.kernel("mm")


class Residual(nn.Module):
    """A convolution added to its second operand, both channels last."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y.permute(0, 3, 1, 2) + self.inner(x)).permute(0, 2, 3, 1)


def convolved(channels: int, out: int, groups: int) -> KernelOp:
    module = Residual(nn.Conv2d(channels, out, (3, 1), groups=groups, bias=False)).eval()
    program = irc.capture(
        module, (torch.randn(1, channels, 39, 1), torch.randn(1, 37, 1, out))
    ).program
    run_passes(program.module, default_pipeline(Options()))
    kernels = [op for op in program.module.body.block.ops if isinstance(op, KernelOp)]
    (kernel,) = [k for k in kernels if element_pairs(k) and k.num_parallel < len(k.space_extents)]
    return kernel


def check(
    kernel: KernelOp, reference: Any, features: Features | None, threads: int, template: str
) -> None:
    assert info_of(emit(kernel, features)).template == template
    ((source, target),) = element_pairs(kernel)
    kinds = [arg.type for arg in kernel.args]
    inputs = [torch.randn(k.num_elements) for k in kinds[:target] if isinstance(k, BufferType)]
    (wanted,) = reference(kernel, inputs)
    call = KernelCall(0, tuple((source if i == target else i, 0) for i in range(len(kinds))))
    compile_segment([kernel], [call], threads, features).run_pointers(
        [x.data_ptr() for x in inputs]
    )
    torch.testing.assert_close(inputs[source].double(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(5, 40, 4), (1, 100, 7), (4, 33, 3)])
def test_streamed_product(
    make: Any, reference: Any, features: Features | None, sizes: tuple[int, int, int]
) -> None:
    check(added(make, sizes), reference, features, 2, "matmul stream")


@pytest.mark.parametrize("threads", [1, 2])
def test_convolution(reference: Any, features: Features | None, threads: int) -> None:
    check(convolved(9, 70, 1), reference, features, threads, "convolution")


@pytest.mark.parametrize("threads", [1, 2])
def test_depthwise(reference: Any, features: Features | None, threads: int) -> None:
    check(convolved(37, 37, 37), reference, features, threads, "depthwise")

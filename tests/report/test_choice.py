"""Who computes a convolution, and what both would take."""

# pyright: basic
import torch
from torch import nn

from irc.cluster.topology import Device
from irc.dialects.flow import FlowOp
from irc.dialects.windows import ConvolutionOp
from irc.frontends.torch.capture import capture
from irc.kernels.holds import COMPUTE_OPS
from irc.report.choice import convolution_choice

DEVICE = Device("d", {"f32": 1e12}, bytes_per_s=1e11, memory_bytes=2**30, launch_s=1e-6)


def ops_of(module: nn.Module, x: torch.Tensor) -> list[FlowOp]:
    program = capture(module, (x,)).program.module
    return [op for op in program.walk() if isinstance(op, FlowOp) and op.name in COMPUTE_OPS]


def test_what_follows_is_counted() -> None:
    conv = nn.Conv2d(8, 16, 3, padding=1)
    ops = ops_of(nn.Sequential(conv, nn.ReLU()), torch.randn(1, 8, 64, 64))
    said = convolution_choice("matmul", ops, ops[-1].outputs, DEVICE, "cpu")
    # 4096 places of 16 channels, each a sum of 72 and one relu; the relu alone moves 512 KiB.
    assert said.startswith("irc's own kernel, 10.5 us; oneDNN 16.7 us: what follows it")
    lone = [op for op in ops if isinstance(op, ConvolutionOp)]
    said = convolution_choice("matmul", lone, lone[0].outputs, DEVICE, "cpu")
    assert said.startswith("irc's own kernel, 10.4 us; oneDNN 10.4 us: nothing follows it")


def test_others_have_no_choice() -> None:
    ops = ops_of(nn.Linear(8, 8), torch.randn(2, 8))
    assert not convolution_choice("matmul", ops, ops[-1].outputs, DEVICE, "cpu")


def test_a_gpu_has_a_library() -> None:
    ops = ops_of(nn.Conv2d(8, 16, 3), torch.randn(1, 8, 8, 8))
    said = convolution_choice("library", ops, (), DEVICE, "triton")
    assert said == "cuDNN through torch: irc has no kernel of convolutions for triton"

"""Resampling through torch's own ops: split over batch and channels, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.dialects.builder import entry, results
from irc.dialects.flow import ExternOp
from irc.dialects.placement import Mesh, Split
from irc.frontends.torch.capture import capture
from irc.interpret.spmd import run_spmd
from irc.ops.custom import declaration
from irc.ops.resampling import DECLARATIONS
from irc.ops.work import flops
from irc.passes.auto_shard import AutoShardPass
from irc.pipeline import run_passes
from irc.plugin import find_pass
from irc.sharding.signatures import axis_signatures
from irc.train import training_program

CASES = [
    ("linear", (7,), False),
    ("bilinear", (5, 7), False),
    ("bilinear", (5, 7), True),
    ("bicubic", (5, 7), False),
    ("bicubic", (5, 7), True),
    ("trilinear", (3, 5, 7), False),
    ("nearest", (5, 7), False),
    ("nearest-exact", (5, 7), False),
]


class Resample(nn.Module):
    """A picture through a mix of channels and a resampling, and a loss."""

    def __init__(self, mode: str, size: tuple[int, ...], smooth: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
        self.mode, self.size, self.smooth = mode, tuple(2 * n - 1 for n in size), smooth

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        x = torch.einsum("bc...,cd->bd...", x, self.mix)
        resampled = F.interpolate(x, self.size, mode=self.mode, antialias=self.smooth)
        return (resampled**2).mean()


@pytest.mark.parametrize(("mode", "size", "smooth"), CASES)
def test_a_resampling_is_split_and_right(mode: str, size: tuple[int, ...], smooth: bool) -> None:
    module, mesh = Resample(mode, size, smooth), Mesh.parse("data=2,tensor=2")
    x = torch.randn(4, 6, *size, dtype=torch.float64)
    loss = module(x)
    loss.backward()
    program = training_program(capture(module, (x,)).program, optimizer=None)
    inputs = program.bind({program.input_names[0]: x})
    for op in program.module.walk():
        if isinstance(op, ExternOp):
            split = [s.operands[0] for s in axis_signatures(op) if isinstance(s.operands[0], Split)]
            assert {s.dim for s in split} == {0, 1}
            assert flops(op) > 0
    pins = "* = [data = S(0), tensor = S(1)]" if mode == "bilinear" else ""
    shard = AutoShardPass(mesh=str(mesh), cluster="demo-gpus", inputs="any", pins=pins)
    run_passes(program.module, [find_pass("canonicalize")(), shard, find_pass("lower-boxing")()])
    outputs = run_spmd(program.module, inputs, mesh, dtype=torch.float64)
    named = dict(zip(results(entry(program.module)), outputs, strict=True))
    torch.testing.assert_close(named["output", program.output_names[0]], loss.detach())
    torch.testing.assert_close(named["gradient", "mix"], module.mix.grad)


def test_every_declared_op_exists() -> None:
    assert len(DECLARATIONS) == 12
    for declared in DECLARATIONS:
        name = declared.target.partition("::")[2]
        assert hasattr(torch.ops.aten, name), name
        assert declaration(f"{declared.target}.vec") is declared

"""Micro-batches: the gradients of a batch, reduced once whatever their number."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.dialects.builder import entry, functions, results
from irc.dialects.flow import tensor
from irc.dialects.placement import Mesh
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.pipeline import run_passes
from irc.plugin import parse_passes
from irc.program import Program
from irc.train import training_program
from tests.training.models import TARGETS, TOKENS, program_of, small_gpt

SHARD = """canonicalize,auto-shard{mesh="data=4" cluster=demo-gpus report=false
    pins="* = [data = B]"},lower-boxing"""
SAMPLES = 4096
REDUCTIONS = ("comm.all_reduce", "comm.reduce_scatter")


class Dropping(nn.Module):
    """Dropout, and a bias so large that its gradient is worth reducing."""

    def __init__(self, p: float) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.up, self.down, self.p = nn.Linear(24, 64), nn.Linear(64, 12), p

    def forward(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        """Return the loss."""
        h = F.dropout(F.relu(self.up(x)), self.p)
        return F.cross_entropy(self.down(h) * scale, y)


def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(size, 24, generator=draw)
    return x, torch.randint(0, 12, (size,), generator=draw), torch.tensor(0.7)


def accumulated(count: int, p: float, samples: int = 16) -> Program:
    """A step over some samples."""
    x, y, scale = batch(samples)
    size = samples // count
    program = program_of(Dropping(p), x[:size], y[:size], scale)
    return training_program(program, optimizer="momentum", accumulate=count, split="x,y")


def given(program: Program, samples: int = 16) -> list[Tensor]:
    lr = torch.tensor(0.1, dtype=torch.float64)
    return program.bind(dict(zip(program.input_names, (*batch(samples), lr), strict=True)))


def run(program: Program, samples: int = 16) -> list[Tensor]:
    return run_function(program.module, given(program, samples), dtype=torch.float64)


def test_micro_batches_give_the_step_of_the_batch() -> None:
    wanted = run(accumulated(1, 0.0))
    for count in (2, 4):
        for value, want in zip(run(accumulated(count, 0.0)), wanted, strict=True):
            torch.testing.assert_close(value, want, rtol=1e-12, atol=1e-13)


def test_each_micro_batch_drops_other_elements() -> None:
    """Also over two steps: no seed is used twice."""
    program = accumulated(2, 0.5)
    x, y, scale = (torch.cat([part[:8]] * 2) if part.ndim else part for part in batch(16))
    lr = torch.tensor(0.0, dtype=torch.float64)
    losses = set()
    for number in range(2):
        program.tensors["seed"] = torch.tensor(number)
        (loss, *_) = run_function(
            program.module, program.bind({"x": x, "y": y, "scale": scale, "lr": lr})
        )
        losses.add(round(float(loss), 6))
    assert len(losses) == 2
    alone = accumulated(1, 0.5)
    alone.tensors["seed"] = torch.tensor(0)
    (loss, *_) = run_function(alone.module, alone.bind({"x": x, "y": y, "scale": scale, "lr": lr}))
    assert round(float(loss), 6) not in losses


@pytest.mark.parametrize("p", [0.0, pytest.param(0.4, marks=pytest.mark.slow)])
def test_sharded_gradients_are_reduced_once_a_step(p: float) -> None:
    """Where weights are whole and samples are split, sums of partial sums stay partial."""
    moved: dict[int, int] = {}
    for count in (1, 4):
        program = accumulated(count, p, samples=SAMPLES)
        wanted = run(program, SAMPLES)
        run_passes(program.module, parse_passes(SHARD))
        tensors = given(program, SAMPLES)
        found = run_spmd(program.module, tensors, Mesh.parse("data=4"), dtype=torch.float64)
        for (_, name), value, want in zip(
            results(entry(program.module)), found, wanted, strict=True
        ):
            torch.testing.assert_close(value, want, rtol=1e-8, atol=1e-9, msg=name)
        reduced = [op for op in program.module.walk() if op.name in REDUCTIONS]
        inside = [op for op in reduced if op.parent_op() is not entry(program.module)]
        # In a micro-batch only the loss, which is one number.
        assert count == 1 or all(tensor(op.operands[0]).shape == () for op in inside)
        moved[count] = sum(prod(tensor(op.operands[0]).static_shape()) for op in reduced)
    assert moved[1] >= 24 * 64 + 64 * 12
    assert moved[4] <= moved[1] + 4


def test_statistics_go_from_one_micro_batch_to_the_next() -> None:
    def norm() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = norm()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).square().mean()

    x = torch.randn(8, 3)
    program = training_program(program_of(Loss(), x[:4]), optimizer=None, accumulate=2)
    values = run_function(program.module, program.bind({"x": x}))
    found = dict(zip(results(entry(program.module)), values, strict=True))
    theirs = Loss()
    for part in x.chunk(2):
        theirs(part)
    name = "net.0.running_mean"
    torch.testing.assert_close(found["state", name], dict(theirs.named_buffers())[name])


def test_layers_share_what_adds_up_and_what_steps() -> None:
    """A program grows by calls with its layers, not by formulas: planning sees each once."""
    sizes: list[tuple[int, int]] = []
    for layers in (2, 4):
        program = program_of(small_gpt(layers), TOKENS[:1], TARGETS[:1])
        module = training_program(program, accumulate=2).module
        known = functions(module)
        assert any(name.startswith("mean_") for name in known)
        inside = sum(len(func.body.block.ops) for name, func in known.items() if name != "forward")
        own = [op for op in known["forward"].body.block.ops if op.name == "flow.pointwise"]
        sizes.append((inside - 2 * layers, len(own)))
    assert sizes[0] == sizes[1]


def test_the_program_reads_back() -> None:
    text = dump(accumulated(2, 0.4).module)
    assert dump(load(text, "text")) == text


@pytest.mark.parametrize(
    ("pass_text", "code", "says"),
    [
        ("accumulate-gradients{count=0}", "option-value", "1 or more"),
        ("accumulate-gradients{count=2}", "option-value", "no loss"),
    ],
)
def test_what_it_declines(pass_text: str, code: str, says: str) -> None:
    program = program_of(nn.Linear(3, 2), torch.randn(4, 3))
    with pytest.raises(IrcError, match=says) as caught:
        run_passes(program.module, parse_passes(pass_text))
    assert caught.value.code == code

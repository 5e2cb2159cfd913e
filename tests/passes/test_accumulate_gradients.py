"""Micro-batches: the gradients of a batch, reduced once whatever their number."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.dialects.builder import entry, results
from irc.dialects.placement import Mesh
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.pipeline import run_passes
from irc.plugin import parse_passes
from irc.program import Program
from irc.train import training_program
from tests.training.models import program_of

SHARD = 'canonicalize,auto-shard{mesh="data=4" cluster=demo-gpus report=false},lower-boxing'
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


def accumulated(count: int, p: float) -> Program:
    """A step over 16 samples."""
    x, y, scale = batch(16)
    size = 16 // count
    program = program_of(Dropping(p), x[:size], y[:size], scale)
    return training_program(program, optimizer="momentum", accumulate=count, split="x,y")


def given(program: Program) -> list[Tensor]:
    lr = torch.tensor(0.1, dtype=torch.float64)
    return program.bind(dict(zip(program.input_names, (*batch(16), lr), strict=True)))


def run(program: Program) -> list[Tensor]:
    return run_function(program.module, given(program), dtype=torch.float64)


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


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_sharded_gradients_are_reduced_once_a_step(p: float) -> None:
    found: dict[int, Counter[str]] = {}
    for count in (1, 4):
        program = accumulated(count, p)
        wanted = run(program)
        run_passes(program.module, parse_passes(SHARD))
        for (_, name), value, want in zip(
            results(entry(program.module)),
            run_spmd(program.module, given(program), Mesh.parse("data=4"), dtype=torch.float64),
            wanted,
            strict=True,
        ):
            torch.testing.assert_close(value, want, rtol=1e-8, atol=1e-9, msg=name)
        names = Counter[str]()
        for op in entry(program.module).body.block.ops:
            names[op.name] += 1
        found[count] = names
        # Inside a micro-batch nothing is reduced but the loss, whose sum is one number.
        inside = [
            op
            for op in program.module.walk()
            if op.name in REDUCTIONS and op.parent_op() is not entry(program.module)
        ]
        assert not inside or p
    assert sum(found[4][n] for n in REDUCTIONS) <= sum(found[1][n] for n in REDUCTIONS)


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
    found = dict(zip(results(entry(program.module)), run_function(program.module, program.bind({"x": x})),
                     strict=True))  # fmt: skip
    theirs = Loss()
    for part in x.chunk(2):
        theirs(part)
    name = "net.0.running_mean"
    torch.testing.assert_close(found["state", name], dict(theirs.named_buffers())[name])


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

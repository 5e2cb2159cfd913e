"""`training_program`: a module becomes a step, which the CPU backend compiles."""

from __future__ import annotations

import torch
from torch import nn

from irc.dialects.builder import entry, results
from irc.dialects.placement import Mesh
from irc.interpret.flow import run_function
from irc.interpret.spmd import run_spmd
from irc.pipeline import Options, make_plan, run_passes
from irc.plugin import parse_passes
from irc.runtime.executors import executor_of
from irc.train import training_program
from tests.training.models import TARGETS, TOKENS, program_of, small_gpt

LR = torch.tensor(1e-2, dtype=torch.float64)


def test_compiled_steps_train_the_module_in_place() -> None:
    mine, theirs = small_gpt(), small_gpt()
    program = training_program(program_of(mine, TOKENS, TARGETS), optimizer="momentum")
    step = executor_of(make_plan(program, Options(), keep_ir=False), program.tensors)
    optimizer = torch.optim.SGD(theirs.parameters(), 1e-2, momentum=0.9)
    for _ in range(3):
        (step_loss,) = step(TOKENS, TARGETS, LR)
        optimizer.zero_grad()
        loss = theirs(TOKENS, TARGETS)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step_loss, loss.detach(), rtol=1e-5, atol=1e-5)
    for (name, value), want in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(value, want, rtol=1e-4, atol=1e-5, msg=name)


def test_requires_grad_decides_what_is_trained() -> None:
    module = small_gpt()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    module.norm.requires_grad_(True)  # type: ignore[union-attr]
    program = training_program(
        program_of(module, TOKENS, TARGETS), trainable=module, optimizer=None
    )
    names = [n for role, n in results(entry(program.module)) if role == "gradient"]
    assert names == ["norm.weight", "norm.bias"]


def test_requires_grad_of_a_tied_weight_and_of_one_that_is_not_read() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.idle = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(2, 2)
            self.b.weight = self.a.weight
            self.idle.requires_grad_(False)
            self.a.bias.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)).sum()

    module = Tied()
    program = training_program(
        program_of(module, torch.randn(3, 5)), trainable=module, optimizer=None
    )
    names = [n for role, n in results(entry(program.module)) if role == "gradient"]
    assert names == ["a.weight", "b.bias"]


def test_a_sharded_step_moves_parameters_as_a_whole_one() -> None:
    """Optimiser states lie as the planner likes, and no gradient is a result: ZeRO's freedom."""
    program = training_program(program_of(small_gpt(), TOKENS, TARGETS))
    inputs = program.bind(dict(zip(program.input_names, (TOKENS, TARGETS, LR), strict=True)))
    wanted = run_function(program.module, inputs, dtype=torch.float64)
    shard = 'auto-shard{mesh="data=4" cluster=demo-gpus report=false}'
    run_passes(program.module, parse_passes(f"canonicalize,{shard},lower-boxing"))
    outputs = run_spmd(program.module, inputs, Mesh.parse("data=4"), dtype=torch.float64)
    for (_, name), value, want in zip(results(entry(program.module)), outputs, wanted, strict=True):
        torch.testing.assert_close(value, want, rtol=1e-8, atol=1e-9, msg=name)

"""`add-optimizer`: steps equal torch.optim's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from irc.dialects.builder import arguments, entry, results
from irc.dialects.flow import tensor
from irc.dialects.text import dump, load
from irc.errors import IrcError
from irc.pipeline import run_passes
from irc.plugin import parse_passes
from irc.train import training_program
from tests.training.models import TARGETS, TOKENS, program_of, run, small_gpt

LR = torch.tensor(1e-2, dtype=torch.float64)


def steps(module: nn.Module, count: int, **options: Any) -> list[torch.Tensor]:
    """Train a copy by irc's steps, moving the program's tensors; return the losses."""
    program = training_program(program_of(module, TOKENS, TARGETS), optimizer=options)
    program.module.verify()
    assert dump(load(dump(program.module))) == dump(program.module)
    losses: list[torch.Tensor] = []
    for _ in range(count):
        outputs = run(program, TOKENS, TARGETS, lr=LR)
        for (role, name), value in outputs.items():
            if role == "state":
                program.tensors[name] = value
            else:
                losses.append(value)
    for name, parameter in module.named_parameters():
        parameter.data = program.tensors[name]
    return losses


CASES: list[tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer], float]] = [
    ({"kind": "adamw"}, lambda p: torch.optim.AdamW(p, 1e-2), 0),
    ({"kind": "adamw", "weight_decay": 0.3, "beta1": 0.8, "eps": 1e-6, "clip_norm": 0.1},
     lambda p: torch.optim.AdamW(p, 1e-2, (0.8, 0.999), 1e-6, 0.3), 0.1),
    ({"kind": "adam", "weight_decay": 0.1},
     lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1), 0),
    ({"kind": "sgd"}, lambda p: torch.optim.SGD(p, 1e-2), 0),
    ({"kind": "momentum", "momentum": 0.7, "weight_decay": 0.1},
     lambda p: torch.optim.SGD(p, 1e-2, momentum=0.7, weight_decay=0.1), 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "make", "clip"), CASES, ids=[str(case[0])[:40] for case in CASES]
)
def test_three_steps(
    options: dict[str, Any], make: Callable[[Any], torch.optim.Optimizer], clip: float
) -> None:
    mine, theirs = small_gpt().double(), small_gpt().double()
    losses = steps(mine, 3, **options)
    optimizer = make(theirs.parameters())
    for step_loss in losses:
        optimizer.zero_grad()
        loss = theirs(TOKENS, TARGETS)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
        torch.testing.assert_close(step_loss, loss.detach(), rtol=1e-9, atol=1e-9)
    for (name, value), want in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(value, want, rtol=1e-9, atol=1e-9, msg=name)


def test_parameters_without_decay() -> None:
    mine, theirs = small_gpt().double(), small_gpt().double()
    steps(mine, 1, kind="adamw", weight_decay=0.5, no_decay="*.bias,*norm*")
    groups: list[list[nn.Parameter]] = [[], []]
    for name, parameter in theirs.named_parameters():
        groups[name.endswith("bias") or "norm" in name].append(parameter)
    decays = [{"params": p, "weight_decay": d} for p, d in zip(groups, (0.5, 0.0), strict=True)]
    optimizer = torch.optim.AdamW(decays, 1e-2)
    theirs(TOKENS, TARGETS).backward()
    optimizer.step()
    for value, want in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(value, want, rtol=1e-9, atol=1e-9)


def test_every_state_has_an_argument_of_its_name_and_type() -> None:
    program = training_program(program_of(small_gpt(), TOKENS, TARGETS))
    func = entry(program.module)
    held = {name: tensor(value) for role, name, value in arguments(func) if role != "input"}
    end = func.body.block.last_op
    assert end is not None
    states = [(n, tensor(v)) for (r, n), v in zip(results(func), end.operands, strict=True)
              if r == "state"]  # fmt: skip
    assert dict(states) == {n: k for n, k in held.items() if n != "seed"}
    assert len(states) == 1 + 3 * 28
    assert program.input_names[-1] == "lr"
    assert set(program.tensors) == set(held)


def test_half_precision_moves_in_float32() -> None:
    module = small_gpt().to(torch.bfloat16)
    program = training_program(program_of(module, TOKENS, TARGETS))
    kinds = {n: tensor(v).dtype for _, n, v in arguments(entry(program.module))}
    assert kinds["norm.weight"] == "bf16"
    assert kinds["optimizer.exp_avg.norm.weight"] == "f32"


def test_ids_do_not_hold_names_of_the_user() -> None:
    module = program_of(small_gpt(), TOKENS, TARGETS).module
    run_passes(module, parse_passes("differentiate,add-optimizer"))
    assert 'id = "step0.' in dump(module)
    assert not [line for line in dump(module).splitlines() if 'id = "' in line
                and "norm.weight" in line.partition('id = "')[2].partition('"')[0]]  # fmt: skip


@pytest.mark.parametrize(
    ("passes", "text"),
    [
        ("differentiate,add-optimizer{kind=adamm}", "did you mean 'adam"),
        ("add-optimizer", "no grad"),
    ],
)
def test_errors(passes: str, text: str) -> None:
    with pytest.raises(IrcError, match=text) as caught:
        run_passes(program_of(small_gpt(), TOKENS, TARGETS).module, parse_passes(passes))
    assert caught.value.code == "option-value"

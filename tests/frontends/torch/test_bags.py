"""Bags of embeddings: the same numbers as torch, and a table that is split like an embedding's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import ExternOp, tensor
from irc.dialects.sbp import BoxingOp
from irc.dialects.text import context
from irc.interpret.flow import run_function
from irc.passes.auto_shard import AutoShardPass
from irc.train import training_program
from tests.training.models import gradients, program_of, run

WORDS = torch.tensor([[1, 2, 4, 5], [4, 3, 2, 9], [0, 0, 7, 0]])


class Scaled(nn.Module):
    """Bags of one size whose rows are scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 3, mode="sum")

    def forward(self, words: Tensor, scales: Tensor) -> Tensor:
        """Return the sums."""
        return self.bag(words, per_sample_weights=scales)


class Copied(nn.Module):
    """Offsets that are copies of one, so that all bags but the last are empty."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 3, mode="sum")

    def forward(self, words: Tensor) -> Tensor:
        """Return the sums."""
        return self.bag(words, torch.arange(1).expand(12).contiguous())


def bag(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.EmbeddingBag(10, 3, **options)


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (bag(), (WORDS,)),
        (bag(mode="sum"), (WORDS,)),
        (bag(mode="max"), (WORDS,)),
        (bag(padding_idx=0), (WORDS,)),
        (bag(mode="sum", padding_idx=2), (WORDS,)),
        (bag(), (WORDS.flatten(), torch.tensor([0, 2, 2, 7]))),
        (bag(mode="sum"), (WORDS.flatten(), torch.tensor([0, 5]))),
        (bag(include_last_offset=True), (WORDS.flatten(), torch.tensor([0, 5, 12]))),
        (bag(mode="sum", include_last_offset=True), (WORDS.flatten(), torch.tensor([0, 5, 9]))),
        (bag(padding_idx=0), (WORDS.flatten(), torch.tensor([0, 8, 9, 12]))),
        (Copied(), (WORDS.flatten(),)),
        (Scaled(), (WORDS, torch.rand(3, 4))),
    ],
)
def test_numbers_are_torchs(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    program = program_of(module, *args)
    assert not any(isinstance(op, ExternOp) for op in program.module.walk())
    values = program.bind(dict(zip(program.input_names, args, strict=True)))
    (output,) = run_function(program.module, values)
    torch.testing.assert_close(output, module(*args))


def test_gradients_are_torchs() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = bag(padding_idx=0)

        def forward(self, words: Tensor) -> Tensor:
            return self.bag(words).square().sum()

    module = Loss()
    program = training_program(program_of(module, WORDS), optimizer=None)
    grads = gradients(run(program, WORDS))
    module(WORDS).backward()
    weight = module.bag.weight.grad
    assert weight is not None
    torch.testing.assert_close(grads["bag.weight"].float(), weight)


@pytest.mark.parametrize("rows", [(8, 16), (128,)])
def test_a_table_is_split_by_rows_and_stays_where_it_is(rows: tuple[int, ...]) -> None:
    with torch.device("meta"):
        module = nn.EmbeddingBag(1 << 20, 64, mode="sum")
    words = torch.zeros(rows, dtype=torch.long)
    args = (words,) if len(rows) == 2 else (words, torch.zeros(8, dtype=torch.long))
    program = program_of(module, *args)
    # Less than the table, so that it has to be in parts.
    budget = (1 << 20) * 64 * 4 // 3
    AutoShardPass(mesh="tensor=8", cluster="8xH100", memory_bytes=budget).apply(
        context(), program.module
    )
    placed = {name: tensor(value) for _, name, value in arguments(entry(program.module))}
    assert str(placed["weight"].placement) in ("[tensor = S(0)]", "[tensor = S(1)]")
    moved = [op.operands[0] for op in program.module.walk() if isinstance(op, BoxingOp)]
    assert all(tensor(value).shape != (1 << 20, 64) for value in moved)

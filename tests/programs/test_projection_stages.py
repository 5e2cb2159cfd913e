"""Stages and pieces of models whose projections are split: slices of a weight stay together."""

# pyright: basic
from __future__ import annotations

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import entry
from irc.errors import IrcError
from irc.pipeline import run_passes
from irc.plugin import builtin_pass
from irc.programs.held_pins import names_by_stage
from irc.programs.short_steps import LayerOps
from irc.training.projections import slices_in
from irc.training.slices import Sliced, of_states
from irc.training.stages import stages_of
from tests.training.models import program_of


class Gated(nn.Module):
    """Two projections one after another, with nothing that is outlined as a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(512, 3 * 512), nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(q * k * v)


def in_stages(**options: object) -> ModuleOp:
    """Return the module with its projection split and its stages marked."""
    module = program_of(Gated(), torch.randn(2, 8, 512)).module
    run_passes(module, [builtin_pass("canonicalize")()])
    run_passes(module, [builtin_pass("split-projections")(mesh="tensor=2")])
    assert slices_in(entry(module)).keys() == {"qkv.weight", "qkv.bias"}
    run_passes(module, [builtin_pass("cut-stages")(cluster="8xH100", **options)])
    return module


@pytest.mark.parametrize(
    "options",
    [
        {"count": 2},
        {"count": 3},
        {"stages": "qkv.weight, qkv.bias; out"},
        {"stages": "qkv; out"},
        {"pins": "stage qkv.weight = 0"},
        {"pins": 'stage "qkv.weight", "qkv.bias" = 0; stage out = 1'},
    ],
)
def test_slices_of_a_weight_are_in_one_stage(options: dict[str, object]) -> None:
    module = in_stages(**options)
    assert {"qkv.weight", "qkv.bias"} <= set(names_by_stage(module)[0])
    for name, own in slices_in(entry(module)).items():
        reading = [
            part for part, stage in enumerate(stages_of(module).modules)
            if {arg for arg in text_of_arguments(stage) if arg in own.names}
        ]  # fmt: skip
        assert reading == [0], name


def text_of_arguments(module: ModuleOp) -> list[str]:
    func = entry(module)
    assert func.arg_attrs is not None
    return [attrs.data["name"].data for attrs in func.arg_attrs.data]


def test_more_stages_than_a_projection_leaves_are_refused() -> None:
    with pytest.raises(IrcError, match="pipeline-stages"):
        in_stages(count=9)


def sliced(name: str, *stops: int) -> Sliced:
    starts = (0, *stops[:-1])
    names = tuple(f"{name}:{a}-{b}" for a, b in zip(starts, stops, strict=True))
    return Sliced(names, 0, starts, stops)


def test_a_weight_whose_name_ends_as_that_of_another_has_its_own_slices() -> None:
    weights = {
        "encoder.attn.qkv": sliced("encoder.attn.qkv", 16, 32, 48),
        "attn.qkv": sliced("attn.qkv", 16, 24, 32),
        "kv": sliced("kv", 16, 32),
    }
    held = [each for own in weights.values() for each in own.names]
    of = of_states(weights, [*held, *(f"momentum.{each}" for each in held)])
    assert of.keys() == {*weights, *(f"momentum.{name}" for name in weights)}
    for name, own in weights.items():
        assert of[name] == own
        assert of[f"momentum.{name}"].stops == own.stops
        assert of[f"momentum.{name}"].names[1] == f"momentum.{own.names[1]}"


def test_the_part_of_an_op_is_of_the_piece_of_that_part() -> None:
    ops = LayerOps({"n1": "first", "n4.1": "first", "n9": "layer"}, {}, {"n9": 2})
    assert [ops.where(name) for name in ("n4.1", "n4.1.g", "n1.g/b0n3.box0", "n9/n4.1")] == [
        "first", "first", "first", "layer",
    ]  # fmt: skip
    assert ops.where("n4.g") == ops.where("") == "last"
    assert (ops.layer("n9.g/b0n3"), ops.layer("n4.1.g")) == (2, None)

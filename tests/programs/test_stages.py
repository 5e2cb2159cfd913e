"""A model cut into stages, and a stage into functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from irc.calls.step_plan import captured_step
from irc.dialects.builder import arguments, entry, functions, results
from irc.dialects.dominance import verify_module
from irc.errors import IrcError
from irc.pipeline import run_passes
from irc.plugin import builtin_pass
from irc.program import Program
from irc.programs.stage_step import StageStep, stage_step
from irc.training.call_parts import split_calls
from irc.training.functions import split_functions
from irc.training.recipe import recipe_of
from irc.training.stage_names import named_by
from irc.training.stages import Stages, stages_of
from tests.programs.models import GPT, MICRO_BATCHES, model_and_batch


def captured(name: str) -> Program:
    """Capture the forward pass of a micro-batch of a case."""
    model, batch = model_and_batch(name)
    recipe = recipe_of("adamw", micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        return captured_step(model, None, recipe, batch, {})[0].program


def cut(name: str, count: int, stages: str = "") -> Stages:
    program = captured(name)
    options: dict[str, object] = {"count": count, "stages": stages}
    run_passes(
        program.module, [builtin_pass("canonicalize")(), builtin_pass("cut-stages")(**options)]
    )
    return stages_of(program.module)


def parameters(stages: Stages) -> list[set[str]]:
    """Return the parameters of each stage, by the layer that they are of."""
    return [
        {
            name.rpartition(".")[0]
            for role, name, _ in arguments(entry(module))
            if role == "parameter"
        }
        for module in stages.modules
    ]


def test_stages_are_balanced_and_in_order() -> None:
    """Four equal layers in two stages: two and two, the embedding before, the head behind."""
    first, last = parameters(cut("gpt", 2))
    assert {"tok", "pos", "blocks.0.up", "blocks.1.up"} <= first
    assert {"blocks.2.up", "blocks.3.up", "head"} <= last
    assert not first & last


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_what_moves_a_buffer_is_in_one_stage(count: int) -> None:
    """Wherever the stages begin, a batch norm is not cut between its statistics and their use."""
    stages = cut("conv", count)
    assert len(stages.modules) == count
    moved = [name for m in stages.modules for role, name in results(entry(m)) if role == "state"]
    read = [{n for role, n, _ in arguments(entry(m)) if role == "buffer"} for m in stages.modules]
    assert all(sum(name in names for names in read) == 1 for name in moved)


@pytest.mark.parametrize(
    "stages", ["tok, pos, blocks.0-blocks.1; blocks.2-blocks.3, norm, tok",
               "tok, pos, blocks.0-blocks.1; blocks.2"],
)  # fmt: skip
def test_a_tied_weight_may_be_named_where_it_is_read_again(stages: str) -> None:
    """As reports name it: in the stage that looks tokens up, and in that of the head."""
    first, last = parameters(cut("tied", 2, stages))
    assert {"tok", "pos", "blocks.1.up"} <= first
    assert {"blocks.2.up", "norm", "tok"} <= last


def test_what_reads_inputs_alone_is_in_every_stage() -> None:
    """The mask crosses no cut: what crosses has gradients, the memory over several cuts."""
    stages = cut("skips", 4)
    assert all(c.is_smooth for c in stages.crossings)
    assert max(c.consumer - c.producer for c in stages.crossings) > 1


def test_stages_are_fixed_by_names() -> None:
    first, last = parameters(cut("gpt", 2, "tok, pos, blocks.0-blocks.2; blocks.3, norm, head"))
    assert "blocks.2.up" in first
    assert "blocks.3.up" in last


@pytest.mark.parametrize(
    ("count", "stages", "words"),
    [
        (2, "tok; blocks.9", "no parameter has such a name"),
        (3, "tok; head", "names 2"),
        (40, "", "40 stages"),
        (2, "tok, blocks.0-blocks.1; blocks.1-blocks.3", "both name 'blocks.1"),
        (2, "tok, pos, blocks.0, blocks.1.up.weight; blocks.1.up.bias, norm", "read in stage 1"),
        (2, "tok, pos, blocks.0, norm; blocks.1, blocks.2, head", "'norm.* read in stage 1"),
    ],
)
def test_stages_that_cannot_be_are_refused(count: int, stages: str, words: str) -> None:
    with pytest.raises(IrcError, match=words) as caught:
        cut("gpt", count, stages)
    assert caught.value.code == "pipeline-stages"


def step_of(name: str) -> StageStep:
    """Return the last of two stages, as a part of a step."""
    stages = cut(name, 2)
    model = GPT()
    recipe = replace(recipe_of("adamw", micro_batches=MICRO_BATCHES), split=("ids", "targets"))
    trained = {n for n, _ in model.named_parameters()}
    crossings = [c for c in stages.crossings if c.consumer == 1]
    return stage_step(stages.modules[1], crossings, (), recipe, trained, scale=0.25, loss="output")


def test_layers_that_are_alike_share_sums_and_steps() -> None:
    """A gradient is added up in its block's backward function, and each weight's step is shared."""
    module = step_of("gpt").module
    verify_module(module)
    known = functions(module)
    backward = next(f for n, f in known.items() if n.endswith("_backward"))
    forward = next(f for n, f in known.items() if n.endswith("_forward"))
    sums = [op for op in backward.body.block.ops if "sum" in str(op.attributes.get("id"))]
    assert len(sums) == 12
    assert sum(name.startswith("step_") for name in known) == 12
    assert len(list(forward.body.block.ops)) < len(list(backward.body.block.ops))


@pytest.mark.parametrize("splits", [False, True])
def test_functions_verify_and_hand_on_what_they_read(splits: bool) -> None:
    """What a function reads of another is what that one returns, under one name."""
    from irc.dialects.builder import arguments, results

    module = step_of("gpt").module
    if splits:
        split_calls(module)
    stage_functions = split_functions(module, splits_backward=splits)
    assert list(stage_functions.modules) == (
        ["F", "I", "W", "step"] if splits else ["F", "B", "step"]
    )
    returned: set[str] = set()
    for kind, module in stage_functions.modules.items():
        verify_module(module)
        func = entry(module)
        handed = {name for role, name, _ in arguments(func) if role == "saved"}
        assert handed <= returned, kind
        returned |= {name for role, name in results(func) if role == "saved"}
    assert stage_functions.registers["gradient.cut0.1"] == "gradient.cut0.1"


@pytest.mark.parametrize("stages", ["tok, pos, blocks.0; blocks.1-blocks.9, norm, head"])
def test_a_run_that_ends_in_no_layer_is_refused(stages: str) -> None:
    with pytest.raises(IrcError, match=r"begins with 'blocks\.9'") as caught:
        cut("gpt", 2, stages)
    assert caught.value.code == "pipeline-stages"


def test_a_run_may_end_in_a_module_without_parameters() -> None:
    names = ["0.weight", "0.bias", "2.weight", "4.weight"]
    assert named_by("0-3", names) == names[:3]

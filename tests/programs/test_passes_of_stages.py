"""`irc check` of a pipeline names the pass and op of faults planted into passes' work on stages."""

# pyright: basic
from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from irc.calls.step_plan import captured_step
from irc.dialects.builder import arguments, entry
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts_check import check_parts
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.plan.training import stage_file
from irc.plugin import builtin_pass
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.training.recipe import recipe_of
from tests.programs.models import MICRO_BATCHES, OPTIMIZER, model_and_batch

Checked = tuple[PartsPlan, dict[str, torch.Tensor], list[torch.Tensor]]


def planned(name: str, schedule: str, mesh: str, pins: str = "") -> Checked:
    model, batch = model_and_batch(name)
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    whole = Mesh.parse(mesh)
    plan = make_parts_plan(
        captured.program,
        replace(recipe, split=split),
        Options(mesh=whole, pins=pins, keep_ir=True),
        schedule_for(schedule, whole.size("pipe"), MICRO_BATCHES),
    )
    return plan, dict(captured.program.tensors), list(batch)


def check(case: Checked) -> str:
    plan, weights, batch = case
    return str(check_parts(plan, weights, batch))


def test_texts_of_stages_are_kept_where_they_are_asked_for() -> None:
    plan, weights, batch = planned("frozen", "zb-h1", "pipe=2")
    assert all(stage_file(part) in plan.texts for part in range(2))
    kept = [name for name in plan.parts[1]["I"].texts if name.startswith("ir/")]
    assert kept[0] == "ir/00-split.mlir"
    assert any(name.endswith("-map-tasks.mlir") for name in kept)
    assert "are as eager has them" in check((plan, weights, batch))


def plant(monkeypatch: pytest.MonkeyPatch, name: str, reads: str, fn: str, instead: str) -> None:
    """Let a pass do its work, and then something wrong: once, on a function that reads something.

    Args:
        monkeypatch: takes it back.
        name: of the pass.
        reads: names of the function's arguments, a regular expression.
        fn: what a pointwise op, also one in a kernel, should compute.
        instead: what it does.
    """
    kind = type(builtin_pass(name)())
    real, planted = kind.apply, list[Operation]()

    def apply(self: Any, ctx: Context, module: ModuleOp) -> None:
        real(self, ctx, module)
        named = " ".join(name for _, name, _ in arguments(entry(module)))
        if planted or re.search(reads, named) is None:
            return
        for op in module.walk():
            is_pointwise = op.name in ("flow.pointwise", "task.pointwise")
            if is_pointwise and op.properties["fn"] == StringAttr(fn):
                op.properties["fn"] = StringAttr(instead)
                planted.append(op)
                return

    monkeypatch.setattr(kind, "apply", apply)


@pytest.mark.parametrize(
    ("mesh", "name", "reads", "fn", "words"),
    [
        (
            "pipe=2", "fuse", r"\bx\b", "tanh",
            r"micro-batch 0: 'cut0\.1', computed by F of stage 0 on rank 0, .*;"
            r" function F, pass fuse: flow\.\w+ \(id n\d+\) from \S*models\.py",
        ),
        (
            "pipe=2", "map-tasks", r"\bgradient\.", "mul",
            r"micro-batch 0: .* of stage 0.*; function B, pass map-tasks: \w+\.\w+ \(id ",
        ),
        ("pipe=2", "map-tasks", r"\blr\b", "mul", r"^stage 0: function step, pass map-tasks: "),
        (
            "pipe=2", "map-tasks", r"^(accumulated\.\S+ ?)+$", "mul",
            r"^stage 0: function norm, pass map-tasks: ",
        ),
        pytest.param(
            "pipe=2,data=2", "auto-shard", r"\bx\b", "tanh",
            r"micro-batch 0: 'cut0\.1', computed by F of stage 0 .*; function F, a pass that places"
            r" the stage \(auto-shard to split\): flow\.pointwise \(id n\d+\) placed ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "pipe=2,data=2", "map-tasks", r"\bgradient\.", "mul",
            r"micro-batch 0: .* of stage 0.*; function B, pass map-tasks: .* placed ",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_pass_that_goes_wrong_is_named(
    mesh: str, name: str, reads: str, fn: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stage, micro-batch, function, pass and op."""
    plant(monkeypatch, name, reads, fn, "sigmoid" if fn == "tanh" else "add")
    case = planned("frozen", "1f1b", mesh, "cut* = [data = S(0)]" if "data" in mesh else "")
    with pytest.raises(IrcError) as caught:
        check(case)
    assert caught.value.code == "check-failed"
    assert re.search(words, caught.value.message), caught.value.message


def test_a_collective_that_no_stage_has_cannot_be_cut() -> None:
    model, batch = model_and_batch("frozen")
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    cut = ("no-chunk-collectives", 'chunk-collectives{degree=2 only="nowhere"}')
    options = Options(mesh=Mesh.parse("pipe=2,tensor=2"), passes=cut)
    schedule = schedule_for("1f1b", 2, MICRO_BATCHES)
    with pytest.raises(IrcError, match="no collective 'nowhere'"):
        make_parts_plan(captured.program, replace(recipe, split=split), options, schedule)

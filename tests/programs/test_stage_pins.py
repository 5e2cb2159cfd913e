"""Constraints on stages: what they name is where they say, the rest of the cut is the best one."""

# pyright: basic
from __future__ import annotations

import re
from itertools import combinations, pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from torch import nn
from xdsl.dialects.func import FuncOp

import irc
from irc.cli import main
from irc.constraints.pins import parse_constraints
from irc.constraints.stages import fixed_ops, parse_stages
from irc.dialects.builder import arguments, entry
from irc.errors import IrcError
from irc.pipeline import run_passes
from irc.plan.parts_files import load_parts
from irc.plugin import builtin_pass
from irc.program import Program
from irc.programs import stage_plans
from irc.report.parts import explain_parts
from irc.report.parts_facts import gather_parts
from irc.training.stage_choice import Costs, balanced
from irc.training.stage_choice import _line as line_of
from irc.training.stages import stages_of
from tests.programs.models import MICRO_BATCHES, OPTIMIZER, model_and_batch, trained_eagerly
from tests.programs.test_stages import captured


@pytest.fixture(scope="module")
def gpt() -> Program:
    return captured("gpt")


def layers(program: Program, count: int, pins: str, stages: str = "") -> list[set[str]]:
    """Cut a program, and return the layers of each stage."""
    module = program.module.clone()
    options: dict[str, object] = {"count": count, "pins": pins, "stages": stages}
    run_passes(module, [builtin_pass("canonicalize")(), builtin_pass("cut-stages")(**options)])
    return [
        {
            re.match(r"blocks\.\d+|[^.]+", name)[0]  # type: ignore[index]
            for role, name, _ in arguments(_entry(each))
            if role == "parameter"
        }
        for each in stages_of(module).modules
    ]


def _entry(module: object) -> FuncOp:
    return entry(module)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        # One layer more or less than is balanced: by a run, a range of numbers, a glob.
        ("stage blocks.0-blocks.2 = 0; stage blocks.3 = 1", 3),
        ("stage blocks.{0-2}, tok = 0; stage blocks.3 = 1", 3),
        ("stage blocks.?.qkv.weight, blocks.0 = 0", 4),
        ("stage blocks.1 = 1", 1),
        ("stage *.qkv = 1", 0),
    ],
)
def test_what_is_named_is_where_it_is_said(gpt: Program, pins: str, expected: int) -> None:
    """Stages are runs: so many of four layers are in the first one."""
    first, last = layers(gpt, 2, pins)
    assert first == {"tok", "pos", *(f"blocks.{i}" for i in range(expected))}
    assert last == {"norm", "head", *(f"blocks.{i}" for i in range(expected, 4))}


def test_the_rest_is_the_best_cut(gpt: Program) -> None:
    """Constraints that the best cut keeps change nothing; one layer fixed, the others balance."""
    best = layers(gpt, 2, "")
    assert layers(gpt, 2, "stage blocks.0 = 0; stage head = 1") == best
    first, middle, last = layers(gpt, 3, "stage blocks.0 = 0; stage blocks.1 = 1")
    assert "blocks.0" in first and "blocks.1" in middle
    assert {"blocks.3", "head"} <= last


@pytest.mark.parametrize(
    ("count", "pins", "stages", "words"),
    [
        (2, "stage blocks.9 = 0", "", "'blocks.9', and no parameter has such a name"),
        (2, "stage blocks.0 = 2", "", "there are 2 stages"),
        (2, "stage blocks.0 = 0; stage blocks.0.up = 1", "", "both name 'blocks.0.up"),
        (2, "stage blocks.0 = 1; stage blocks.2 = 0", "", "after 'blocks.0"),
        (2, "stage blocks.0.up = 0; stage blocks.0.down = 1", "", "computed by one op or block"),
        (
            4,
            "stage blocks.0 = 0; stage blocks.1 = 3",
            "",
            "leaves 0 ops and blocks for stages 1, 2",
        ),
        (3, "stage tok, blocks, norm, head = 1", "", "leaves"),
        (2, "stage blocks.0 = 0", "tok; head", "all stages are fixed already"),
    ],
)
def test_what_cannot_be_is_refused(
    gpt: Program, count: int, pins: str, stages: str, words: str
) -> None:
    with pytest.raises(IrcError, match=words) as caught:
        layers(gpt, count, pins, stages)
    assert caught.value.code == "pipeline-stages"


def test_constraints_of_all_kinds_stand_together() -> None:
    text = "stage l.0-l.3, norm = 0\n*.up.weight = [data = S(0)]\nfuse n1, n2\nstage.w = [data = B]"
    (pin,) = parse_stages(text, "own.txt")
    assert (pin.names, pin.stage, pin.where) == (("l.0-l.3", "norm"), 0, "own.txt, line 1")
    assert [s.glob for s in parse_constraints(text)] == ["*.up.weight", "stage.w"]
    with pytest.raises(IrcError, match="cannot read") as caught:
        parse_stages("stage l.0 = [data = S(0)]")
    assert caught.value.code in ("constraint-syntax", "placement-syntax")


def test_stages_of_a_program_without_any_are_refused() -> None:
    with pytest.raises(IrcError, match="has no stages") as caught:
        irc.compile(nn.Linear(2, 2), mesh="data=2", pins="stage weight = 0")
    assert caught.value.code == "pipeline-stages"


def test_a_step_trains_as_it_is_fixed() -> None:
    """On one process; a constraint on placement beside it is none of the stages'."""
    model, batch = model_and_batch("gpt")
    step = irc.compile_step(
        model,
        optimizer=OPTIMIZER,
        mesh="pipe=1",
        micro_batches=MICRO_BATCHES,
        schedule="gpipe",
        pins="stage tok, blocks.0-blocks.3 = 0",
    )
    losses, _ = trained_eagerly("gpt", 2)
    assert [step(*batch).item() for _ in range(2)] == pytest.approx(losses, abs=1e-12)


NET = """
import torch
from tests.programs.models import GPT, model_and_batch

def build():
    torch.manual_seed(0)
    return GPT(4, 16), model_and_batch("gpt", torch.float32)[1]
"""


def test_explain_says_what_was_fixed_and_what_was_chosen(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "own.txt").write_text("# the first\nstage tok, blocks.0 = 0\n")
    out = str(tmp_path / "plan")
    words = ["--train", "sgd", "--mesh", "pipe=3", "--micro-batches", "3"]
    torch.manual_seed(0)
    net = [f"{tmp_path / 'net.py'}:build", "-o", out]
    words[-1] = "4"
    assert main(["compile", *net, *words, "--pins", str(tmp_path / "own.txt")]) == 0
    plan = load_parts(out)
    assert [part.fixed for part in gather_parts(plan).parts] == ["tok, blocks.0", "", ""]
    said = explain_parts(plan)
    assert "stage 0 was fixed by tok, blocks.0" in said
    assert "stage 2 was chosen" in said


def test_stages_are_fixed_where_they_are_planned_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Child processes are given what passes of a stage take: there, no axis is called pipe."""
    monkeypatch.setattr(stage_plans, "can_fork", lambda: True)
    monkeypatch.setattr(stage_plans, "_plan_ahead", lambda *_: None)
    (tmp_path / "net.py").write_text(NET)
    words = ["--train", "sgd", "--mesh", "pipe=2,data=2", "-o", str(tmp_path / "plan")]
    pins = "stage blocks.0-blocks.2 = 0; *.qkv.weight = [data = S(0)]"
    assert main(["compile", f"{tmp_path / 'net.py'}:build", *words, "--pins", pins]) == 0
    parts = gather_parts(load_parts(tmp_path / "plan")).parts
    assert [part.fixed for part in parts] == ["blocks.0-blocks.2", ""]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_cut_is_the_best_of_all_that_keep_to_it(gpt: Program, count: int) -> None:
    """Against every cut there is, for random constraints on layers."""
    module = gpt.module.clone()
    run_passes(module, [builtin_pass("canonicalize")()])
    func, costs = entry(module), Costs(module, "this-host")
    line, rng = line_of(func), Random(count)
    times = [costs.seconds(op) for op in line.ops]

    def slowest(bounds: tuple[int, ...]) -> float:
        price = [0.0 if b in (0, len(times)) else costs.transfer(line.crossing[b]) for b in bounds]
        return max(
            sum(times[a:b]) + price[k] + price[k + 1] for k, (a, b) in enumerate(pairwise(bounds))
        )

    for _ in range(12):
        chosen = sorted(rng.sample(range(4), rng.randint(1, 2)))
        stages = sorted(rng.choices(range(count), k=len(chosen)))
        text = "; ".join(f"stage blocks.{i} = {k}" for i, k in zip(chosen, stages, strict=True))
        fixed = fixed_ops(func, count, parse_stages(text))
        legal = [
            bounds
            for inner in combinations(range(1, len(times)), count - 1)
            if (bounds := (0, *inner, len(times)))
            and all(sum(times[a:b]) > 0 for a, b in pairwise(bounds))
            and all(
                fixed.get(op, k) == k
                for k, (a, b) in enumerate(pairwise(bounds))
                for op in line.ops[a:b]
            )
        ]
        if not legal:
            with pytest.raises(IrcError, match=r"leaves|no cut keeps"):
                balanced(func, costs, count, fixed)
            continue
        stage_by_op = balanced(func, costs, count, fixed)
        own = [stage_by_op[op] for op in line.ops]
        bounds = (*map(own.index, range(count)), len(own))
        assert own == sorted(own)
        assert bounds in legal, text
        assert slowest(bounds) == pytest.approx(min(map(slowest, legal))), text

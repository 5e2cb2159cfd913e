"""Micro-batches that do not share a batch equally: 10 samples are 3, 3, 2 and 2 of four."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import irc
from irc.calls.step_plan import captured_step
from irc.cli import main
from irc.cluster.load import find_cluster
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts import run_here
from irc.interpret.parts_check import check_parts
from irc.interpret.parts_folder import check_parts_folder
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.plan.parts_files import load_parts
from irc.plan.parts_packing import pack_parts, unpack_parts
from irc.programs.schedules import schedule_for
from irc.programs.uneven import make_uneven_plan
from irc.report.parts_facts import gather_parts
from irc.runtime.weights import whole_weights
from irc.schedule.actions import Action
from irc.schedule.tapes import SMALLER
from irc.simulate.costs import Costs, StageCosts
from irc.simulate.parts import predict_step
from irc.training.recipe import recipe_of
from tests.programs.models import CASES, IGNORED, MICRO_BATCHES, OPTIMIZER, furthest
from tests.programs.uneven_batches import batch_of, model_of, trained_eagerly

NAMES = [name for name, case in CASES.items() if not case.draws]
Weights: TypeAlias = Mapping[str, torch.Tensor]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "schedule"), [(10, "1f1b"), (7, "zb-h1"), (5, "gpipe")])
def test_steps_equal_eager_training(name: str, size: int, schedule: str) -> None:
    """In float64: ignored targets, batch norm in order, tied and frozen weights, a clipped norm."""
    step = irc.compile_step(
        model_of(name),
        optimizer=OPTIMIZER,
        mesh="pipe=1",
        micro_batches=MICRO_BATCHES,
        schedule=schedule,
    )
    batches = [batch_of(name, size, seed) for seed in range(3)]
    losses = [step(*batch).item() for batch in batches]
    expected, state = trained_eagerly(name, batches)
    assert losses == pytest.approx(expected, abs=1e-11)
    assert furthest(step.state_dict()["model"], state) < 1e-11


def planned(name: str, size: int, mesh: str, schedule: str) -> tuple[PartsPlan, Weights]:
    """Plan a step for a batch of some samples; every process of a run would be sent that."""
    model, batch = model_of(name), batch_of(name, size)
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    with torch.no_grad():
        pair = [captured_step(model, None, recipe, batch, {}, less=less) for less in (0, 1)]
    (captured, split), (smaller, _) = pair
    weights = {n: t.detach().clone() for n, t in captured.program.tensors.items()}
    frozen = ",".join(n for n, p in model.named_parameters() if not p.requires_grad)
    recipe = replace(recipe, split=split, frozen=frozen)
    options = Options(mesh=Mesh.parse(mesh))
    order = schedule_for(schedule, options.mesh.size("pipe"), MICRO_BATCHES)
    plan = make_uneven_plan(captured.program, smaller.program, size, recipe, options, order)
    return unpack_parts(pack_parts(plan)), weights


@pytest.mark.parametrize(
    ("name", "size", "mesh", "schedule"),
    [
        ("tied", 10, "pipe=2", "1f1b"),
        pytest.param("tied", 7, "pipe=2", "zb-h1", marks=pytest.mark.slow),
        ("conv", 10, "pipe=2", "zb-h1"),
        ("skips", 5, "pipe=3", "1f1b"),
        ("frozen", 9, "pipe=2", "interleaved:2"),
        ("experts", 11, "pipe=2", "dualpipe-v"),
        pytest.param("tied", 6, "pipe=2", "dualpipe", marks=pytest.mark.slow),
        pytest.param("gpt", 10, "pipe=2,data=2", "1f1b", marks=pytest.mark.slow),
        pytest.param("gpt", 14, "pipe=2,tensor=2", "zb-h1", marks=pytest.mark.slow),
    ],
)
def test_stages_equal_eager_training(name: str, size: int, mesh: str, schedule: str) -> None:
    """In one process, with real registers: what crosses, and what data and tensor axes split."""
    plan, weights = planned(name, size, mesh, schedule)
    batches = [batch_of(name, size, seed) for seed in range(3)]
    run = run_here(plan, weights, batches, lr=0.05)
    expected, state = trained_eagerly(name, batches)
    assert [float(loss) for loss in run.losses] == pytest.approx(expected, abs=1e-11)
    held = {n: run.whole(n) for n in state if n in plan.holders}
    assert set(held) >= set(plan.trained)
    assert furthest(held, {n: state[n] for n in held}) < 1e-11


@pytest.mark.slow
def test_further_kinds_of_batches_go_on_with_the_same_state() -> None:
    """The last batch of an epoch is smaller, and may be shared equally, or not."""
    sizes = (10, 7, 10, 8, 13, 4)
    step = irc.compile_step(model_of("tied"), optimizer=OPTIMIZER, micro_batches=MICRO_BATCHES)
    batches = [batch_of("tied", size, seed) for seed, size in enumerate(sizes)]
    losses = [step(*batch).item() for batch in batches]
    expected, state = trained_eagerly("tied", batches)
    assert losses == pytest.approx(expected, abs=1e-11)
    assert furthest(step.state_dict()["model"], state) < 1e-11


def test_each_micro_batch_draws_numbers_of_its_own() -> None:
    """Those of a step of one program of its size, and its loss counts by its samples."""
    model, (batch,) = model_of("dropped"), batch_of("dropped", 10)
    step = irc.compile_step(model, optimizer=OPTIMIZER, micro_batches=MICRO_BATCHES)
    for number in range(2):
        expected = 0.0
        for k, own in enumerate(batch.tensor_split(MICRO_BATCHES)):
            seed = number * MICRO_BATCHES + k
            alone = irc.compile_step(model, optimizer=OPTIMIZER, seed=seed)
            expected += alone(own, lr=0.0).item() * len(own) / len(batch)
        assert step(batch, lr=0.0).item() == pytest.approx(expected, abs=1e-12)


class Divided(nn.Module):
    """A loss divided by a sum of the batch, in several ways; one sample of it is not counted."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(6, 3), how
        self.register_buffer("weight", torch.tensor([0.2, 1.0, 3.0]))

    def forward(self, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.layer(x)
        squares = ((scores.sum(1) - 1).square() * mask).sum()
        match self.how:
            case "class weights":
                return F.cross_entropy(scores, y, self.weight, ignore_index=IGNORED)
            case "mask":
                return squares / mask.sum().clamp(min=1)
            case "roots":
                return squares / mask.sum().sqrt() / mask.sum().sqrt()
            case _:
                return F.cross_entropy(scores, y, ignore_index=IGNORED) + scores.square().mean()


@pytest.mark.parametrize("how", ["class weights", "mask", "roots", "two means"])
@pytest.mark.parametrize("size", [10, 5])
def test_losses_divided_by_sums_are_those_of_the_whole_batch(how: str, size: int) -> None:
    """Micro-batches of one sample among them, whose sums are one number each."""
    torch.manual_seed(0)
    model = Divided(how).double()
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    step = irc.compile_step(
        model, optimizer={"kind": "sgd", "lr": 0.1}, micro_batches=MICRO_BATCHES
    )
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(size, 6, generator=draw, dtype=torch.float64)
        y, mask = torch.randint(3, (size,), generator=draw), torch.rand(size, generator=draw)
        y[0], mask[0], mask[-1] = IGNORED, 0.0, 2.5
        batch = x, y, mask.double()
        optimizer.zero_grad()
        loss = eager(*batch)
        loss.backward()
        optimizer.step()
        assert step(*batch).item() == pytest.approx(loss.item(), abs=1e-11)
        assert furthest(step.state_dict()["model"], eager.state_dict()) < 1e-11


def test_fewer_samples_than_micro_batches_are_refused() -> None:
    step = irc.compile_step(model_of("frozen"), micro_batches=MICRO_BATCHES)
    with pytest.raises(IrcError, match="each has one sample or more") as caught:
        step(*batch_of("frozen", 3))
    assert caught.value.code == "input-mismatch"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for 10 samples as 3, 3, 2 and 2, in two stages; nothing in it is changed by a test."""
    out = tmp_path_factory.mktemp("uneven") / "plan"
    irc.export_plan(
        model_of("tied"), batch_of("tied", 10), out=out, optimizer=dict(OPTIMIZER),
        micro_batches=MICRO_BATCHES, mesh="pipe=2",
    )  # fmt: skip
    return out


def test_a_folder_is_checked_value_by_value(folder: Path) -> None:
    assert "are as eager has them" in str(check_parts_folder(str(folder), trust=True))


def test_a_folder_is_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes, held against eager training of both sizes."""
    assert main(["run", str(folder), "--steps", "2"]) == 0
    assert "OK" in capsys.readouterr().out


def test_a_fault_in_smaller_micro_batches_is_named(folder: Path) -> None:
    """Their stage 0 sends another of its values, of the same shape."""
    plan = load_parts(folder, trust=True)
    channels = list(plan.facts.channels)
    at = next(i for i, c in enumerate(channels) if c.name.endswith(SMALLER) and c.producer == 0)
    sent, registers = channels[at], plan.registers(0)
    other = next(
        name
        for name, buffer in registers.items()
        if buffer.shape == registers[sent.register].shape
        and name != sent.register
        and name.startswith("saved")
        and name.endswith(SMALLER)
    )
    channels[at] = replace(sent, register=other)
    wrong = replace(plan, facts=replace(plan.facts, channels=tuple(channels)))
    words = f"micro-batch 2: '{sent.name}', computed by F of stage 0 on rank 0"
    with pytest.raises(IrcError, match=words) as caught:
        check_parts(wrong, whole_weights(plan), batch_of("tied", 10))
    assert caught.value.code == "check-failed"


def test_a_folder_without_the_smaller_model_is_refused(folder: Path) -> None:
    plan = load_parts(folder, trust=True)
    texts = {n: t for n, t in plan.texts.items() if n != "training/stages-smaller.mlir"}
    with pytest.raises(IrcError, match=r"has no training/stages-smaller\.mlir") as caught:
        check_parts(replace(plan, texts=texts), whole_weights(plan), batch_of("tied", 10))
    assert caught.value.code == "plan-corrupt"


def test_a_run_is_given_batches_of_the_plan_s_size() -> None:
    """Of 10 samples, not of 9, which other micro-batches share."""
    plan, weights = planned("frozen", 10, "pipe=2", "1f1b")
    with pytest.raises(IrcError, match="2 of them with a sample more") as caught:
        run_here(plan, weights, [batch_of("frozen", 9)], lr=0.05)
    assert caught.value.code == "input-mismatch"


def test_planted_faults_of_smaller_micro_batches_are_refused() -> None:
    """A plan that was edited: no functions for them, or a batch that is shared equally."""
    plan, _ = planned("frozen", 10, "pipe=2", "1f1b")
    for samples in (0, 8, 3):
        broken = replace(plan, facts=replace(plan.facts, samples=samples))
        with pytest.raises(IrcError) as caught:
            unpack_parts(pack_parts(broken))
        assert caught.value.code == "plan-corrupt"


def test_functions_of_smaller_micro_batches_are_predicted_and_counted_as_such() -> None:
    plan, _ = planned("gpt", 10, "pipe=2", "1f1b")
    costs = Costs(
        [StageCosts({"F": 3.0, "I": 2.0, "W": 1.0, "F.smaller": 2.0, "I.smaller": 1.5,
                     "W.smaller": 0.5})],
        smaller_from=plan.smaller_from,
    )  # fmt: skip
    assert [costs.seconds(Action(0, "F", m)) for m in range(4)] == [3.0, 3.0, 2.0, 2.0]
    assert [costs.seconds(Action(0, "B", m)) for m in range(4)] == [3.0, 3.0, 2.0, 2.0]
    facts = gather_parts(plan)
    runs = {f.kind: f.runs for f in facts.parts[0].functions}
    assert runs == {k: 2 if k[0] in "FBIW" else 1 for k in runs}
    assert {"F", "F.smaller", "B", "B.smaller", "step"} <= set(runs)
    # An update is what a step does once: no micro-batch is in it.
    seconds = {f.kind: f.predicted_s or 0.0 for f in facts.parts[0].functions}
    cluster = find_cluster("this-host").fit(plan.mesh)
    spent = predict_step(plan, cluster).busy(0)
    assert spent == pytest.approx(sum(runs[k] * seconds[k] for k in runs))

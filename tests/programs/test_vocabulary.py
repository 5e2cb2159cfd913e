"""An output layer in slices of its vocabulary, on all ranks of a pipeline."""

# pyright: basic
from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from irc.calls.step_plan import captured_step
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts import run_here
from irc.interpret.parts_check import check_parts
from irc.pipeline import Options
from irc.plan.parts import PartsPlan
from irc.programs.make import make_parts_plan
from irc.programs.schedules import schedule_for
from irc.simulate.parts import held_at
from irc.training.recipe import recipe_of
from tests.programs.planted_faults import PLANTERS
from tests.programs.worded import (
    HEADS,
    MICRO_BATCHES,
    OPTIMIZER,
    WIDTH,
    Worded,
    eager,
    head_and_batch,
)

Planned = tuple[PartsPlan, dict[str, torch.Tensor], list[torch.Tensor]]


def planned(
    model: nn.Module, batch: tuple[torch.Tensor, ...], schedule: str, mesh: str = "pipe=2",
    **options: Any,
) -> Planned:  # fmt: skip
    """Plan a step; return the plan, its weights and the batch."""
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    still = ",".join(n for n, p in model.named_parameters() if not p.requires_grad)
    with torch.no_grad():
        captured, split = captured_step(model, None, recipe, batch, {})
    whole = Mesh.parse(mesh)
    plan = make_parts_plan(
        captured.program,
        replace(recipe, split=split, frozen=still),
        Options(mesh=whole, **options),
        schedule_for(schedule, whole.size("pipe"), MICRO_BATCHES),
    )
    return plan, dict(captured.program.tensors), list(batch)


def furthest(case: Planned, model: nn.Module, steps: int = 3) -> float:
    """Return by how much losses and parameters after some steps differ from eager's."""
    plan, weights, batch = case
    run = run_here(plan, weights, [batch] * steps, lr=0.05)
    losses, state = eager(model, tuple(batch), steps)
    apart = [abs(float(a) - b) for a, b in zip(run.losses, losses, strict=True)]
    moved = [float((run.whole(n) - t).abs().max()) for n, t in state.items() if n in plan.trained]
    assert moved
    return max(*apart, *moved)


def check(case: Planned) -> str:
    plan, weights, batch = case
    return str(check_parts(plan, weights, batch))


@pytest.mark.parametrize("algorithm", [1, 2])
@pytest.mark.parametrize("name", HEADS)
def test_losses_and_parameters_are_those_of_one_process(name: str, algorithm: int) -> None:
    """Vocabularies that ranks do not share equally, biases, smoothed labels, ignored targets."""
    model, batch = head_and_batch(name)
    case = planned(model, batch, f"vocab-{algorithm}:1f1b", "pipe=3")
    assert "are as eager has them" in check(case)
    assert furthest(case, model) < 1e-12


@pytest.mark.parametrize(
    ("schedule", "mesh"),
    [
        ("vocab-1:gpipe", "pipe=2"),
        ("vocab-2:zb-h1", "pipe=2"),
        ("vocab-1:interleaved:2", "pipe=2"),
        ("vocab-2:zb-v", "pipe=2"),
        ("vocab-2:1f1b", "pipe=2,data=2"),
        ("vocab-1:1f1b", "pipe=2,tensor=2"),
    ],
)
def test_in_other_schedules_and_on_other_meshes(schedule: str, mesh: str) -> None:
    model, batch = head_and_batch("ignored")
    case = planned(model, batch, schedule, mesh)
    assert "are as eager has them" in check(case)
    assert furthest(case, model) < 1e-12


@pytest.mark.parametrize("algorithm", [1, 2])
def test_micro_batches_that_skip_stages_go_through_all_slices(algorithm: int) -> None:
    """In a mesh of four stages, each micro-batch without one of the inner two."""
    model, batch = head_and_batch("ignored")
    cut = (["tok", "layers.0"], ["layers.1"], ["layers.2"], ["layers.3", "norm"])
    pins = "; ".join(f"stage {', '.join(own)} = {stage}" for stage, own in enumerate(cut))
    case = planned(model, batch, f"vocab-{algorithm}:skip", "pipe=4", pins=pins)
    assert case[0].schedule.skips == ((1,), (2,), (1,), (2,))
    assert "are as eager has them" in check(case)


@pytest.mark.parametrize("algorithm", [1, 2])
def test_in_float32(algorithm: int) -> None:
    model, batch = head_and_batch("smoothed bias", torch.float32)
    assert furthest(planned(model, batch, f"vocab-{algorithm}:1f1b"), model) < 2e-6


def test_each_rank_has_its_slice_of_the_layer() -> None:
    """Of 37 classes three ranks have 13, 12 and 12, with their states and sums of gradients."""
    model, batch = head_and_batch("plain")
    plan, _, _ = planned(model, batch, "vocab-1:1f1b", "pipe=3")
    assert [len(part["step"].plan.states()) for part in plan.parts[3:]] == [2, 2, 2]
    own = plan.sliced["accumulated.head"]
    assert own.names == tuple(f"accumulated.head:{s}" for s in ("0-13", "13-25", "25-37"))
    assert [plan.places_of(name) for name in own.names] == [(0,), (1,), (2,)]
    assert "head" in plan.trained
    assert not any(name in plan.holders for name in ("head", "accumulated.head"))


def test_the_last_rank_holds_less_than_without() -> None:
    """A vocabulary larger than all else: its weight, states and logits are shared out."""
    torch.manual_seed(0)
    model = Worded(classes=512).double()
    batch = tuple(torch.randint(512, (8, 6)) for _ in range(2))
    peaks = [
        held_at(planned(model, batch, name, "pipe=4")[0], 3).num_bytes()
        for name in ("1f1b", "vocab-1:1f1b", "vocab-2:1f1b")
    ]
    assert max(peaks[1:]) < 0.7 * peaks[0]


@pytest.mark.parametrize("algorithm", [1, 2])
def test_each_barrier_keeps_one_more_micro_batch(algorithm: int) -> None:
    """The first rank has p + 2 of them with algorithm 1, p + 1 with algorithm 2: so many slots."""
    model, batch = head_and_batch("plain")
    plan, _, _ = planned(model, batch, f"vocab-{algorithm}:1f1b")
    slots = [n for (_, name), n in plan.tapes[0].slots.items() if name.startswith("saved")]
    assert max(slots) == len(plan.ranks) + 3 - algorithm


def test_what_t_waits_for() -> None:
    """With algorithm 1 the last backward waits for all T, with algorithm 2 for all S alone."""
    model, batch = head_and_batch("plain")
    for algorithm, kinds in ((1, {"T"}), (2, {"F"})):
        plan, _, _ = planned(model, batch, f"vocab-{algorithm}:1f1b")
        read = [n for n in plan.wiring.functions[1]["B"].reads if n.startswith("gradient.")]
        makers = [
            kind
            for functions in plan.wiring.functions[2:]
            for kind, own in functions.items()
            if set(own.makes) & set(read)
        ]
        assert set(makers) == kinds


@pytest.mark.parametrize("algorithm", [1, 2])
@pytest.mark.parametrize("planter", PLANTERS)
def test_a_planted_fault_is_named(planter: str, algorithm: int) -> None:
    """Slices of the size of a layer, so that one weight can be taken for the other."""
    torch.manual_seed(0)
    model = Worded(classes=2 * WIDTH).double()
    batch = tuple(torch.randint(2 * WIDTH, (8, 6)) for _ in range(2))
    plan, weights, inputs = planned(model, batch, f"vocab-{algorithm}:1f1b")
    seen = run_here(plan, weights, [inputs], lr=0.0).seen
    planted = 0
    for seed in range(3):
        fault = PLANTERS[planter](plan, seen, Random(seed))
        if fault is None:
            continue
        with pytest.raises(IrcError) as caught:
            check_parts(fault.plan, weights, inputs, peers=fault.peers)
        assert re.search(fault.words, caught.value.message), (caught.value.message, fault.words)
        planted += 1
    assert planted


def test_a_pin_of_the_whole_weight_is_one_of_its_slices() -> None:
    model, batch = head_and_batch("plain")
    plan, _, _ = planned(model, batch, "vocab-1:1f1b", "pipe=2,tensor=2", pins="head = S(1)")
    for part, name in zip(plan.slice_parts, plan.facts.slices["head"].names, strict=True):
        (buffer,) = (b for b in plan.parts[part]["S"].plan.buffers if b.name == name)
        assert [(cut.axis, cut.dim) for cut in buffer.placement] == [("tensor", 1)]


class Reading(Worded):
    """A loss that reads the hidden rows too."""

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().forward(ids, targets) + self.norm(self.tok(ids)).square().mean()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Worded(tied=True), "is the weight of the output layer, and is read elsewhere too"),
        (Worded(classes=2), "a vocabulary of 2 cannot be cut into 3 slices"),
        (Reading(), "the loss reads 'norm.weight'|the loss reads 'tok.weight'"),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "no cross-entropies of a linear layer"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(model: nn.Module, words: str) -> None:
    batch: tuple[torch.Tensor, ...] = (torch.zeros(8, 6, dtype=torch.int64),) * 2
    if isinstance(model, nn.Sequential):
        model, batch = _Squared(model), (torch.randn(8, 4),)
    with pytest.raises(IrcError) as caught:
        planned(model, batch, "vocab-1:1f1b", "pipe=3")
    assert caught.value.code == "pipeline-unsupported"
    assert re.search(words, caught.value.message)


class _Squared(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).square().mean()

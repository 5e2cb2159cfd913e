"""Steps whose saved values leave the device's memory: the same numbers, in less memory."""

# pyright: basic
from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import irc
from irc.calls.step_plan import captured_step
from irc.cli import main
from irc.cluster.device import Device
from irc.cluster.interference import NO_INTERFERENCE, Interference
from irc.cluster.presets import PRESETS
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.interpret.parts import run_here
from irc.interpret.parts_check import check_parts
from irc.pipeline import Options
from irc.plan.parts import PartsPlan, with_files
from irc.plan.parts_files import load_parts, save_parts
from irc.plan.parts_packing import pack_parts, unpack_parts
from irc.programs.make import make_parts_plan
from irc.programs.offload import with_offload
from irc.programs.schedules import schedule_for
from irc.report.parts import explain_parts
from irc.schedule.tapes import Event
from irc.simulate.parts import held_at, predict_step
from irc.simulate.parts_trace import step_trace
from irc.trace.read import read_trace
from irc.training.recipe import recipe_of
from tests.programs.models import OPTIMIZER, model_and_batch
from tests.programs.planted_faults import with_tape
from tests.simulate.test_traces import check_form

MICRO_BATCHES = 8


@cache
def planned(name: str, mesh: str, schedule: str) -> tuple[PartsPlan, PartsPlan, Any, Any]:
    """Plan a step without and with offload; its weights and a batch."""
    model, batch = model_and_batch(name)
    recipe = recipe_of(dict(OPTIMIZER), micro_batches=MICRO_BATCHES)
    captured, split = captured_step(model, None, recipe, batch, {})
    whole = Mesh.parse(mesh)
    ranks = whole.size("pipe") if mesh else 1
    order = schedule_for(schedule, ranks, MICRO_BATCHES)
    plan = make_parts_plan(
        captured.program, replace(recipe, split=split), Options(mesh=whole), order
    )
    moved = with_offload(plan.facts, plan.schedule_text, plan.parts, "disk", least_bytes=1)
    moved = with_files(moved, {name: text.decode() for name, text in plan.texts.items()})
    return plan, moved, captured.program.tensors, batch


@pytest.mark.parametrize(
    ("name", "mesh", "schedule"),
    [
        ("frozen", "", "gpipe"),
        ("frozen", "pipe=2", "interleaved:2"),
        pytest.param("frozen", "pipe=2,data=2", "gpipe", marks=pytest.mark.slow),
        pytest.param("gpt", "pipe=4", "1f1b", marks=pytest.mark.slow),
        pytest.param("skips", "pipe=2", "zb-v", marks=pytest.mark.slow),
        pytest.param("conv", "pipe=2", "gpipe", marks=pytest.mark.slow),
    ],
)
def test_numbers_are_the_same_in_less_memory(name: str, mesh: str, schedule: str) -> None:
    plan, moved, weights, batch = planned(name, mesh, schedule)
    runs = [run_here(own, weights, [batch] * 2, lr=0.05) for own in (plan, moved)]
    assert runs[0].losses == runs[1].losses
    for parts in zip(*(run.parts for run in runs), strict=True):
        assert all(parts[0].local[n].equal(t) for n, t in parts[1].local.items())
    held = [
        [held_at(own, at).num_bytes() for at in range(len(plan.ranks))] for own in (plan, moved)
    ]
    assert all(b <= a for a, b in zip(*held, strict=True))
    assert max(held[1]) < max(held[0])


def test_a_plan_says_what_is_moved(tmp_path: Path) -> None:
    plan, moved, weights, _ = planned("frozen", "", "gpipe")
    assert "offload" not in json.loads(plan.text)
    assert json.loads(moved.text)["offload"] == "disk"
    assert unpack_parts(pack_parts(moved)).tapes == moved.tapes != plan.tapes
    save_parts(tmp_path / "plan", moved, weights)
    assert load_parts(tmp_path / "plan").hash == moved.hash
    assert "on the disk" in explain_parts(moved)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"offload": "tape"}, "offload is 'tape'"),
        ({"moved": ()}, "registers of 0 parts are moved to 'disk'"),
        ({"offload": "", "moved": (("saved0",),)}, "registers of 1 parts are moved to ''"),
        ({"moved": (("saved99",),)}, "moves a register 'saved99' that it has not"),
        ({"ahead": 1025}, "messages have a slot 1025 actions ahead"),
        ({"ahead": -1}, "messages have a slot -1 actions ahead"),
    ],
)
def test_a_plan_that_moves_what_is_not_there_is_corrupt(facts: Any, words: str) -> None:
    _, moved, _, _ = planned("frozen", "", "gpipe")
    wrong = replace(moved, facts=replace(moved.facts, **facts))
    with pytest.raises(IrcError, match=words) as caught:
        unpack_parts(pack_parts(wrong))
    assert caught.value.code == "plan-corrupt"


def test_faults_of_moves_are_named() -> None:
    """What is fetched from another place, or before it is there, is not what was put there."""
    _, moved, weights, batch = planned("frozen", "", "gpipe")
    assert "as eager has them" in str(check_parts(moved, weights, list(batch)))
    stores = [event for event in moved.tapes[0].events if event.what == "store"]
    own = Random(0).choice(stores)
    number, register = own.action.micro_batch, own.place and own.place.register

    def another_place(event: Event) -> Event:
        is_it = event.what == "fetch" and event.place and event.place.register == register
        count = moved.tapes[0].outside[0, register] if is_it and register else 0
        return event._replace(outside=(event.outside + 1) % count) if count else event

    wrong = with_tape(moved, 0, another_place)
    with pytest.raises(IrcError, match=rf"micro-batch \d: '{register}', read by B of stage 0"):
        check_parts(wrong, weights, list(batch))

    def another_slot(event: Event) -> Event:
        place = event.place
        if event.what not in ("store", "stored") or place is None:
            return event
        if (place.register, event.action.micro_batch) != (register, number):
            return event
        slots = moved.tapes[0].slots[0, place.register]
        return event._replace(place=place._replace(slot=(place.slot + 1) % slots))

    wrong = with_tape(moved, 0, another_slot)
    with pytest.raises(
        IrcError, match=rf"micro-batch {number}: '{register}', read by B of stage 0"
    ):
        check_parts(wrong, weights, list(batch))


def test_moves_are_priced_by_the_device() -> None:
    plan, moved, _, _ = planned("frozen", "pipe=2", "interleaved:2")
    cluster = PRESETS["8xH100"]
    device = replace(cluster.device, disk_bytes_per_s=1e6)
    fast, slow = (predict_step(moved, replace(cluster, device=d)) for d in (cluster.device, device))
    assert predict_step(plan, cluster).seconds <= fast.seconds < slow.seconds
    busy = slow.timeline.busy(slow.actions)
    assert 0.9 * slow.seconds < max(busy[s] for s in busy if s.startswith("disk of rank"))
    unknown: Device = replace(device, disk_bytes_per_s=0.0)
    with pytest.raises(IrcError, match="how fast values are moved to the disk"):
        predict_step(moved, replace(cluster, device=unknown))


def test_moves_and_functions_slow_each_other_down() -> None:
    """By the table of the device, in the simulation and in its trace."""
    _, moved, _, _ = planned("frozen", "pipe=2", "interleaved:2")
    moved = with_files(moved, {})
    moved = replace(moved, facts=replace(moved.facts, offload="host"))
    cluster = PRESETS["8xH100"]
    rows = [{"compute": 1.5, kind: 3.0} for kind in ("d2h", "h2d")]
    free, table = NO_INTERFERENCE, Interference.of(rows)
    alone, slow = (
        predict_step(moved, replace(cluster, device=replace(cluster.device, interference=own)))
        for own in (free, table)
    )
    busy, slowed = (each.timeline.busy(each.actions) for each in (alone, slow))
    assert alone.seconds < slow.seconds
    for stream, seconds in busy.items():
        most = 3.0 if stream.startswith(("d2h", "h2d")) else 1.5
        if not stream.startswith("link"):
            assert seconds <= slowed[stream] * (1 + 1e-9)
            assert slowed[stream] <= most * seconds * (1 + 1e-9)
    assert slowed["d2h of rank 0"] > busy["d2h of rank 0"]
    check_form(step_trace(moved, slow, cluster))


class Wide(torch.nn.Module):
    """Layers of which each saves some pages of a micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


NET = """
import torch
from tests.programs.test_offload import Wide

def build():
    return Wide(), (torch.randn(128, 128),)
"""


def test_a_step_on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same losses and weights, bit by bit, and nothing is left in the folder."""
    monkeypatch.setenv("IRC_SCRATCH", str(tmp_path))
    batch = torch.randn(128, 128, generator=torch.Generator().manual_seed(1))
    held: list[dict[str, int]] = []
    states: list[Any] = []
    for offload in ("", "disk"):
        step = irc.compile_step(
            Wide(), micro_batches=8, schedule="gpipe", offload=offload, optimizer="sgd"
        )
        losses = [step(batch, lr=1e-3) for _ in range(2)]
        held.append(step.memory_bytes())
        states.append([*losses, *step.state_dict()["model"].values()])
    assert all(a.equal(b) for a, b in zip(*states, strict=True))
    assert 2 * held[1]["registers"] < held[0]["registers"] < held[1]["outside"] * 1.5
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"offload": "disc"}, "option-value", "'disk'"),
        ({"offload": "disk"}, "offload-unsupported", "the step has one"),
        ({"offload": "host", "micro_batches": 4}, "offload-unsupported", "already"),
    ],
)
def test_options_that_cannot_be(options: Any, code: str, words: str) -> None:
    with pytest.raises(IrcError) as caught:
        irc.compile_step(Wide(), **options)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_a_schedule_that_keeps_one_micro_batch_is_refused() -> None:
    step = irc.compile_step(Wide(), micro_batches=4, offload="disk")
    with pytest.raises(IrcError, match="keeps at most 1 micro-batches") as caught:
        step(torch.randn(64, 128))
    assert caught.value.code == "offload-unsupported"


@pytest.mark.slow
def test_two_processes_move_to_their_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line: they train as eager does, and leave nothing in the folder."""
    scratch, plan = tmp_path / "scratch", tmp_path / "plan"
    scratch.mkdir()
    monkeypatch.setenv("IRC_SCRATCH", str(scratch))
    (tmp_path / "net.py").write_text(NET)
    words = ["--train", "--mesh", "pipe=2", "--micro-batches", "8", "--schedule", "gpipe"]
    net = f"{tmp_path / 'net.py'}:build"
    assert main(["compile", net, "-o", str(plan), *words, "--offload", "disk"]) == 0
    assert "offload     disk" in capsys.readouterr().out
    traces = [str(tmp_path / name) for name in ("predicted.json", "measured.json")]
    assert main(["run", str(plan), "--trace", traces[1]]) == 0
    assert capsys.readouterr().out.rstrip().endswith("OK")
    assert main(["simulate", str(plan), "--trace", traces[0]]) == 0
    assert "disk of rank 1" in capsys.readouterr().out
    for trace in map(read_trace, traces):
        check_form(trace)
        assert {(rank, "disk") for rank in (0, 1)} <= {(e.rank, e.track) for e in trace.events}
    assert not list(scratch.iterdir())

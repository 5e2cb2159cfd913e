"""What a long command says of its steps, and of how long the rest takes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import irc
from irc.cli import main
from irc.commands import progress as module
from irc.commands.progress import progress
from irc.logs import PROGRESS, tell_share
from irc.reproduce.smallest import Smallest


class Terminal(io.StringIO):
    """The standard error, of which lines are taken."""

    is_terminal = True

    def isatty(self) -> bool:
        return self.is_terminal

    def lines(self) -> list[str]:
        said = self.getvalue().splitlines()
        self.seek(0)
        self.truncate()
        return said


class Clock:
    """Time that goes on by what a step takes."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    fake_terminal = Terminal()
    # pytest puts its own stream into sys when a test begins.
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=fake_terminal))
    return fake_terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(module, "time", fake_clock)
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    return fake_clock


STEPS = (("capturing", 1.0), ("auto-shard", 6.0), ("fuse", 2.0), ("fuse", 0.1), ("files", 1.0))


def command(clock: Clock, name: str = "net.py:build") -> None:
    with progress([("model", name)]):
        for text, seconds in STEPS:
            PROGRESS.info("%s", text)
            clock.now += seconds


def test_steps_are_said_after_two_seconds(clock: Clock, terminal: Terminal) -> None:
    """The first time nothing is known of the rest; the second time it is, of the same command."""
    command(clock)
    # What follows within half a second of a line has none.
    assert terminal.lines() == ["   7.0 s  fuse", "   9.0 s  fuse"]
    command(clock)
    assert terminal.lines()[0] == "   7.0 s  fuse, about 3 s left if it goes as last time"
    command(clock, "other.py:build")
    assert "left" not in "".join(terminal.lines())


def test_what_is_short_says_nothing(clock: Clock, terminal: Terminal) -> None:
    with progress([("model", "small.py:build")]):
        PROGRESS.info("capturing")
        clock.now += 1.0
    assert terminal.lines() == []
    assert not PROGRESS.handlers


def test_a_child_process_is_silent(clock: Clock, terminal: Terminal) -> None:
    with progress([("model", "net.py:build")]):
        clock.now += 5.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            PROGRESS.info("planned ahead")
        PROGRESS.info("planned here")
    assert terminal.lines() == ["   5.0 s  planned here"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"steps": 3, "total": 1}}'])
def test_a_broken_memory_is_none(
    text: str, clock: Clock, terminal: Terminal, tmp_path: Path
) -> None:
    command(clock)
    (tmp_path / "cache" / "progress" / "last.json").write_text(text)
    command(clock)
    said = terminal.lines()
    assert len(said) == 4
    assert "left" not in "".join(said)


def test_only_a_terminal_is_told(clock: Clock, terminal: Terminal) -> None:
    terminal.is_terminal = False
    command(clock)
    assert terminal.lines() == []


def test_equal_steps_tell_the_rest_at_once(clock: Clock, terminal: Terminal) -> None:
    """The first run of a command knows it by the steps that are done."""
    with progress([("plan", "plan")]):
        for what, count in (("step", 4), ("eager step", 2)):
            for number in range(1, count + 1):
                tell_share(what, number, count)
                clock.now += 3.0
    assert terminal.lines() == [
        "   3.0 s  step 2 of 4, about 9 s for it and the others",
        "   6.0 s  step 3 of 4, about 6 s for it and the others",
        "   9.0 s  step 4 of 4, about 3 s for it and the others",
        "  12.0 s  eager step 1 of 2",
        "  15.0 s  eager step 2 of 2, about 3 s for it and the others",
    ]


class Loss(nn.Module):
    """A matmul and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).square().mean()


COMMANDS = {
    "check": ["reading plan", "the model, eagerly", "after fuse, stage"],
    "tune --rounds 2 --anyway": ["reading plan", "timing call 1 of 2", "timing call 2 of 2"],
    "run": ["reading plan", "the first call", "timing calls", "the model, eagerly"],
    "run trained --steps 2": ["step 2 of 2", "timing steps", "float64, step 2 of 2"],
    "run spread": ["starting 2 processes", "the first call", "the model, eagerly"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_long_commands_say_their_steps(
    command: str, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other processes do is said by the first rank; without a terminal nothing is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    monkeypatch.setattr(module, "GAP_S", 0.0)
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    name, *rest = command.split()
    plan = rest.pop(0) if rest and not rest[0].startswith("-") else "plan"
    options = {"trained": {"optimizer": "sgd"}, "spread": {"mesh": "data=2"}}.get(plan, {})
    irc.export_plan(Loss(), (torch.randn(4, 8),), out=plan, **options)
    for is_terminal in (True, False):
        terminal.is_terminal = is_terminal
        assert main([name, plan, *rest]) == 0
        said = "\n".join(terminal.lines())
        for step in COMMANDS[command]:
            assert (step in said) == is_terminal, said
    assert not PROGRESS.handlers


def test_the_price_of_a_pin_is_searched_in_two_steps(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    monkeypatch.setattr(module, "GAP_S", 0.0)
    irc.export_plan(Loss(), (torch.randn(4, 8),), out="plan", mesh="data=2", native="none")
    assert main(["explain", "plan", "plan", "--op", "x", "--why-not", "B"]) == 0
    steps = [line.split(" s  ")[1].partition(",")[0] for line in terminal.lines()]
    assert [s for s in steps if "plac" in s] == [
        "placements as they are",
        "placements with the pin",
    ]


def test_what_makes_a_failure_small_says_how_small_it_is(clock: Clock, terminal: Terminal) -> None:
    def fails(subject: list[int]) -> bool:
        clock.now += 1.0
        return 3 in subject

    with progress([("file", "small.mlir")]):
        search = Smallest([*range(8)], fails, lambda own: (len(own),), 600.0)
        search.without_parts(len, lambda own, part: [x for x in own if own.index(x) not in part])
    assert search.subject == [3]
    said = terminal.lines()
    assert said[0] == "   2.0 s  try 3, smallest so far 8 ops, at most 600 s more"
    assert "smallest so far 1 ops" in said[-1]

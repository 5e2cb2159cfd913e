"""What a long command says of its steps, and of how long the rest takes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from irc.commands import progress as module
from irc.commands.progress import progress
from irc.logs import PROGRESS


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
    made = Terminal()
    # pytest puts its own stream into sys when a test begins.
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=made))
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    return made


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

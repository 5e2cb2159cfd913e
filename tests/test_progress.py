"""What a long command says of its steps, and of how long the rest takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from irc.commands import progress as module
from irc.commands.progress import progress
from irc.logs import PROGRESS


class Clock:
    """Time that goes on by what a step takes."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


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


def test_steps_are_said_after_two_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """The first time nothing is known of the rest; the second time it is, of the same command."""
    command(clock)
    # What follows within half a second of a line has none.
    assert capsys.readouterr().err.splitlines() == ["   7.0 s  fuse", "   9.0 s  fuse"]
    command(clock)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "   7.0 s  fuse, about 3 s left if it goes as last time"
    command(clock, "other.py:build")
    assert "left" not in capsys.readouterr().err


def test_what_is_short_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress([("model", "small.py:build")]):
        PROGRESS.info("capturing")
        clock.now += 1.0
    assert capsys.readouterr().err == ""
    assert not PROGRESS.handlers


def test_a_child_process_is_silent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress([("model", "net.py:build")]):
        clock.now += 5.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            PROGRESS.info("planned ahead")
        PROGRESS.info("planned here")
    assert capsys.readouterr().err.splitlines() == ["   5.0 s  planned here"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"steps": 3, "total": 1}}'])
def test_a_broken_memory_is_none(
    text: str, clock: Clock, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command(clock)
    (tmp_path / "cache" / "progress" / "last.json").write_text(text)
    command(clock)
    assert "left" not in capsys.readouterr().err

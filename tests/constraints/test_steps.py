"""Constraints on a step of training, and which of them a part of it takes."""

from __future__ import annotations

from irc.constraints.pins import parse_constraints
from irc.constraints.steps import parse_steps, pins_on


def test_pins_on_arguments_that_there_are() -> None:
    """Lines keep their numbers; constraints of other kinds stay."""
    text = """"*.weight" = [data = B]; "optimizer.*" = [data = S(0)]
micro-batches = 2
same up.weight, target; same up.weight, down.weight
use up = column-parallel"""
    kept = pins_on(text, ["up.weight", "down.weight", "x"])
    assert [each.text for each in parse_constraints(kept)] == [
        'pin "*.weight" = [data = B]',
        'same "up.weight", "down.weight"',
    ]
    assert parse_steps(kept).micro_batches == 2
    assert kept.count("\n") == text.count("\n")
    assert "use up = column-parallel" in kept
    assert pins_on("", ["x"]) == ""

"""How a schedule runs the functions of a stage: how often, and how many results it keeps at once.

A module says it of itself in ``irc.runs``, so that a search of it weighs an op by how often it runs
in a step, and a value by the slots of its register: those of a micro-batch run for each of them,
the update runs once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr

from irc.training.accumulators import MICRO_BATCHES

RUNS = "irc.runs"
"""The attribute of a module."""
MICRO_BATCH = ("F", "B", "I", "W")
"""Functions that run once for each micro-batch; the others run once in a step."""

Between: TypeAlias = str
"""A function that makes a value and the last one that reads it, ``F-B``."""


@dataclass(frozen=True)
class StageRuns:
    """How a stage's functions run in a step.

    Attributes:
        micro_batches: how often F, and what follows it, runs.
        merged: backward is one function B, not I and W.
        slots: how many places a value has that one function hands to another, by the two of them;
            and by its name, where it comes from another stage or goes to one.
    """

    micro_batches: int
    merged: bool = True
    slots: Mapping[str, int] = field(default_factory=dict[str, int])

    def count(self, kind: str) -> int:
        """Return how often a function runs in a step.

        >>> runs = StageRuns(8)
        >>> runs.count("F"), runs.count("step")
        (8, 1)
        """
        return self.micro_batches if kind in MICRO_BATCH else 1

    def slots_between(self, first: str, last: str, name: str = "") -> int:
        """Return how many places a value has; 1 for one that stays in a function."""
        if name in self.slots:
            return self.slots[name]
        return 1 if first == last else self.slots.get(between(first, last), 1)

    def write(self, module: ModuleOp) -> None:
        """Say it in a module."""
        module.attributes[RUNS] = StringAttr(json.dumps(asdict(self)))


def runs_of(module: ModuleOp) -> StageRuns | None:
    """Return what a module says of itself; None for one that is no stage's."""
    attr = module.attributes.get(RUNS)
    if isinstance(attr, StringAttr):
        return StageRuns(**json.loads(attr.data))
    # Nobody has said yet which schedule runs it.
    count = module.attributes.get(MICRO_BATCHES)
    return StageRuns(count.value.data) if isinstance(count, IntegerAttr) else None


def between(first: str, last: str) -> Between:
    """Name a pair of functions."""
    return f"{first}-{last}"

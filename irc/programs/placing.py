"""Placing the stages of a pipeline on their meshes, several at one time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.pipeline import Options, run_passes
from irc.pipeline.default import passes_by_part
from irc.programs.equal_stages import Names, key_of, names_of
from irc.programs.stage_step import StageStep
from irc.search.shared import SHARED, of_plan, turn
from irc.training.call_parts import split_calls
from irc.training.functions import sort_by_function
from irc.training.stage_runs import RUNS, StageRuns


@dataclass(frozen=True)
class Stage:
    """A stage that is to be planned.

    Attributes:
        number: of all.
        step: what it computes.
        runs: how the schedule runs it.
        options: with its own pins and budget.
        names: of what it holds.
        key: equal for stages that have one plan, but for names.
    """

    number: int
    step: StageStep
    runs: StageRuns
    options: Options
    names: Names
    key: object

    @classmethod
    def of(cls, number: int, step: StageStep, runs: StageRuns, options: Options) -> Stage:
        """Return a stage, its key written."""
        names = names_of(step.module)
        key = (
            key_of(step.module, step.text, names, options.mesh, options.pins),
            (runs.micro_batches, runs.merged, options.memory_bytes, options.cluster),
            # What is summed over the whole batch is in one stage.
            number if step.batch else None,
        )
        return cls(number, step, runs, options, names, key)


Placed: TypeAlias = tuple[ModuleOp, Mapping[str, Any]]
"""A stage whose values have placements, and what the search says of it."""


AT_ONCE = 3
"""Stages that are placed at one time: one is built while others are solved.

Most pipelines have three that differ: the first, the last, and those between.
"""


class Placing:
    """Places stages, those at once of which none waits for another.

    Building the problem of a stage takes Python, and solving it does not: while one is solved,
    another is built, and functions are lowered. Stages have ops in common, whose signatures and
    prices are looked up once. What is chosen does not depend on either.

    Args:
        ahead: stages that are planned anyway; of equal ones the first is placed.
    """

    def __init__(self, ahead: Sequence[Stage]) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="irc-stage")
        # Which sizes are being decided is known to the context of a caller.
        self._context, self._shared = copy_context(), of_plan()
        self._context.run(SHARED.set, self._shared)
        first = {own.key: own for own in reversed(ahead)}
        self._begun: dict[int, Future[Placed]] = {}
        for own in sorted(first.values(), key=lambda own: own.number) if len(first) > 1 else ():
            self._begun[own.number] = self._begin(own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Where one raised, nobody asks for the others.
        self._shared.stops.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def place(self, own: Stage) -> Placed:
        """Return a stage placed as it is to run.

        Raises:
            IrcError: what the passes raise.
        """
        job = self._begun.pop(own.number, None)
        return (self._begin(own) if job is None else job).result()

    def _begin(self, own: Stage) -> Future[Placed]:
        def place() -> Placed:
            with turn():
                return placed(own.step, own.options, own.runs)

        return self._pool.submit(self._context.copy().run, place)


def placed(step: StageStep, options: Options, runs: StageRuns) -> Placed:
    """Return a stage placed, and what the search says of it."""
    module = step.module.clone()
    passes = passes_by_part(options).stage
    # Of rings that are named, others may be in other stages.
    passes = [replace(p, is_part=True) if p.name == "plan-rings" else p for p in passes]
    at = next((i for i, each in enumerate(passes) if each.name == "auto-shard"), len(passes))
    run_passes(module, passes[:at], verify_each=options.verify_each)
    if not runs.merged:
        split_calls(module)
    sort_by_function(module, merged=runs.merged)
    runs.write(module)
    run_passes(module, passes[at:], verify_each=options.verify_each)
    del module.attributes[RUNS]
    module.attributes.pop("irc.auto_shard", None)
    report = module.attributes.pop("irc.plan_cost", None)
    return module, json.loads(report.data) if isinstance(report, StringAttr) else {}

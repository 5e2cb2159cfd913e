"""Placing a stage of a pipeline on its mesh."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from xdsl.dialects.builtin import ModuleOp, StringAttr

from irc.pipeline import Options, run_passes
from irc.pipeline.default import passes_by_part
from irc.programs.equal_stages import Names, key_of, names_of
from irc.programs.stage_step import StageStep
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

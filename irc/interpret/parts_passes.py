"""Which pass and op of a stage's functions is wrong first, for one micro-batch.

A stage's whole part of a step, before it was placed, is run in its own dtype, which is eager, and
in float64, which is the reference; each function is run after every pass, and each of its values is
held against the reference under the id that its op carries, as :mod:`irc.interpret.check` does with
a plan of one program. A function is given what the ones before it made as they were split off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry, results
from irc.interpret.check import FLOOR, SLACK, UNJUDGED, Fault, source_of
from irc.interpret.flow import run_function
from irc.interpret.levels import level_of, random_inputs
from irc.interpret.spmd import run_spmd
from irc.interpret.stage_values import Key, Value
from irc.interpret.stages import run_flow, run_planned, run_stage
from irc.interpret.states import moving
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan, smaller_suffix
from irc.plan.training import SPLIT, smaller_file, stage_file
from irc.runtime.code import load_program
from irc.sharding.mesh import mesh_of
from irc.training.accumulators import ACCUMULATED

IR = "ir/"
MEMORY = "plan-memory"
AFTER = ("norm", "step")
"""Functions that run once, after all micro-batches."""
HANDED = ("state", "saved", "boundary")
"""Roles of results that later functions read."""
WEIGHTS = ".w"
"""Last letters of the id of a call of which W has its own part (:mod:`irc.training.call_parts`)."""


@dataclass(frozen=True)
class FunctionFault:
    """The first wrong value of a function of a stage."""

    kind: str
    fault: Fault

    def render(self) -> str:
        """Say where the fault is."""
        said = self.fault.render()
        # A stage is placed and split as a whole, and only the result of that is kept.
        said = said.replace(f"pass {SPLIT}:", "a pass that places the stage (auto-shard to split):")
        return f"function {self.kind}, {said}"


def has_passes(plan: PartsPlan) -> bool:
    """True where a plan holds its functions after each pass."""
    names = [stage_file(part) for part in range(len(plan.parts))]
    if plan.smaller_from is not None:
        names += [smaller_file(name) for name in names]
    return all(name in plan.texts for name in names)


def wrong_pass(
    plan: PartsPlan, part: int, fixed: Mapping[str, torch.Tensor], kinds: Collection[str]
) -> FunctionFault | None:
    """Return the first wrong value of a stage's functions, None where all passes agree.

    Args:
        plan: with the texts of its passes.
        part: the stage.
        fixed: arguments of the stage by name; others are drawn.
        kinds: which functions, of micro-batches of one size; those that read what others save need
            them.
    """
    is_smaller = any(smaller_suffix(kind) for kind in kinds)
    name = smaller_file(stage_file(part)) if is_smaller else stage_file(part)
    stage = load_program(plan, plan.texts[name].decode(), name)
    tensors = moving(stage, random_inputs(stage, fixed={**fixed}))
    names = [name for _, name, _ in arguments(entry(stage))]
    held = dict(zip(names, tensors, strict=True))
    eager, exact = run_flow(stage, tensors, None), run_flow(stage, tensors, torch.float64)
    run = _Stage(held, eager, exact)
    sums = {n: v for n, v in _results(stage, tensors) if n.startswith(ACCUMULATED)}
    for kind, loaded in plan.parts[part].items():
        if kind not in kinds:
            continue
        if kind in AFTER:
            run.held |= sums
        if (fault := run.function(loaded)) is not None:
            return FunctionFault(kind, fault)
    return None


class _Stage:
    """One stage while its functions are run, one after the other.

    Args:
        held: arguments by name, and what functions hand on.
        eager: the stage's values by op id.
        reference: the same in float64.
    """

    def __init__(
        self, held: dict[str, torch.Tensor], eager: Mapping[Key, Value],
        reference: Mapping[Key, Value],
    ) -> None:  # fmt: skip
        self.held = held
        self.reference = {key: v for key, v in reference.items() if not key[0].startswith("arg")}
        own = {key: eager[key].error(value) for key, value in self.reference.items()}
        most = {key: max(FLOOR, SLACK * error) for key, error in own.items()}
        self.allowed = {key: limit for key, limit in most.items() if limit < UNJUDGED}

    def function(self, loaded: LoadedPlan) -> Fault | None:
        """Run a function after each pass; note what it hands on."""
        texts = {n: loaded.texts[n].decode() for n in sorted(loaded.texts) if n.startswith(IR)}
        first = last = load_program(loaded, next(iter(texts.values())), next(iter(texts)))
        inputs = [self.held[name] for _, name, _ in arguments(entry(first))]
        for name, text in texts.items():
            last = load_program(loaded, text, name)
            fault = self._fault(Path(name).stem.split("-", 1)[1], run_stage(last, inputs))
            if fault is not None:
                return fault
        if (fault := self._fault(MEMORY, run_planned(loaded, last, first, inputs))) is not None:
            return fault
        for name, value in _results(first, inputs):
            self.held[name] = value
        return None

    def _fault(self, name: str, values: Mapping[Key, Value]) -> Fault | None:
        """Return the first wrong value, in the order in which a text computes them."""
        for key, value in values.items():
            most = self.allowed.get(at := _source(key))
            if most is not None and (error := value.error(self.reference[at])) > most:
                return Fault(name, key, value, error, most)
        return None


def _source(key: Key) -> Key:
    """Return under which key the stage has a value: calls in W are parts of those of backward.

    >>> _source(("n7.g.w/n24.box0", 0))
    ('n7.g/n24', 0)
    """
    path, slash, name = key[0].rpartition("/")
    calls = (each.removesuffix(WEIGHTS) for each in path.split("/"))
    return source_of(("/".join(calls) + slash + name, key[1]))


def _results(
    module: ModuleOp, inputs: Sequence[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what later functions read: sums and buffers that moved, and what is saved."""
    if level_of(module) == "flow":
        values = run_function(module, inputs)
    else:
        values = run_spmd(module, inputs, mesh_of(module))
    for (role, name), value in zip(results(entry(module)), values, strict=True):
        if role in HANDED:
            yield name, value
